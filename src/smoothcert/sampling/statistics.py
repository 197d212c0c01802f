"""What is tallied of the logits of noisy copies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Statistic(Protocol):
    """A function of the logits of one noisy copy with finitely many values; the sampler keeps its histogram."""

    def bins(self, num_classes: int) -> int:
        """How many values there are."""
        ...

    def codes(self, logits: Tensor) -> Tensor:
        """The value of each row, an integer in 0 … bins − 1, or −1 for a row that counts for nobody."""
        ...


@dataclass(frozen=True)
class Entropy:
    """The entropy of the softmax to the base of the number of classes, in [0, 1], rounded up to a grid of thresholds.

    A copy counts in bin j if its entropy is at most θ_j = j / steps and above the threshold before: the first j + 1
    bins together are the copies that a selector at θ_j takes for certain (Horváth et al., 2022, ACES, §3). Rows with a
    NaN or infinite logit count for nobody.

    Args:
        steps: How many thresholds above 0.
    """

    steps: int = 100

    def bins(self, num_classes: int) -> int:
        return self.steps + 1

    def codes(self, logits: Tensor) -> Tensor:
        entropy = torch.special.entr(logits.softmax(dim=1)).sum(dim=1) / math.log(logits.shape[1])
        return _on_grid(entropy, logits, self.steps)


@dataclass(frozen=True)
class FirstShare:
    """The softmax probability of the first of two classes, rounded up to a grid of thresholds as :class:`Entropy` is.

    Args:
        steps: How many thresholds above 0.
    """

    steps: int = 100

    def bins(self, num_classes: int) -> int:
        return self.steps + 1

    def codes(self, logits: Tensor) -> Tensor:
        return _on_grid(logits.softmax(dim=1)[:, 0], logits, self.steps)


def _on_grid(score: Tensor, logits: Tensor, steps: int) -> Tensor:
    """The smallest j with score ≤ j / steps; −1 where a logit is invalid."""
    valid = torch.isfinite(logits).all(dim=1) & score.isfinite()
    return torch.where(valid, (score * steps).ceil().clamp(0, steps), -1).long()


@dataclass(frozen=True)
class TopClass:
    """The class with the largest logit; rows with a NaN or infinite logit vote for nobody."""

    def bins(self, num_classes: int) -> int:
        return num_classes

    def codes(self, logits: Tensor) -> Tensor:
        valid = torch.isfinite(logits).all(dim=1)
        return torch.where(valid, logits.argmax(dim=1), -1)
