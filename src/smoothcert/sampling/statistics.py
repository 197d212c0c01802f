"""What is tallied of the logits of noisy copies."""

from __future__ import annotations

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
class TopClass:
    """The class with the largest logit; rows with a NaN or infinite logit vote for nobody."""

    def bins(self, num_classes: int) -> int:
        return num_classes

    def codes(self, logits: Tensor) -> Tensor:
        valid = torch.isfinite(logits).all(dim=1)
        return torch.where(valid, logits.argmax(dim=1), -1)
