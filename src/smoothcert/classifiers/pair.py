"""Two classifiers on the same noisy copies."""

from __future__ import annotations

import torch
from torch import Tensor

from smoothcert.classifiers.composite import Composite
from smoothcert.classifiers.copying import Forward, takes
from smoothcert.classifiers.ensemble import all_logits, as_module


class Pair(Composite):
    """The logits of two classifiers with the same classes, side by side: (batch, 2 · classes).

    Args:
        first, second: Classifiers from a batch to logits, on one device.

    Example:
        >>> Pair(torch.nn.Linear(4, 3), torch.nn.Linear(4, 3))(torch.rand(5, 4)).shape
        torch.Size([5, 6])
    """

    def __init__(self, first: Forward, second: Forward) -> None:
        super().__init__()
        # The first weight of a model decides the type of its inputs: a wide one, which no member's inputs exceed.
        self.register_buffer("wide", torch.empty(0, dtype=torch.float64, device=takes(second)[0]))
        self.members = torch.nn.ModuleList(map(_OwnType, (first, second)))

    @property
    def models(self) -> tuple[Forward, Forward]:
        """The two classifiers."""
        first, second = self.parts()
        return first.classifier, second.classifier

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(all_logits(self.members, x), dim=1)

    def parts(self) -> list[_OwnType]:
        return list(self.members)  # type: ignore[arg-type]


class _OwnType(torch.nn.Module):
    """A classifier that converts its inputs to the type of its weights."""

    def __init__(self, classifier: Forward) -> None:
        super().__init__()
        self.classifier, self.dtype = as_module(classifier), takes(classifier)[1]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(x.to(self.dtype))
        return logits
