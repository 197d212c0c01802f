"""E-values of votes against a threshold: mixtures of likelihood ratios over a Beta prior.

After n votes, k of them for the guessed class, the evidence that its probability p exceeds the threshold t is

    E_up(n, k) = ∫ q^k (1 − q)^(n − k) dπ(q | q > t) / (t^k (1 − t)^(n − k)).

It is a supermartingale under every p ≤ t, so P(E_up ever ≥ 1/alpha) ≤ alpha (Ville, 1939). E_down is the same integral
over q < t and tests p ≥ t. Mixtures over a prior π are due to Robbins (1970); Howard et al. (2021) survey them. An
allowance for rounding is subtracted, so that a computed e-value never exceeds the exact one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from smoothcert.stats.binomial import FloatArray, require, whole_numbers
from smoothcert.types import UsageError

MAX_VOTES = 10**7
"""The largest number of votes for which the error allowance of the e-values was verified."""

Side = Literal["up", "down"]


@dataclass(frozen=True)
class Prior:
    """A Beta(a, b) distribution over the probability of the guessed class, fixed before the votes that it tests."""

    a: float
    b: float

    @classmethod
    def informed(cls, k0: int, n0: int) -> Prior:
        """Return the prior after ``k0`` of ``n0`` selection votes for the guessed class: Beta(n0 − d + ½, d + ½).

        Here d is the number of other votes n0 − k0, rounded to the nearest of 0, 1, 2, 3, 4, 6, 9, …, so that inputs
        share the tables of their tests. The selection votes are independent of the votes tested, so given them the
        guarantee holds as for any fixed prior; a misleading selection costs votes, never validity.

        Over the grid of ``benchmarks/samples.py`` (n0 = 100) the test needs 1.30 × Wald's bound on average with this
        prior and 1.53 × with Jeffreys'. Tempering the votes (by ½: +0.02, by ¼: +0.04) or mixing with Jeffreys' prior
        (at 10 %: +0.01, at 50 %: +0.07), conditioned jointly or one by one, was worse on average.
        """
        if not 0 <= k0 <= n0:
            raise UsageError(f"selection votes must satisfy 0 ≤ k0 ≤ n0, got {k0} of {n0}.")
        values = [0]
        while values[-1] < n0:
            values.append(max(values[-1] + 1, round(1.5 * values[-1])))
        others = min(min(values, key=lambda value: abs(value - (n0 - k0))), n0)
        return cls(n0 - others + 0.5, others + 0.5)


JEFFREYS = Prior(0.5, 0.5)
"""Jeffreys' prior, for votes without a selection."""


def log_e(k: ArrayLike, n: ArrayLike, threshold: ArrayLike, prior: Prior, side: Side) -> FloatArray:
    """Return the logarithm of the evidence that p is above (up) or below (down) a threshold, never above the exact one.

    Args:
        k: Votes for the guessed class, 0 ≤ k ≤ n.
        n: All votes, at most 10⁷.
        threshold: The threshold, in [½, 1).
        prior: The prior on p, conditioned on the side of the threshold.
        side: ``"up"`` for E_up, ``"down"`` for E_down.

    Example:
        >>> round(float(log_e(95, 100, 0.8, JEFFREYS, "up")), 2)
        8.08
    """
    k, n, t = whole_numbers(k, "k"), whole_numbers(n, "n"), np.asarray(threshold, dtype=np.float64)
    require((k >= 0) & (k <= n), k, "votes must satisfy 0 ≤ k ≤ n")
    require(n <= MAX_VOTES, n, f"n must be at most {MAX_VOTES:,}")
    require((t >= 0.5) & (t < 1.0), t, "threshold must lie in [½, 1)")
    a, b = np.asarray(prior.a, dtype=np.float64), np.asarray(prior.b, dtype=np.float64)
    after = special.betaln(a + k, b + n - k) + _log_mass(a + k, b + n - k, t, side)
    before = special.betaln(a, b) + _log_mass(a, b, t, side)
    allowance = 1e-9 + 1e-13 * (n + a + b)  # several times the error of the special functions, see the tests
    return np.asarray(after - before - k * np.log(t) - (n - k) * np.log1p(-t) - allowance, dtype=np.float64)


def _log_mass(a: FloatArray, b: FloatArray, t: FloatArray, side: Side) -> FloatArray:
    """Return the log of the mass of Beta(a, b) above (up) or below (down) t, by a continued fraction if it is tiny."""
    a, b, t = np.broadcast_arrays(a, b, t)
    if side == "up":
        mass, a, b, x = special.betaincc(a, b, t), b, a, 1.0 - t
    else:
        mass, x = special.betainc(a, b, t), t
    tiny = mass < 1e-290
    log_mass = np.asarray(np.log(np.where(tiny, 1.0, mass)))
    if np.any(tiny):
        log_mass[tiny] = _log_tail(a[tiny], b[tiny], x[tiny])
    return log_mass


def _log_tail(a: FloatArray, b: FloatArray, x: FloatArray) -> FloatArray:
    """Return the log of the regularised incomplete beta function for x far below the mean (DLMF 8.17.22)."""
    rest = np.zeros_like(x)
    for m in range(60, 0, -1):
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)) / (1.0 + rest)
        rest = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) / (1.0 + odd)
    rest = -(a + b) * x / (a + 1) / (1.0 + rest)
    return np.asarray(a * np.log(x) + b * np.log1p(-x) - np.log(a) - special.betaln(a, b) - np.log1p(rest))
