"""Training with noise augmentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.noise import Noise
from smoothcert.training.methods.base import Method, State, run


@dataclass(frozen=True)
class NoiseAugmentation(Method):
    """Cross-entropy on noisy copies of each input (Cohen, Rosenfeld and Kolter, 2019, §3.3).

    Args:
        m: Noisy copies of each input.

    Example:
        >>> import torch
        >>> from smoothcert import Gaussian
        >>> model, x, y = torch.nn.Linear(4, 3), torch.rand(8, 4), torch.arange(8) % 3
        >>> loss = NoiseAugmentation()(model, x, y, Gaussian(0.5), State(generator=torch.Generator().manual_seed(0)))
        >>> loss.backward()
    """

    m: int = 1

    name: ClassVar[str] = "gaussian"

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        logits = run(model, state.noisy(noise, x, self.m))
        return F.cross_entropy(logits.flatten(0, 1), y.repeat(self.m))
