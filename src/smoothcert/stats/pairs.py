"""The top class by a test that may stop at any time: the leading class against every other one, in pairs.

The first votes of a stage give every class its share of alpha: a class with k of m votes gets (k + 1/C) / (m + 1), so
the shares add up to 1. The votes after them are the evidence. A vote for neither g nor c leaves the pair (g, c)
unchanged; of those for g or c, with a for g and b for c, the evidence that g is the more probable one is

    E(a, b) = mean over i of (2 q_i)^a (2 − 2 q_i)^b,   q_i > ½,

the mean likelihood ratio of :mod:`smoothcert.stats.evalues` at the threshold ½. A class is answered when share · E
reaches 1/alpha against every other class. E falls in b, so only the other class with the most votes needs a look.

A wrong class is answered with probability at most alpha. A class g is wrong if it is not the only most probable one;
then some c ≠ g is at least as probable. Choose one such c for each wrong g. The choice depends on the probabilities and
not on the votes, and g is answered only if its pair with that c has passed. Given the first votes, a vote for g or c is
for g with probability at most ½, so E is a supermartingale, and it ever reaches 1/(alpha · share) with probability at
most alpha · share (Ville, 1939). The shares of all g add up to 1. No union over c is needed, because c is fixed.
The first votes decide the shares, so they must not be evidence too: a class that leads by chance would get both the
large share and the votes that earned it.

A quarter of alpha is reserved for a last look at the budget, fixed in advance, with the test of Hung and Fithian (2019)
on all votes, the first ones included. It is valid although the votes chose the classes, so the union bound adds it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from smoothcert.stats.binomial import FloatArray, IntArray, top_class_p_value
from smoothcert.stats.evalues import log_e
from smoothcert.stats.sequential import check_times

FIRST = 5
"""Votes that share out alpha. With 2 to 10 the mean number of votes is about the same; 20 need a second block."""


LAST_LOOK = 0.25
"""Share of alpha for the last look. Near ties need it, since there all votes are rarely enough before."""


def looks(n: int) -> tuple[int, ...]:
    """Return the numbers of votes at which the test looks, ending with the budget ``n``; the first share out alpha."""
    return (FIRST, *check_times(n).tolist())


def anytime_top_class(
    first: ArrayLike, later: ArrayLike, n_max: int, last: bool = False
) -> tuple[IntArray, FloatArray]:
    """Return the leading class, and the p-value that it is not the only most probable one, valid at all looks together.

    The probability that a class is ever returned wrongly with a p-value of at most alpha is at most alpha, for every
    alpha. See the module for the proof.

    Args:
        first: The first votes per class, (…, classes), as many as fixed in advance.
        later: The votes after them.
        n_max: The budget, fixed in advance.
        last: Whether this look is the one at the budget.

    Example:
        >>> label, p_value = anytime_top_class([5, 0, 0], [[15, 0, 0], [8, 6, 1]], 1_000)
        >>> label.tolist(), (p_value <= 0.001).tolist()
        ([0, 0], [True, False])
    """
    first, later = np.broadcast_arrays(np.asarray(first), np.asarray(later))
    label, most, second = _leaders(later)
    valid, classes = first.sum(axis=-1), first.shape[-1]
    share = (np.take_along_axis(first, label[..., None], axis=-1)[..., 0] + 1 / classes) / (valid + 1)
    evidence = log_e(most, most + second, 0.5, n_max, "up") + np.log(share)
    p_value = np.exp(-evidence) / (1 - LAST_LOOK)
    if last:
        top, most, second = _leaders(first + later)
        fixed = np.asarray(top_class_p_value(most, second)) / LAST_LOOK
        label, p_value = np.where(fixed < p_value, top, label), np.minimum(fixed, p_value)
    return label, np.minimum(p_value * (1 + 1e-12), 1.0)  # rounded outwards


class TopClassTest:
    """The test of one input: its votes are added as they are drawn, from look to look."""

    def __init__(self, classes: int, n_max: int) -> None:
        self._first: IntArray | None = None
        self._n_max = n_max
        self._later = np.zeros(classes, dtype=np.int64)

    def add(self, counts: Sequence[int], last: bool = False) -> tuple[int, float]:
        """Add votes per class, and return :func:`anytime_top_class`; the first votes added share out alpha."""
        if self._first is None:
            self._first = np.array(counts)
            return int(self._first.argmax()), 1.0
        self._later += counts
        label, p_value = anytime_top_class(self._first, self._later, self._n_max, last)
        return int(label), float(p_value)

    @property
    def counts(self) -> tuple[int, ...]:
        """All votes per class."""
        return tuple((self._later if self._first is None else self._first + self._later).tolist())


def _leaders(counts: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the class with the most votes, its votes, and those of the class with the most votes among the others."""
    ranked = np.sort(counts, axis=-1)
    return np.asarray(counts.argmax(axis=-1)), ranked[..., -1], ranked[..., -2]
