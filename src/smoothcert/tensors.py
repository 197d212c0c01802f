"""Make tensors of arrays and images; PyTorch is imported for the first one, so datasets can be listed without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from smoothcert.types import UsageError

if TYPE_CHECKING:
    from torch import Tensor

GREY = ("1", "L", "LA", "La")
"""Modes of Pillow without colours."""


def array_tensor(array: NDArray[Any]) -> Tensor:
    """Return the tensor that shares the memory of an array."""
    import torch

    return torch.from_numpy(array)


def image_tensor(image: Image.Image) -> Tensor:
    """Return an 8-bit image as float32 (channels, height, width) in [0, 1]: one channel if it is grey, or else RGB.

    Raises:
        UsageError: Its values have more than 8 bits.
    """
    if is_deep(image):
        raise UsageError(f"an image has values of more than 8 bits (mode {image.mode}); convert it to a tensor.")
    pixels = np.array(image.convert("L" if image.mode in GREY else "RGB"))
    return array_tensor(np.atleast_3d(pixels)).permute(2, 0, 1).float().div_(255).contiguous()


def is_deep(image: Image.Image) -> bool:
    """Return whether Pillow would cut values off when it converts the image to 8 bits."""
    return image.mode[0] in "IF"


def as_tensor(x: Any) -> Tensor:
    """Convert an input to a tensor: an array of any byte order and strides, or an image of Pillow, scaled to [0, 1]."""
    import torch

    if isinstance(x, Image.Image):
        return image_tensor(x)
    if isinstance(x, np.ndarray):
        x = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
    try:
        return torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"an input is a {type(x).__name__}, not a tensor or an array; convert it to one.") from error
