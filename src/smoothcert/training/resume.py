"""The state of a training on disk, from which it continues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

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
    """The progress of a training: epochs done, the score of the best one, and the measurements of each."""

    epoch: int = 0
    best: float = -1.0
    history: list[dict[str, float]] = field(default_factory=list)
    scaler: dict[str, Any] = field(default_factory=dict)  # the state of the gradient scaler, for 16-bit training


class Trained(NamedTuple):
    """What a training changes, to save and to load in place."""

    model: nn.Module
    optimizer: torch.optim.Optimizer  # for its momentum
    ema: nn.Module | None = None  # the running mean of the weights
    sigmas: Tensor | None = None  # the noise scale of each training input


def save_progress(folder: Path, identity: Mapping[str, Any], progress: Progress, trained: Trained) -> None:
    """Write the state of the training with these settings atomically.

    There is no random state: order and noise of an epoch follow from the seed and the number of the epoch.
    """
    tensors = {f"model/{name}": tensor for name, tensor in trained.model.state_dict().items()}
    if trained.ema is not None:
        tensors |= {f"ema/{name}": tensor for name, tensor in trained.ema.state_dict().items()}
    for name, weight in trained.model.named_parameters():
        momentum = trained.optimizer.state.get(weight, {}).get("momentum_buffer")
        if momentum is not None:
            tensors[f"momentum/{name}"] = momentum
    if trained.sigmas is not None:
        tensors["sigmas"] = trained.sigmas
    values = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
    metadata = {_KEY: json.dumps({"identity": dict(identity), "progress": vars(progress)})}
    with replacing(folder / FILE) as temporary:
        safetensors.torch.save_file(values, temporary, metadata)


def load_progress(folder: Path, identity: Mapping[str, Any], trained: Trained) -> Progress:
    """Load what ``save_progress`` wrote, if the folder holds it, and return the progress.

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
        for prefix, module in (("model/", trained.model), ("ema/", trained.ema)):
            part = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
            if module is not None:
                module.load_state_dict(part)
        for name, weight in trained.model.named_parameters():
            if (momentum := tensors.get(f"momentum/{name}")) is not None:
                trained.optimizer.state[weight]["momentum_buffer"] = torch.empty_like(weight).copy_(momentum)
        if trained.sigmas is not None:
            trained.sigmas.copy_(tensors["sigmas"])
    except (RuntimeError, KeyError) as error:
        raise SmoothcertError(f"'{file}' does not match the model; delete it to start again.") from error
    return progress
