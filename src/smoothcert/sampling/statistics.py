"""Statistics of logits: the values that are counted over noisy copies."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Statistic(Protocol):
    """A function of the logits of one noisy copy with finitely many values, whose histogram is counted."""

    def bins(self, num_classes: int) -> int:
        """Return the number of values."""
        ...

    def codes(self, logits: Tensor) -> Tensor:
        """Return the value of each row: an integer from 0 to bins − 1, or −1 for an invalid row, which is in no bin."""
        ...


@dataclass(frozen=True)
class TopClass:
    """The class with the largest logit; rows with a NaN or infinite logit vote for no class."""

    def bins(self, num_classes: int) -> int:
        return num_classes

    def codes(self, logits: Tensor) -> Tensor:
        valid = torch.isfinite(logits).all(dim=1)
        return torch.where(valid, logits.argmax(dim=1), -1)


@dataclass(frozen=True)
class SecondTopClass:
    """The vote of the second classifier of a :class:`~smoothcert.classifiers.Pair`."""

    def bins(self, num_classes: int) -> int:
        return num_classes // 2

    def codes(self, logits: Tensor) -> Tensor:
        return TopClass().codes(logits.chunk(2, dim=1)[1])


@dataclass(frozen=True)
class Changed:
    """The vote of the first classifier of a pair where the second does not vote for the same class.

    Bin c counts the copies on which the first votes for c and the second does not, be it for another class or for none;
    the last bin counts those on which both vote for the same class. Copies without a vote of the first are in no bin.
    """

    def bins(self, num_classes: int) -> int:
        return num_classes // 2 + 1

    def codes(self, logits: Tensor) -> Tensor:
        first, second = (TopClass().codes(part) for part in logits.chunk(2, dim=1))
        return torch.where((first == second) & (first >= 0), logits.shape[1] // 2, first)


@dataclass(frozen=True)
class Score(ABC):
    """A score in [0, 1], rounded up to a grid of thresholds θ_j = j / steps.

    A copy is in bin j if its score is at most θ_j and above the threshold before: the first j + 1 bins together hold
    the copies that a selector at θ_j accepts. Rows with a NaN or infinite logit are in no bin.

    Args:
        steps: The number of thresholds above 0.
    """

    steps: int = 100

    @abstractmethod
    def score(self, logits: Tensor) -> Tensor:
        """Return the score of each row."""

    def bins(self, num_classes: int) -> int:
        return self.steps + 1

    def codes(self, logits: Tensor) -> Tensor:
        score = self.score(logits)
        valid = torch.isfinite(logits).all(dim=1) & score.isfinite()
        return torch.where(valid, (score * self.steps).ceil().clamp(0, self.steps), -1).long()


class Entropy(Score):
    """The entropy of the softmax, to the base of the number of classes (Horváth et al., 2022, ACES, §3)."""

    def score(self, logits: Tensor) -> Tensor:
        entropy: Tensor = torch.special.entr(logits.softmax(dim=1)).sum(dim=1)
        return entropy / math.log(logits.shape[1])


class FirstShare(Score):
    """The softmax probability of the first class, such as "core" of a selection network."""

    def score(self, logits: Tensor) -> Tensor:
        return logits.softmax(dim=1)[:, 0]
