"""The radii that certification with a fixed number of samples will report, before it is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from smoothcert.stats.binomial import MAX_SAMPLES, FloatArray, lower_bound
from smoothcert.types import UsageError

_TAIL = 1e-15  # votes so unlikely are left out of a distribution of radii


@dataclass(frozen=True, eq=False)
class RadiusDistribution:
    """The radii that CERTIFY will report, and how often.

    Attributes:
        radii: The radii above 0, increasing.
        probabilities: The probability of each.
        abstain: The probability of no radius; the mass of votes too unlikely to be listed is counted here.
    """

    radii: FloatArray
    probabilities: FloatArray
    abstain: float

    @property
    def expected(self) -> float:
        """The mean radius; abstaining counts as 0."""
        return float(self.radii @ self.probabilities)

    def at_least(self, radius: float) -> float:
        """The probability to certify a radius > 0 or more."""
        return float(self.probabilities[self.radii >= radius].sum())


def radius_distribution(
    p: float, n: int, alpha: float, radius: Callable[[FloatArray], FloatArray]
) -> RadiusDistribution:
    """The distribution of the radii that CERTIFY reports for a success probability (Horváth et al., 2022, Eq. 6).

    As in the paper, up to guessing a wrong class from the selection samples.

    Args:
        p: The true success probability.
        n: The number of estimation samples.
        alpha: The probability of a wrong certificate.
        radius: The radius that a lower bound proves, as ``Gaussian(0.25).radius``.

    Returns:
        The distribution; its mass beyond 10⁻¹⁵ on either side counts as abstaining, so no radius is overstated.

    Raises:
        UsageError: If an argument is out of range.

    Example:
        >>> from scipy.special import ndtri
        >>> round(radius_distribution(1.0, 1_000, 0.001, ndtri).expected, 3)  # all agree: Φ⁻¹(0.001^(1/1000))
        2.463
    """
    if not 0.0 <= p <= 1.0:
        raise UsageError(f"p must lie between 0 and 1, got {p}.")
    if not 1 <= n <= MAX_SAMPLES:
        raise UsageError(f"n must be between 1 and {MAX_SAMPLES:,}, got {n}.")
    counts = np.arange(scipy.stats.binom.ppf(_TAIL, n, p), scipy.stats.binom.isf(_TAIL, n, p) + 1).astype(np.int64)
    counts = counts[(counts >= 0) & (2 * counts > n)]  # no bound exceeds ½ on fewer votes
    bounds = lower_bound(counts, n, alpha)
    counts, bounds = counts[bounds > 0.5], bounds[bounds > 0.5]
    radii = np.asarray(radius(bounds), dtype=np.float64)
    if radii.shape != bounds.shape or not np.all(np.isfinite(radii) & (radii >= 0)):
        raise UsageError("radius must give a finite radius ≥ 0 for each probability below 1; pass a noise's radius.")
    probabilities = scipy.stats.binom.pmf(counts, n, p)
    radii, probabilities = radii[radii > 0], probabilities[radii > 0]
    return RadiusDistribution(radii, probabilities, max(0.0, 1.0 - float(probabilities.sum())))


def expected_radius(p: ArrayLike, n: ArrayLike, alpha: float, radius: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """The mean radius that CERTIFY reports, over success probabilities and numbers of samples (Fig. 3).

    Args:
        p: Success probabilities, for instance of growing ensembles.
        n: Numbers of samples; broadcast against p.
        alpha, radius: As :func:`radius_distribution`.

    Returns:
        The mean radius for each (p, n); abstaining counts as 0.

    Raises:
        UsageError: If an argument is out of range.
    """
    p, n = np.broadcast_arrays(np.asarray(p, dtype=np.float64), np.asarray(n))
    means = [radius_distribution(q, m, alpha, radius).expected for q, m in zip(p.flat, n.flat, strict=True)]
    return np.array(means).reshape(p.shape)
