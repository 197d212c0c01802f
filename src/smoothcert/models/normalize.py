"""Input normalisation as a layer of the model, so that noise and radii are in [0, 1] space (Cohen et al., 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from smoothcert.types import UsageError, unknown_name

Normalization: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation, one value per channel."""

NormalizeSpec: TypeAlias = str | tuple[Sequence[float], Sequence[float]] | None
"""A (mean, std) pair with one value per channel; a name in ``PRESETS`` or ``FOR_ANY``; ``"none"`` or None; or text
``MEAN/STD``, each with one value for all channels or several as ``a:b:c``.
"""

_CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
_IMAGENET_MEAN = (0.485, 0.456, 0.406)

# The values with which the published models were trained, not the exact statistics of the datasets (the CIFAR-10
# deviations are smaller than the true ones). The "-center" presets only subtract the mean, as some models of
# Salman et al. (2019) do.
PRESETS: dict[str, Normalization] = {
    "cifar10": (_CIFAR10_MEAN, (0.2023, 0.1994, 0.2010)),
    "cifar10-center": (_CIFAR10_MEAN, (1.0, 1.0, 1.0)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "imagenet": (_IMAGENET_MEAN, (0.229, 0.224, 0.225)),
    "imagenet-center": (_IMAGENET_MEAN, (1.0, 1.0, 1.0)),
    "mnist": ((0.1307,), (0.3081,)),
}


FOR_ANY = {"bytes": f"0/{1 / 255!r}", "symmetric": "0.5/0.5"}
"""For any number of channels: networks that take values from 0 to 255, or from -1 to 1."""


def normalization(spec: NormalizeSpec, channels: int | None) -> Normalization | None:
    """Return the mean and standard deviation of a specification, or None for no normalisation.

    Example:
        >>> normalization("mnist", 1)
        ((0.1307,), (0.3081,))
        >>> normalization("0.5/0.25", 2)
        ((0.5, 0.5), (0.25, 0.25))
    """
    if spec is None or spec == "none":
        return None
    if isinstance(spec, str):
        spec = PRESETS[spec] if spec in PRESETS else _parsed(FOR_ANY.get(spec, spec), channels)
    channels = len(spec[0]) if channels is None else channels
    if len(spec) != 2:
        raise UsageError(f"normalize must be a name or a (mean, std) pair, not {len(spec)} values.")
    mean, std = (tuple(float(value) for value in values) for values in spec)
    for name, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise UsageError(f"normalize has {len(values)} values for {name}, but the input has {channels} channel(s).")
        if not all(math.isfinite(value) for value in values):
            raise UsageError(f"normalize has a {name} that is not finite: {values}.")
    if min(std) <= 0:
        raise UsageError(f"normalize has a std that is not positive: {std}.")
    return mean, std


def _parsed(text: str, channels: int | None) -> tuple[Sequence[float], Sequence[float]]:
    """Read ``MEAN/STD``."""
    if "/" not in text:
        raise unknown_name("normalization", text, [*PRESETS, *FOR_ANY, "none"])
    try:
        mean, std = (tuple(float(value) for value in part.split(":")) for part in text.split("/"))
    except ValueError:
        raise UsageError(f"normalize must be a name or MEAN/STD, such as 0.5/0.25, not {text!r}.") from None
    count = channels or max(len(mean), len(std))
    return mean * count if len(mean) == 1 else mean, std * count if len(std) == 1 else std


def without_normalization(model: nn.Module) -> tuple[nn.Module, Normalization | None]:
    """Split a ``Sequential`` of a ``Normalize`` layer and a network into the network and the values of the layer."""
    if isinstance(model, nn.Sequential) and len(model) == 2 and isinstance(model[0], Normalize):
        mean, std = (tuple(values.flatten().tolist()) for values in (model[0].mean, model[0].std))
        return model[1], (mean, std)
    return model, None


class Normalize(nn.Module):
    """Subtract the mean and divide by the standard deviation of each channel; one value is for all channels."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        # without this check, a grey image would be broadcast to three channels
        if self.mean.shape[0] not in (1, x.shape[-3]):
            raise UsageError(f"the model normalises {self.mean.shape[0]} channel(s), but the input has {x.shape[-3]}.")
        return (x - self.mean) / self.std
