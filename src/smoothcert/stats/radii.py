"""The distribution of the radii that certification with a fixed number of samples will report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from smoothcert.stats.binomial import MAX_SAMPLES, FloatArray, lower_bound, require
from smoothcert.types import UsageError

_TAIL = 1e-15  # counts of votes in the tails beyond this are left out


@dataclass(frozen=True, eq=False)
class RadiusDistribution:
    """The radii that CERTIFY will report, and their probabilities."""

    radii: FloatArray  # above 0, increasing
    probabilities: FloatArray
    abstain: float  # the probability of no radius, including the counts of votes that are left out

    @property
    def expected(self) -> float:
        """The mean radius; abstaining counts as 0."""
        return float(self.radii @ self.probabilities)


def radius_distribution(
    p: float, n: int, alpha: float, radius: Callable[[FloatArray], FloatArray]
) -> RadiusDistribution:
    """Return the distribution of CERTIFY's radii for a success probability (Horváth et al., 2022, Eq. 6).

    As in the paper, the guessed class is assumed to be right. Counts of votes in the outermost 10⁻¹⁵ of either tail
    count as abstaining, so no radius is overstated.

    Args:
        p: The true success probability.
        n: The number of estimation samples.
        alpha: The probability of a false certificate.
        radius: Maps lower bounds to radii, such as ``Gaussian(0.25).radius``.

    Example:
        >>> from scipy.special import ndtri
        >>> round(radius_distribution(1.0, 1_000, 0.001, ndtri).expected, 3)  # all agree: Φ⁻¹(0.001^(1/1000))
        2.463
    """
    require(0.0 <= p <= 1.0, p, "p must lie between 0 and 1")
    require(1 <= n <= MAX_SAMPLES, n, f"n must be between 1 and {MAX_SAMPLES:,}")
    counts = np.arange(scipy.stats.binom.ppf(_TAIL, n, p), scipy.stats.binom.isf(_TAIL, n, p) + 1).astype(np.int64)
    counts = counts[(counts >= 0) & (2 * counts > n)]  # no bound exceeds ½ on fewer votes
    bounds = lower_bound(counts, n, alpha)
    counts, bounds = counts[bounds > 0.5], bounds[bounds > 0.5]
    radii = np.asarray(radius(bounds), dtype=np.float64)
    if radii.shape != bounds.shape or not np.all(np.isfinite(radii) & (radii >= 0)):
        raise UsageError("radius must return a finite radius ≥ 0 for each probability below 1; pass a noise's radius.")
    probabilities = scipy.stats.binom.pmf(counts, n, p)
    radii, probabilities = radii[radii > 0], probabilities[radii > 0]
    return RadiusDistribution(radii, probabilities, max(0.0, 1.0 - float(probabilities.sum())))


def expected_radius(p: ArrayLike, n: ArrayLike, alpha: float, radius: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Return the mean radius that CERTIFY reports for each (p, n) after broadcasting; abstaining counts as 0 (Fig. 3).

    Args: As :func:`radius_distribution`.
    """
    p, n = np.broadcast_arrays(np.asarray(p, dtype=np.float64), np.asarray(n))
    means = [radius_distribution(q, m, alpha, radius).expected for q, m in zip(p.flat, n.flat, strict=True)]
    return np.array(means).reshape(p.shape)
