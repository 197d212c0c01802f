"""Noise augmentation that also asks for the right answer without noise."""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

from smoothcert.training import Method, Passes
from smoothcert.training.methods.base import run


@dataclass(frozen=True, kw_only=True)
class Anchored(Method):
    """Cross-entropy on noisy copies, and on the input itself.

    Args:
        lam: Weight λ of the input itself.
        m: Noisy copies of each input.
    """

    lam: float = 0.5
    m: int = 2

    name: ClassVar[str] = "anchored"

    def loss(self, model, x, y, noise, state):
        logits = run(model, state.noisy(noise, x, self.m))
        return F.cross_entropy(logits.flatten(0, 1), y.repeat(self.m)) + self.lam * F.cross_entropy(model(x), y)

    @property
    def copies(self):
        return self.m

    @property
    def passes(self):
        return Passes(train=self.m + 1)
