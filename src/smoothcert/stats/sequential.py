"""Sequential tests of the votes for all classes against a threshold, and a confidence bound that holds at any time.

The test certifies a class once the evidence of :mod:`smoothcert.stats.evalues` that its probability exceeds the
threshold is large enough, and refutes the threshold once the evidence that it does not is, for the class with the most
votes and so for every class. Both errors hold over all looks together. No test with error alpha needs fewer than about
log(1/alpha) / KL(p‖threshold) votes on average (Wald, 1945).

**All classes from one stream.** No class is guessed: each is tested with every vote. Let R be the pairs (n, k) at which
the test certifies at the threshold t, with k − m ≥ t (n − m) for m = ``AGREEING``. A path of n votes, k of them for a
class of probability p, has probability p^k (1 − p)^(n − k). Where p ≤ t, this is at most (p/t)^m times its value at
p = t, because p^(k − m) (1 − p)^(n − k) grows up to p = (k − m)/(n − m) ≥ t. Summed over the paths into R,

    P_p(R is ever reached) ≤ (p/t)^m P_t(R is ever reached).

Let each threshold t have P_t(R is ever reached) ≤ L(t) = alpha (1 − ½ (2 − 2t)^m), see :func:`level_for`. L(t)/t^m
falls with t, so a class of probability p reaches R of a given threshold t ≥ max(p, ½) with probability at most
g(p) alpha, where g(p) = ½ (2p)^m for p ≤ ½ and 1 − ½ (2 − 2p)^m for p > ½. Over all classes the g(p_c) add up to at
most 1: if p_1 > ½, those of the others add up to at most ½ (2 − 2 p_1)^m = 1 − g(p_1), and otherwise g(p) ≤ p. So any
false certificate, for any class, has probability at most alpha, whatever the number of classes. L is alpha/2 at t = ½,
where two equal classes can both be certified, and more than 0.99 alpha from t = 0.7 on. Refutations need no such
factor: if the threshold is refuted for every class, it is for the most probable one, a fixed class.

**The level.** A look at n_max, fixed in advance, may decide by the Clopper–Pearson bound at a twentieth of the level,
and the evidence is compared with the rest (``LAST_LOOK``). By Ville's inequality and the union bound, a class of
probability t then reaches R with at most the level. The exact probability, which :func:`operating_characteristics`
computes, is 0.5 to 0.8 of it, because evidence jumps across its bar, and some only after n_max. :func:`boundary` raises
the nominal level until the exact probability is just below the level, which saves 0.08 × Wald's bound on average.
Smaller p are covered by the inequality above; for refutations and p > t, more votes reach a low count less often.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from smoothcert.stats.binomial import FloatArray, IntArray, lower_bound, require, require_levels, upper_bound
from smoothcert.stats.evalues import MAX_VOTES, Side, log_e
from smoothcert.types import UsageError

EARLY, BLOCK = 10, 20
"""The test looks after every 10 votes up to 100, then after whole blocks of noise."""

GROWTH = 0.02
"""Relative distance of two later looks. 4 % costs 0.01 × Wald's bound more votes on average, 1 % saves less."""

LAST_LOOK = 0.05
"""Share of alpha, and of beta, reserved for the look at n_max.

A tenth costs 0.01 and a quarter 0.06 × Wald's bound more votes on average. Where Wald's bound is n_max/2, the test
decides 92 %, 95 % and 96 % of the inputs with a twentieth, a tenth and a quarter."""

AGREEING = 8
"""The m of the proof above. With m = 1 and L = alpha t, the test needs 5 % more votes at radii up to σ/2."""

NEAR = 0.9
"""Grid radii between this share of a target radius and the target are left out, so as not to delay its decision."""

GRID = np.asarray(special.ndtr(np.arange(1201) * 0.005))
"""Thresholds of the anytime bound: radii 0, 0.005, …, 6 in units of sigma for Gaussian noise."""

_CHUNK = 64  # thresholds computed together: the bound is usually among the first few hundred


@dataclass(frozen=True, eq=False)
class Boundary:
    """The counts at which the sequential test stops."""

    threshold: float
    alpha: float  # probability to certify any class of probability p ≤ threshold
    beta: float | None  # probability to refute although p ≥ threshold for a class; None when the test never refutes
    n: IntArray  # the numbers of votes at which the test looks
    certify: IntArray  # the smallest count of a class that certifies it at each look, n + 1 where none does
    refute: IntArray  # the largest count of the class with the most votes that refutes, −1 where none does


