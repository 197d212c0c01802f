"""Counting values of a statistic over the noisy copies of one request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smoothcert.types import Votes


class Tally:
    """A histogram that remembers itself at every power of ten.

    Args:
        bins: The number of values.
    """

    def __init__(self, bins: int) -> None:
        self._counts = np.zeros(bins + 1, dtype=np.int64)  # bin 0: copies that count for nobody
        self._n = 0
        self._next = 10
        self._checkpoints: dict[int, tuple[int, ...]] = {}

    def add(self, codes: NDArray[np.int64]) -> None:
        """Count copies, in the order of their numbers.

        Args:
            codes: The value of each copy, −1 for one that counts for nobody.
        """
        while self._n + len(codes) > self._next:
            here = self._next - self._n
            self._count(codes[:here])
            self._checkpoints[self._next] = tuple(self._counts[1:].tolist())
            self._next *= 10
            codes = codes[here:]
        self._count(codes)

    def votes(self) -> Votes:
        """The counts so far."""
        return Votes(n=self._n, counts=tuple(self._counts[1:].tolist()), checkpoints=self._checkpoints)

    def _count(self, codes: NDArray[np.int64]) -> None:
        self._counts += np.bincount(codes + 1, minlength=len(self._counts))
        self._n += len(codes)
