"""E-values of votes against a threshold: mixtures of likelihood ratios.

After n votes, k of them for a class, the evidence that its probability p exceeds the threshold t is

    E_up(n, k) = mean over i of exp(d_i k) / (1 − t + t exp(d_i))^n,   d_i > 0,

the mean likelihood ratio of probabilities above t whose log-odds are d_i larger. It is a supermartingale under every
p ≤ t, so P(E_up ever ≥ 1/alpha) ≤ alpha (Ville, 1939). E_down has −d_i in place of d_i and tests p ≥ t. Such mixtures
are due to Robbins (1970); Howard et al. (2021) survey them. An allowance for rounding is subtracted, so that a computed
e-value never exceeds the exact one.

If the d_i do not depend on t, then E_up falls and E_down grows with t, for every count: each denominator does the
opposite. A threshold is then rejected together with all smaller (up) or larger (down) ones.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from smoothcert.stats.binomial import FloatArray, require, whole_numbers

MAX_VOTES = 10**7
"""The largest number of votes for which the error allowance of the e-values was verified."""

FARTHEST, ALTERNATIVES = 4.0, 16
"""The largest shift of the log-odds, and the number of shifts."""

Side = Literal["up", "down"]


def log_e(
    k: ArrayLike, n: ArrayLike, threshold: ArrayLike, n_max: int, side: Side, *, tuned_to: float | None = None
) -> FloatArray:
    """Return the logarithm of the evidence that p is above (up) or below (down) a threshold, never above the exact one.

    The shifts d_i are evenly spaced on a logarithmic scale, from one that a test at alpha = 0.001 detects within about
    n_max/2 votes up to 4, so the test needs nearly the same multiple of Wald's bound for all p. Shifts up to 3 or 6
    instead of 4, from n_max or n_max/4 votes, 10 or 24 of them, or unequal weights change the mean samples over the
    grid of ``benchmarks/samples.py`` by less than 2 % of Wald's bound. With the Beta(½, ½) prior of Robbins it is 20 %
    more, and informing a prior by selection votes costs these votes. Weights learned from the logits of inputs without
    noise (four classes of inputs by their margin, three LeNets on MNIST) change the mean by less than 4 % and save
    nothing at the median input for radii up to σ, 10 % at 2σ, for a boundary per class of inputs: not worth it.

    Args:
        k: Votes for the class, 0 ≤ k ≤ n.
        n: All votes, at most 10⁷.
        threshold: The threshold, strictly between 0 and 1.
        n_max: The last look of the test, which sets the smallest shift.
        side: ``"up"`` for E_up, ``"down"`` for E_down.
        tuned_to: The threshold for which the shifts are chosen; by default each threshold has its own.

    Example:
        >>> round(float(log_e(95, 100, 0.8, 1_000, "up")), 2)
        8.23
    """
    k, n, t = whole_numbers(k, "k"), whole_numbers(n, "n"), np.asarray(threshold, dtype=np.float64)
    require((k >= 0) & (k <= n), k, "votes must satisfy 0 ≤ k ≤ n")
    require(n <= MAX_VOTES, n, f"n must be at most {MAX_VOTES:,}")
    require((t > 0.0) & (t < 1.0), t, "threshold must lie strictly between 0 and 1")
    center = t if tuned_to is None else np.asarray(tuned_to)
    least = np.minimum(5.0 / np.sqrt(n_max * center * (1.0 - center)), FARTHEST)
    shifts = least[..., None] * (FARTHEST / least[..., None]) ** np.linspace(0.0, 1.0, ALTERNATIVES)
    shifts = shifts if side == "up" else -shifts
    ratios = k[..., None] * shifts - n[..., None] * np.log1p(t[..., None] * np.expm1(shifts))
    allowance = 1e-9 + 1e-14 * n  # several times the error of the functions above, see the tests
    return np.asarray(special.logsumexp(ratios, axis=-1) - np.log(ALTERNATIVES) - allowance, dtype=np.float64)