class Characteristics(NamedTuple):
    """The probabilities of the three outcomes of the sequential test, and the mean number of votes."""

    certify: float
    refute: float
    undecided: float
    expected_n: float


def level_for(threshold: ArrayLike, alpha: float) -> FloatArray:
    """Return the level L at which one class may be tested, so that all classes together are at alpha."""
    return np.asarray(alpha * (1.0 - 0.5 * (2.0 - 2.0 * np.asarray(threshold)) ** AGREEING) * (1.0 - 1e-12))


@lru_cache(maxsize=64)
def check_times(n_max: int) -> IntArray:
    """Return the numbers of votes at which the test looks: early ones, 2 % apart, powers of ten, and ``n_max``."""
    require(BLOCK <= n_max <= MAX_VOTES, n_max, f"n_max must be between {BLOCK} and {MAX_VOTES:,}")
    times = {n_max, *(10**e for e in range(2, 8) if 10**e < n_max)}
    n = EARLY
    while n < n_max:
        times.add(n)
        n = n + EARLY if n < 100 else max(n + BLOCK, round(n * (1.0 + GROWTH) / BLOCK) * BLOCK)
    looks = np.array(sorted(times), dtype=np.int64)
    looks.flags.writeable = False
    return looks


@lru_cache(maxsize=4096)
def boundary(threshold: float, alpha: float, beta: float | None, n_max: int) -> Boundary:
    """Return the stopping boundary of the test at the looks of :func:`check_times`; cached, so that inputs share it.

    Args:
        threshold: The threshold, in [½, 1).
        alpha: Probability to certify any class of probability p ≤ threshold, over all looks and classes together.
        beta: Probability to refute although p ≥ threshold for some class, likewise; None to never refute.
        n_max: The last look, between 20 and 10⁷.
    """
    require(0.5 <= threshold < 1.0, threshold, "threshold must lie in [½, 1)")
    require_levels(alpha=alpha, beta=beta)
    n = check_times(n_max)
    certify = _calibrated(n, threshold, float(level_for(threshold, alpha)), "up")
    refute = np.full_like(n, -1) if beta is None else n - _calibrated(n, threshold, beta, "down")
    for array in (certify, refute):
        array.flags.writeable = False
    return Boundary(threshold, alpha, beta, n, certify, refute)


@lru_cache(maxsize=4096)
def nested_boundaries(
    thresholds: tuple[float, ...], alpha: float, beta: float | None, n_max: int
) -> tuple[Boundary, ...]:
    """Return one boundary for each threshold on one stream of votes; all decisions together hold at alpha and beta.

    A threshold is certified only where all smaller ones are, and refuted only where all larger ones are. If a
    certificate of a class with probability p is false, the smallest threshold ≥ p was certified with it. That threshold
    does not depend on the votes, so alpha need not be split: the proof above counts one threshold for each class. The
    same argument holds for refutation, with the largest threshold ≤ p of the most probable class.

    Args:
        thresholds: Strictly increasing thresholds in [½, 1), fixed before the votes.
        alpha: Probability that any certificate is false.
        beta: Probability that any refutation is false; None to never refute.
        n_max: As :func:`boundary`.
    """
    if not thresholds or any(s >= t for s, t in pairwise(thresholds)):
        raise UsageError(f"thresholds must be strictly increasing, got {list(thresholds)}.")
    alone = [boundary(t, alpha, beta, n_max) for t in thresholds]
    certify = np.maximum.accumulate([b.certify for b in alone])
    refute = np.minimum.accumulate([b.refute for b in alone[::-1]])[::-1]
    return tuple(
        Boundary(b.threshold, alpha, beta, b.n, up, down) for b, up, down in zip(alone, certify, refute, strict=True)
    )


