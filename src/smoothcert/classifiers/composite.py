"""The base class of classifiers that combine others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import nn

from smoothcert.classifiers.copying import Forward


class Composite(nn.Module):
    """A classifier made of others. Each part is checked too, since a vote could hide its faults."""

    @abstractmethod
    def parts(self) -> Sequence[Forward]:
        """Return the parts as functions of a batch; each must be a fixed function of one row."""
