"""Sequential tests of a vote share against a threshold, and a confidence bound that holds at any time.

The test stops when the evidence of :mod:`smoothcert.stats.evalues` reaches 1/alpha that p exceeds the threshold, or
1/beta that it does not; by Ville's (1939) inequality both errors hold over all looks together. No test with error alpha
needs fewer than about log(1/alpha) / KL(p‖threshold) votes on average (Wald, 1945).

A quarter of alpha is reserved for a last look: at n_max, fixed in advance, the Clopper–Pearson bound at alpha/4 may
reject too; by the union bound the e-process at 3/4 alpha and the last look together stay within alpha. This makes the
test at n_max as strong as the last of four stages of :mod:`smoothcert.stats.staged`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special

from smoothcert.stats.binomial import FloatArray, IntArray, lower_bound, require, require_levels, upper_bound
from smoothcert.stats.evalues import JEFFREYS, MAX_VOTES, Prior, Side, log_e
from smoothcert.types import UsageError

BLOCK = 20
"""Noisy copies are drawn in blocks of this size; the test looks after whole blocks."""

GROWTH = 0.02
"""Relative distance of two looks. 5 % costs 0.03 × Wald's bound more votes on average, 1 % saves another 0.01."""

LAST_LOOK = 0.25
"""Share of alpha, and of beta, reserved for the look at n_max."""

GRID = np.asarray(special.ndtr(np.arange(1201) * 0.005))
"""Thresholds of the anytime bound: radii 0, 0.005, …, 6 in units of sigma for Gaussian noise."""

_CHUNK = 64  # thresholds computed together: the bound is usually among the first few hundred


@dataclass(frozen=True, eq=False)
class Boundary:
    """The counts at which the sequential test stops."""

    threshold: float
    alpha: float  # probability to certify although p ≤ threshold
    beta: float | None  # probability to refute although p ≥ threshold; None when the test never refutes
    n: IntArray  # the numbers of votes at which the test looks
    certify: IntArray  # the smallest count that certifies at each look, n + 1 where none does
    refute: IntArray  # the largest count that refutes at each look, −1 where none does


class Characteristics(NamedTuple):
    """The probabilities of the three outcomes of the sequential test, and the mean number of votes."""

    certify: float
    refute: float
    undecided: float
    expected_n: float


@lru_cache(maxsize=64)
def check_times(n_max: int) -> IntArray:
    """Return the numbers of votes at which the test looks: blocks 2 % apart, powers of ten from 100 on, ``n_max``."""
    require(BLOCK <= n_max <= MAX_VOTES, n_max, f"n_max must be between {BLOCK} and {MAX_VOTES:,}")
    times = {n_max, *(10**e for e in range(2, 8) if 10**e < n_max)}
    n = BLOCK
    while n < n_max:
        times.add(n)
        n = max(n + BLOCK, round(n * (1.0 + GROWTH) / BLOCK) * BLOCK)
    looks = np.array(sorted(times), dtype=np.int64)
    looks.flags.writeable = False
    return looks


@lru_cache(maxsize=4096)
def boundary(threshold: float, alpha: float, beta: float | None, n_max: int, prior: Prior = JEFFREYS) -> Boundary:
    """Return the stopping boundary of the test at the looks of :func:`check_times`; cached, so that inputs share it.

    Args:
        threshold: The threshold, in [½, 1).
        alpha: Probability to certify although p ≤ threshold, over all looks together.
        beta: Probability to refute although p ≥ threshold, likewise; None to never refute.
        n_max: The last look, between 20 and 10⁷.
        prior: The prior on p.
    """
    require_levels(alpha=alpha, beta=beta)
    n = check_times(n_max)
    certify = _smallest(n, threshold, alpha, prior, "up")
    refute = np.full_like(n, -1) if beta is None else n - _smallest(n, threshold, beta, prior, "down")
    for array in (certify, refute):
        array.flags.writeable = False
    return Boundary(threshold, alpha, beta, n, certify, refute)


@lru_cache(maxsize=4096)
def nested_boundaries(
    thresholds: tuple[float, ...], alpha: float, beta: float | None, n_max: int, prior: Prior = JEFFREYS
) -> tuple[Boundary, ...]:
    """Return one boundary for each threshold on one stream of votes; all decisions together hold at alpha and beta.

    A threshold is certified only where all smaller ones are, and refuted only where all larger ones are. If any
    certificate is false, the smallest threshold ≥ p was certified with it. That threshold does not depend on the votes,
    so this happens with probability at most alpha, and alpha need not be split. The same argument holds for refutation,
    with the largest threshold ≤ p.

    Args:
        thresholds: Strictly increasing thresholds in [½, 1), fixed before the votes.
        alpha: Probability that any certificate is false.
        beta: Probability that any refutation is false; None to never refute.
        n_max, prior: As :func:`boundary`.
    """
    if not thresholds or any(s >= t for s, t in pairwise(thresholds)):
        raise UsageError(f"thresholds must be strictly increasing, got {list(thresholds)}.")
    alone = [boundary(t, alpha, beta, n_max, prior) for t in thresholds]
    certify = np.maximum.accumulate([b.certify for b in alone])
    refute = np.minimum.accumulate([b.refute for b in alone[::-1]])[::-1]
    return tuple(
        Boundary(b.threshold, alpha, beta, b.n, up, down) for b, up, down in zip(alone, certify, refute, strict=True)
    )


