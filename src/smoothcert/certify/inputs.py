"""Check the inputs that users give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from smoothcert.classifiers.sealed import Sealed
from smoothcert.tensors import as_tensor
from smoothcert.types import UsageError


@dataclass(frozen=True, eq=False)
class CheckedInput:
    """An input that ``Smoothed.check`` returned; the same sealed classifier does not check it again."""

    tensor: Tensor
    sealed: Sealed


def checked_input(x: Any, input_range: tuple[float, float] | None, device: torch.device) -> Tensor:
    """Return a private copy of an input in at least single precision.

    Raises:
        UsageError: If its dtype is not floating-point, it is empty or not finite, or lies outside the range.
    """
    tensor = as_tensor(x).detach()
    if not tensor.is_floating_point():
        raise UsageError(
            f"the input has dtype {str(tensor.dtype).removeprefix('torch.')}; convert it to floating point "
            "in the model's range (for 8-bit images: x.float() / 255)."
        )
    if tensor.numel() == 0:
        raise UsageError("the input is empty; give one with at least one value.")
    low, high = float(tensor.min()), float(tensor.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise UsageError("the input contains NaN or infinite values.")
    if input_range is not None and (low < input_range[0] - 1e-6 or high > input_range[1] + 1e-6):
        raise UsageError(
            f"the input spans [{low:.6g}, {high:.6g}], outside the declared range {list(input_range)}; "
            "rescale it, or declare another input_range."
        )
    # Noise is added in at least the input's precision; rounding to the model's comes after, as part of the model.
    wide = torch.promote_types(tensor.dtype, torch.float32)
    with torch.inference_mode(False):
        return tensor.to(device=device, dtype=wide, copy=True).contiguous()
