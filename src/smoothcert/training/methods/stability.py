"""Stability training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.noise import Noise
from smoothcert.training.methods.base import Method, Passes, State


@dataclass(frozen=True)
class Stability(Method):
    """Cross-entropy on the clean input, and from its prediction to that of a noisy copy (Li et al., 2019, §4).

    Args:
        lam: Weight λ of the second term.
    """

    lam: float = 2.0

    name: ClassVar[str] = "stability"

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        clean = model(x)
        noisy = model(state.noisy(noise, x)[0])
        return F.cross_entropy(clean, y) + self.lam * F.cross_entropy(noisy, clean.softmax(dim=1))

    @property
    def passes(self) -> Passes:
        return Passes(train=2)
