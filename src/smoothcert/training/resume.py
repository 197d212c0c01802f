"""The state of a training on disk, from which it continues."""

from __future__ import annotations

import copy
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
    optimizer: torch.optim.Optimizer  # for its state, such as momentum
    ema: nn.Module | None = None  # the running mean of the weights
    sigmas: Tensor | None = None  # the noise scale of each training input
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None


def save_progress(folder: Path, identity: Mapping[str, Any], progress: Progress, trained: Trained) -> None:
    """Write the state of the training with these settings atomically.

    Random states are not needed: order and noise of an epoch follow from the seed and the number of the epoch.
    """
    tensors = {f"model/{name}": tensor for name, tensor in trained.model.state_dict().items()}
    if trained.ema is not None:
        tensors |= {f"ema/{name}": tensor for name, tensor in trained.ema.state_dict().items()}
    if trained.sigmas is not None:
        tensors["sigmas"] = trained.sigmas
    state: dict[str, Any] = {"identity": dict(identity), "progress": vars(progress)}
    state["optimizer"] = packed(trained.optimizer.state_dict(), "optimizer", tensors)
    if trained.scheduler is not None:
        state["scheduler"] = packed(trained.scheduler.state_dict(), "scheduler", tensors)
    values = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
    metadata = {_KEY: json.dumps(state)}
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
        # Earlier versions did not record these, and had one optimiser.
        before = {"dataset": identity.get("dataset"), "optimizer": "sgd", **saved["identity"]}
    except Exception as error:  # the parser raises many classes
        raise SmoothcertError(f"'{file}' is damaged ({error}); delete it, or use another folder.") from error
    changed = sorted(key for key in {*before, *identity} if before.get(key) != identity.get(key))
    if changed:
        raise UsageError(
            f"'{folder}' holds another training (it differs in {', '.join(changed)}); use another folder, or delete "
            "the old training with --fresh."
        )
    try:
        if "optimizer" in saved:
            expected = _after_a_step(trained.optimizer, saved["optimizer"])
            trained.optimizer.load_state_dict(unpacked(saved["optimizer"], expected, tensors))
        else:
            _load_momentum(trained, tensors)
        if trained.scheduler is not None:
            trained.scheduler.load_state_dict(unpacked(saved["scheduler"], trained.scheduler.state_dict(), tensors))
        for prefix, module in (("model/", trained.model), ("ema/", trained.ema)):
            part = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
            if module is not None:
                module.load_state_dict(part)
        if trained.sigmas is not None:
            trained.sigmas.copy_(tensors["sigmas"])
    except (RuntimeError, KeyError, ValueError, TypeError, IndexError) as error:
        raise SmoothcertError(
            f"'{file}' does not match the model or the optimizer; delete it to start again."
        ) from error
    return progress


def packed(value: Any, key: str, tensors: dict[str, Tensor]) -> Any:
    """Return the state of an optimiser or a scheduler as JSON, and put its tensors into ``tensors``.

    Raises:
        UsageError: It holds an object that is not a tensor, a number, a text or a container of them.
    """
    if isinstance(value, Tensor):
        tensors[key] = value
        return {"tensor": key}
    if isinstance(value, dict):
        return {"items": [[name, packed(part, f"{key}/{name}", tensors)] for name, part in value.items()]}
    if isinstance(value, list | tuple):
        return [packed(part, f"{key}/{place}", tensors) for place, part in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(
        f"the state of the {key.partition('/')[0]} holds a {type(value).__name__} ({key}), which cannot be stored; "
        "train without a folder."
    )


def unpacked(value: Any, like: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what ``packed`` stored; only tensors and numbers may differ from ``like``, whose containers are copied.

    Raises:
        ValueError, TypeError, KeyError: It has another structure.
    """
    if isinstance(like, Tensor):
        tensor = tensors[value["tensor"]]
        if tensor.shape != like.shape or tensor.is_floating_point() != like.is_floating_point():
            raise ValueError("a tensor has another shape or type")
        return tensor
    if isinstance(like, dict):
        items = dict(value["items"])
        if items.keys() != like.keys() or items.get("params") != like.get("params"):  # which name the weights of states
            raise ValueError("names differ")
        found = copy.copy(like)
        found.update({name: unpacked(items[name], part, tensors) for name, part in like.items()})
        return found
    if isinstance(like, list | tuple):
        return type(like)(unpacked(part, old, tensors) for part, old in zip(value, like, strict=True))
    if (
        (like is None or _is_number(like))
        and _is_number(value)
        and abs(value) < (2**53 if type(value) is int else 1e30)
    ):
        return value
    if value != like or type(value) is not type(like):
        raise ValueError(f"{value!r:.20} is not {like!r}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _after_a_step(optimizer: torch.optim.Optimizer, saved: Any) -> dict[str, Any]:
    """Take a step with the parameters that have a saved state, which changes them, and return the state it makes."""
    stepped = {place for place, _ in dict(saved["items"])["state"]["items"]}
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for place, weight in enumerate(weights):
        weight.grad = torch.zeros_like(weight) if place in stepped else None
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return optimizer.state_dict()


def _load_momentum(trained: Trained, tensors: Mapping[str, Tensor]) -> None:
    """Load the state of SGD from a file of an earlier version."""
    for name, weight in trained.model.named_parameters():
        if (momentum := tensors.get(f"momentum/{name}")) is not None:
            trained.optimizer.state[weight]["momentum_buffer"] = torch.empty_like(weight).copy_(momentum)
