"""Spot checks while votes are counted: is the classifier that runs still the one that was sealed?"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from smoothcert.classifiers.agreement import compare
from smoothcert.classifiers.sealed import Sealed
from smoothcert.sampling.copies import Copies
from smoothcert.types import SmoothcertError

EVERY = 5_000
"""Noisy copies between two spot checks."""

ROWS = 20
"""Noisy copies that a spot check classifies again."""

FIRST_ROWS = 3
"""Noisy copies that are classified again at the start of each stage of an input."""

_TIES, _TIES_SHARE = 3, 0.001  # rows that may differ by chance, where a model decides something by a tie


class Audit:
    """Classifies a few copies of a batch again, alone and in plain PyTorch, and compares.

    A faster runtime, other rows in the batch, threads, or a model that changes: whatever makes logits differ from those
    of the sealed classifier shows here, on the inputs and the noise that votes are counted for.

    Args:
        sealed: The classifier.
        times: How many times the rounding of plain PyTorch its runtime may differ from it.
    """

    def __init__(self, sealed: Sealed, times: float) -> None:
        self._sealed, self._times = sealed, times
        self._lock = threading.Lock()
        self._passed = self._rows = self._wrong = 0

    def rows(self, parts: Sequence[Copies]) -> list[int]:
        """The rows of a batch to check: the first copies of each input, and now and then some of all of them.

        Args:
            parts: What is in the batch.
        """
        size = sum(part.n for part in parts)
        with self._lock:
            self._passed += size
            due = self._passed >= EVERY
            self._passed = 0 if due else self._passed
        found, low = set(range(0, size, max(size // ROWS, 1)) if due else ()), 0
        for part in parts:
            found.update(range(low, low + min(part.n, FIRST_ROWS) if part.start == 0 else low))
            low += part.n
        return sorted(found)

    def check(self, copies: Tensor, logits: Tensor) -> None:
        """Compare logits with those that the sealed classifier gives for the same copies.

        Raises:
            SmoothcertError: If too many differ.
        """
        if not len(copies):
            return
        with torch.inference_mode():
            expected = self._sealed(copies)
        found = compare(logits, expected, self._times * self._sealed.tolerance(expected))
        with self._lock:
            self._rows += found.of
            self._wrong += found.rows
            wrong, rows = self._wrong, self._rows
        if wrong > _TIES + _TIES_SHARE * rows:
            raise SmoothcertError(
                f"the model gave other logits for {wrong} of {rows} noisy copies when it was asked again, so no "
                "certificate is issued; use a model that is a fixed function of each row, or runtime='eager'."
            )
