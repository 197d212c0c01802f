"""The state of a training on disk, from which it continues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from smoothcert.files import replacing
from smoothcert.types import SmoothcertError, UsageError

FILE = "training.safetensors"
_KEY = "smoothcert-training"


@dataclass
class Progress:
    """The progress of a training.

    Attributes:
        epoch: Epochs done.
        best: The score of the best one.
        history: The measurements of each.
        scaler: The state of the gradient scaler, for 16-bit training.
    """

    epoch: int = 0
    best: float = -1.0
    history: list[dict[str, float]] = field(default_factory=list)
    scaler: dict[str, Any] = field(default_factory=dict)


def save_progress(
    folder: Path,
    identity: Mapping[str, Any],
    progress: Progress,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema: nn.Module | None,
    sigmas: Tensor | None = None,
) -> None:
    """Write the state atomically.

    There is no random state: order and noise of an epoch follow from the seed and the number of the epoch.

    Args:
        folder: The folder of the training.
        identity: The settings of the training.
        progress: Its progress.
        model: The model.
        optimizer: The optimizer, for its momentum.
        ema: The running mean of the weights, if any.
        sigmas: The noise scale of each training input, if they differ.
    """
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    if ema is not None:
        tensors |= {f"ema/{name}": tensor for name, tensor in ema.state_dict().items()}
    for name, weight in model.named_parameters():
        momentum = optimizer.state.get(weight, {}).get("momentum_buffer")
        if momentum is not None:
            tensors[f"momentum/{name}"] = momentum
    if sigmas is not None:
        tensors["sigmas"] = sigmas
    values = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
    metadata = {_KEY: json.dumps({"identity": dict(identity), "progress": vars(progress)})}
    with replacing(folder / FILE) as temporary:
        safetensors.torch.save_file(values, temporary, metadata)


def load_progress(
    folder: Path,
    identity: Mapping[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ema: nn.Module | None,
    sigmas: Tensor | None = None,
) -> Progress:
    """Load the arguments of ``save_progress`` in place, if the folder holds them, and return the progress.

    Raises:
        UsageError: If the folder holds another training.
        SmoothcertError: If the file is damaged.
    """
    file = folder / FILE
    if not file.exists():
        return Progress()
    try:
        with safetensors.safe_open(file, framework="pt") as content:
            saved = json.loads((content.metadata() or {})[_KEY])
            tensors: dict[str, Tensor] = {key: content.get_tensor(key) for key in content.keys()}  # noqa: SIM118
        progress = Progress(**saved["progress"])
        before = dict(saved["identity"])
    except Exception as error:  # the parser raises many classes
        raise SmoothcertError(f"'{file}' is damaged ({error}); delete it, or use another folder.") from error
    changed = sorted(key for key in {*before, *identity} if before.get(key) != identity.get(key))
    if changed:
        raise UsageError(
            f"'{folder}' holds another training (it differs in {', '.join(changed)}); use another folder, or delete "
            "the old training with --fresh."
        )
    try:
        model.load_state_dict(_part(tensors, "model/"))
        if ema is not None:
            ema.load_state_dict(_part(tensors, "ema/"))
        momentum = _part(tensors, "momentum/")
        for name, weight in model.named_parameters():
            if name in momentum:
                optimizer.state[weight]["momentum_buffer"] = torch.empty_like(weight).copy_(momentum[name])
        if sigmas is not None:
            sigmas.copy_(tensors["sigmas"])
    except (RuntimeError, KeyError) as error:
        raise SmoothcertError(f"'{file}' does not match the model; delete it to start again.") from error
    return progress


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