@lru_cache(maxsize=4096)
def anytime_lower_bound(
    k: int, n: int, alpha: float, n_max: int, tests: tuple[Boundary, ...] = (), *, last_look: float = LAST_LOOK
) -> float:
    """Return a lower confidence bound on p that holds for all classes at all n simultaneously, and so at any stop.

    The bound is the largest threshold that is rejected together with all smaller ones: radii on a grid, and the
    targets. If it is ever ≥ p, the smallest threshold ≥ p was rejected; the proof above covers this for all classes.

    Args:
        k: Votes for a class.
        n: All votes.
        alpha: Probability that the bound of any class is ever ≥ its p.
        n_max: The last look, fixed before the votes.
        tests: The boundaries of the targets, which reject where they certify; fixed before the votes.
        last_look: The share of alpha for the look at n_max; 1 if there is no other look.

    Returns:
        The bound, p > bound; 0 when not even ½ is rejected.
    """
    require_levels(alpha=alpha)
    grid = _grid(tuple(test.threshold for test in tests))
    targets = {test.threshold: k >= int(test.certify[np.searchsorted(test.n, n)]) for test in tests}
    nested = 0
    while nested < len(grid) and grid[nested] * n < k:  # a threshold ≥ k/n is never rejected
        part = grid[nested : nested + _CHUNK]
        rejected = _rejected(k, n, part, level_for(part, alpha), n_max, "up", last_look)
        rejected = np.array([targets.get(t, r) for t, r in zip(part.tolist(), rejected.tolist(), strict=True)])
        nested += int(np.argmin([*rejected, False]))
        if not rejected.all():
            break
    return float(grid[nested - 1]) if nested else 0.0


@lru_cache(maxsize=256)
def _grid(targets: tuple[float, ...]) -> FloatArray:
    grid = GRID
    for target in targets:
        grid = grid[(grid <= special.ndtr(NEAR * special.ndtri(target))) | (grid > target)]
    return np.unique([*grid, *targets])


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


def _calibrated(n: IntArray, threshold: float, level: float, side: Side) -> IntArray:
    """Return the counts that decide at each n, for about the largest nominal level whose exact level is the given one.

    The computed level may be 10⁻¹⁰ too small. Where that is not negligible, the nominal level is the given one.
    """
    none = np.full_like(n, -1)
    found = counts = _smallest(n, threshold, level, side)
    nominal, largest, low, high = level, 0.0, level, 0.9
    for _ in range(4 if level > 1e-8 else 0):
        test = Boundary(threshold, level, None, n, *((counts, none) if side == "up" else (n + 1, n - counts)))
        exact = sum(operating_characteristics(test, threshold)[:2]) + 1e-10
        low, high = (nominal, high) if exact <= level else (low, nominal)
        if largest < exact <= level:
            found, largest = counts, exact
        if largest > 0.95 * level:
            break
        nominal *= 0.99 * level / exact
        nominal = nominal if low < nominal < high else math.sqrt(low * high)
        counts = _smallest(n, threshold, nominal, side)
    return found


def _smallest(n: IntArray, threshold: float, level: float, side: Side) -> IntArray:
    """Return the smallest count of a class (up) or of the others (down) that decides at each n, or n + 1."""
    n_max = int(n[-1])
    return first_count(n, lambda m, at: _rejected(m, at, threshold, level, n_max, side, LAST_LOOK))


def _rejected(
    m: ArrayLike, n: ArrayLike, threshold: ArrayLike, level: ArrayLike, n_max: int, side: Side, last_look: float
) -> NDArray[np.bool_]:
    """Return where m of n votes, for a class (up) or for the others (down), reject p ≤ or p ≥ the threshold."""
    m, n, threshold, level = np.broadcast_arrays(m, n, threshold, level)
    rejected = np.zeros(m.shape, dtype=bool)
    if last_look < 1:
        evidence = log_e(m if side == "up" else n - m, n, threshold, n_max, side)
        rejected = evidence >= -np.log(level * (1.0 - last_look))
    last = n == n_max
    if np.any(last):
        k, of, bar, share = m[last], n[last], threshold[last], last_look * level[last]
        up = side == "up"
        rejected[last] |= lower_bound(k, of, share) > bar if up else upper_bound(of - k, of, share) < bar
    return rejected if side == "down" else rejected & (m - AGREEING > threshold * (n - AGREEING) + 1e-6)


def first_count(n: IntArray, holds: Callable[[IntArray, IntArray], NDArray[np.bool_]]) -> IntArray:
    """Return the smallest count in 0..n from which a condition on (count, n) holds, for each n; n + 1 if none."""
    low, high = np.full_like(n, -1), n + 1
    while np.any(between := high - low > 1):
        middle = np.where(between, (low + high) // 2, np.clip(low, 0, n))
        true = holds(middle, n)
        low, high = np.where(between & ~true, middle, low), np.where(between & true, middle, high)
    return high
