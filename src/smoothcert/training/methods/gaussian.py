"""Training with noise augmentation."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Generator, Tensor, nn

from smoothcert.noise import Noise


def gaussian(model: nn.Module, x: Tensor, y: Tensor, noise: Noise, generator: Generator) -> Tensor:
    """Cross-entropy on one noisy copy of each input (Cohen, Rosenfeld and Kolter, 2019, §3.3).

    Args:
        model: The classifier, in training mode.
        x: A batch of inputs.
        y: Their labels.
        noise: The noise to be certified with later.
        generator: The source of randomness.

    Returns:
        The mean loss.
    """
    noisy = noise.sample(x, x.new_empty(x.shape), generator)
    return F.cross_entropy(model(noisy), y)
