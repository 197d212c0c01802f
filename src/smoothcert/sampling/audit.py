"""Spot checks during sampling: are the logits that are counted still those of the sealed classifier?"""

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

_TIES, _TIES_SHARE = 3, 0.001  # rows that may differ because a model decides something by a tie


class Audit:
    """Classifies some rows of a batch again with the sealed classifier, in plain PyTorch, and compares the logits.

    This detects any cause of other logits on the inputs and noise that are counted: a faster runtime, other rows in
    the batch, threads, or a model that changes.

    Args:
        sealed: The sealed classifier.
        times: How many times the rounding of plain PyTorch its runtime may differ from it.
    """

    def __init__(self, sealed: Sealed, times: float) -> None:
        self._sealed, self._times = sealed, times
        self._lock = threading.Lock()
        self._passed = self._rows = self._wrong = 0

    def rows(self, parts: Sequence[Copies]) -> list[int]:
        """Choose rows of a batch to check: the first copies of each input, and from time to time some of all rows."""
        size = sum(part.n for part in parts)
        with self._lock:
            self._passed += size
            due = self._passed >= EVERY
            self._passed = 0 if due else self._passed
        found, low = set(range(0, size, max(size // ROWS, 1)) if due else ()), 0
        for part in parts:
            if part.start == 0:
                found.update(range(low, low + min(part.n, FIRST_ROWS)))
            low += part.n
        return sorted(found)

    def check(self, copies: Tensor, logits: Tensor) -> None:
        """Compare logits with those of the sealed classifier for the same copies.

        Raises:
            SmoothcertError: If too many rows differ, over all calls.
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
                f"the model returned other logits for {wrong} of {rows} noisy copies when it was run again, so no "
                "certificate is issued; use a model that is a fixed function of each row, or runtime='eager'."
            )
