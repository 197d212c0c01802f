"""What identifies a classifier."""

from __future__ import annotations

import hashlib
from typing import Any

import torch


def model_fingerprint(model: Any) -> dict[str, Any]:
    """What identifies a model: its structure and every weight, as one SHA-256; only the name for a plain callable."""
    if not isinstance(model, torch.nn.Module):
        return {"name": getattr(model, "__qualname__", type(model).__qualname__), "sha256": None}
    digest = hashlib.sha256(repr(model).encode())
    for name, tensor in sorted(model.state_dict().items()):
        array = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
    return {"name": type(model).__name__, "sha256": digest.hexdigest()}
