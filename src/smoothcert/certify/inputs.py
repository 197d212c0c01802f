"""Inputs as users give them, made tensors to sample around."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smoothcert.types import UsageError


def as_tensor(x: Any) -> Tensor:
    """An input as a tensor; an array may have any byte order and run backwards.

    Raises:
        UsageError: If it is neither a tensor nor an array.
    """
    if isinstance(x, np.ndarray):
        x = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
    try:
        return torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"an input is a {type(x).__name__}, not a tensor or an array; convert it, for an image with "
            "torchvision.transforms.ToTensor()."
        ) from error


def checked_input(x: Any, input_range: tuple[float, float] | None, device: torch.device) -> Tensor:
    """A copy of an input that nobody else can change, in at least single precision.

    Args:
        x: One input.
        input_range: The values it may have, if they are limited.
        device: Where it is needed.

    Raises:
        UsageError: If it has the wrong dtype, is empty or not finite, or lies outside the range.
    """
    tensor = as_tensor(x).detach()
    if not tensor.is_floating_point():
        raise UsageError(
            f"the input has dtype {str(tensor.dtype).removeprefix('torch.')}; convert it to floating point "
            "in the model's range (for 8-bit images: x.float() / 255)."
        )
    if tensor.numel() == 0:
        raise UsageError("the input is empty.")
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
