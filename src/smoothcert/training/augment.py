"""Data augmentation as tensor operations on a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SHIFT = 4


def flip_and_shift(x: Tensor, draws: Tensor) -> Tensor:
    """Flip and shift images at random by up to four pixels with zero padding, as usual for CIFAR.

    Args:
        x: Images (batch, channels, height, width).
        draws: Uniform numbers in [0, 1), of shape (3, batch).
    """
    count, channels, height, width = x.shape
    flip = draws[0] < 0.5
    down, right = (draws[1:] * (2 * SHIFT + 1)).long().clamp(max=2 * SHIFT)
    rows = torch.arange(height, device=x.device) + down[:, None]
    columns = torch.arange(width, device=x.device).expand(count, width)
    columns = torch.where(flip[:, None], width - 1 - columns, columns) + right[:, None]
    padded = F.pad(x, [SHIFT] * 4)
    images = torch.arange(count, device=x.device)[:, None, None, None]
    planes = torch.arange(channels, device=x.device)[None, :, None, None]
    return padded[images, planes, rows[:, None, :, None], columns[:, None, None, :]]