@lru_cache(maxsize=65_536)
def anytime_lower_bound(
    k: int, n: int, alpha: float, prior: Prior = JEFFREYS, *, extra: tuple[float, ...] = (), last: bool = False
) -> float:
    """Return a lower confidence bound on p that holds at all n simultaneously, and so at any stopping time.

    The bound is the largest grid threshold that is rejected together with all smaller ones. If it is ever ≥ p, the
    smallest grid threshold ≥ p was rejected, which happens with probability at most alpha (the argument of
    :func:`nested_boundaries`). The same alpha covers a target threshold in ``extra`` that is certified when the bound
    reaches it.

    Args:
        k: Votes for the guessed class.
        n: All votes.
        alpha: Probability that the bound is ever ≥ p.
        prior: The prior on p.
        extra: Thresholds to add to the grid, fixed before the votes.
        last: Whether n is the n_max fixed in advance, at which the last look is spent.

    Returns:
        The bound, p > bound; 0 when not even ½ is rejected.
    """
    require_levels(alpha=alpha)
    grid = _grid(extra)
    clear = lower_bound(k, n, LAST_LOOK * alpha) if last else 0.0
    nested = 0
    while nested < len(grid) and grid[nested] * n < k:  # a threshold ≥ k/n is never rejected
        part = grid[nested : nested + _CHUNK]
        rejected = (log_e(k, n, part, prior, "up") >= _bar(alpha)) | (part < clear)
        nested += int(np.argmin([*rejected, False]))
        if not rejected.all():
            break
    return float(grid[nested - 1]) if nested else 0.0


@lru_cache(maxsize=256)
def _grid(extra: tuple[float, ...]) -> FloatArray:
    return np.unique([*GRID, *extra])


def _bar(level: float) -> float:
    """Return the logarithm of the evidence that rejects at the level without the last look."""
    return -float(np.log(level * (1.0 - LAST_LOOK)))


def wald_bound(p: float, threshold: float, alpha: float, beta: float | None = None) -> float:
    """Return about the mean votes that any sequential test needs: log(1/alpha) / KL(p‖threshold) (Wald, 1945).

    For p ≤ threshold, beta replaces alpha if it is given. The bound is infinite at p = threshold.
    """
    require_levels(alpha=alpha, beta=beta)
    divergence = float(special.rel_entr(p, threshold) + special.rel_entr(1.0 - p, 1.0 - threshold))
    level = alpha if p > threshold or beta is None else beta
    return float(-np.log(level) / divergence) if divergence > 0 else float("inf")


def operating_characteristics(boundary: Boundary, p: float) -> Characteristics:
    """Return the probabilities of the outcomes when the true probability is ``p``, exact up to rounding (about 10⁻¹²).

    The distribution of the count is propagated from look to look over the counts that neither certify nor refute.
    """
    require(0.0 <= p <= 1.0, p, "p must lie between 0 and 1")
    certify = refute = expected = 0.0
    first, before, mass = 0, 0, np.ones(1)  # mass[i] is the probability of first + i votes after `before`
    for n, up, down in zip(boundary.n.tolist(), boundary.certify.tolist(), boundary.refute.tolist(), strict=True):
        expected += (n - before) * float(mass.sum())
        step, pmf = _binomial(n - before, p)
        first, before, mass = first + step, n, np.maximum(scipy.signal.convolve(mass, pmf), 0.0)
        low, high = (min(max(cut - first, 0), len(mass)) for cut in (down + 1, up))
        refute += float(mass[:low].sum())
        certify += float(mass[high:].sum())
        kept = low + np.flatnonzero(mass[low:high] > 1e-25)
        if len(kept) == 0:
            return Characteristics(certify, refute, 0.0, expected)
        first, mass = first + int(kept[0]), mass[kept[0] : kept[-1] + 1]
    return Characteristics(certify, refute, float(mass.sum()), expected)


@lru_cache(maxsize=1024)
def _binomial(n: int, p: float) -> tuple[int, FloatArray]:
    """Return the first count and the probabilities of Binomial(n, p) without tails below 10⁻²⁰ (Bernstein)."""
    spread = 10.0 * np.sqrt(n * p * (1.0 - p)) + 50.0
    k = np.arange(max(0, int(n * p - spread)), min(n, int(n * p + spread)) + 1)
    return int(k[0]), np.asarray(scipy.stats.binom.pmf(k, n, p))


def _smallest(n: IntArray, threshold: float, level: float, prior: Prior, side: Side) -> IntArray:
    """Return the smallest count of the guessed class (up) or of the others (down) that decides at each n, or n + 1."""

    def evidence(m: IntArray, n: IntArray) -> NDArray[np.bool_]:
        return log_e(m if side == "up" else n - m, n, threshold, prior, side) >= _bar(level)

    def bound(m: IntArray, n: IntArray) -> NDArray[np.bool_]:
        if side == "up":
            return lower_bound(m, n, LAST_LOOK * level) > threshold
        return upper_bound(n - m, n, LAST_LOOK * level) < threshold

    count = first_count(n, evidence)
    count[-1:] = np.minimum(count[-1:], first_count(n[-1:], bound))
    return count


def first_count(n: IntArray, holds: Callable[[IntArray, IntArray], NDArray[np.bool_]]) -> IntArray:
    """Return the smallest count in 0..n from which a condition on (count, n) holds, for each n; n + 1 if none."""
    low, high = np.full_like(n, -1), n + 1
    while np.any(between := high - low > 1):
        middle = np.where(between, (low + high) // 2, np.clip(low, 0, n))
        true = holds(middle, n)
        low, high = np.where(between & ~true, middle, low), np.where(between & true, middle, high)
    return high
