"""The probability that all margins are positive: for Gaussian ones by sampling, for any distribution by a bound."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from smoothcert.stats.binomial import FloatArray
from smoothcert.types import UsageError

_LEAST_VARIANCE = 1e-10  # relative to the largest; less is what rounding leaves of margins that do not vary
_LEAST_EIGENVALUE = 1e-12  # relative; below are the directions that a singular covariance lacks, up to rounding
_DIRECTIONS_AT_ONCE = 2_048


def orthant_probability(mean: ArrayLike, covariance: ArrayLike, *, directions: int = 10_000, seed: int = 0) -> float:
    """The probability that all coordinates of a Gaussian vector are positive, by sampling directions (Deák, 1980).

    The vector is its mean plus a random length along a random direction. Along a direction the lengths with all
    coordinates positive are an interval, whose probability is a difference of χ distributions; only the directions
    are sampled, each with its opposite. That is never less exact than counting Gaussian vectors, and far more so in few
    dimensions or near 1; a single coordinate is exact. A singular covariance needs no correction (no jitter): the
    directions it lacks are left out.

    Args:
        mean: The mean, (d,).
        covariance: The covariance, (d, d), possibly singular.
        directions: How many directions are drawn; the standard error is below ½/√directions, mostly far below.
        seed: The seed of the directions: the same arguments give the same answer.

    Returns:
        The probability. A coordinate without variance counts as positive if its mean is.

    Raises:
        UsageError: If shapes do not fit or the covariance is none.

    Example:
        >>> round(orthant_probability([0.0, 0.0], np.eye(2)), 2)  # a quarter of the plane
        0.25
    """
    mean, covariance = np.asarray(mean, dtype=np.float64), np.asarray(covariance, dtype=np.float64)
    if mean.ndim != 1 or not len(mean) or covariance.shape != (len(mean), len(mean)) or directions < 1:
        raise UsageError(f"no orthant of a mean {mean.shape} and covariance {covariance.shape}: give (d,) and (d, d).")
    if not (np.all(np.isfinite(mean)) and np.all(np.isfinite(covariance))):
        raise UsageError("mean and covariance must be finite; leave out logits that are not.")
    variance = np.diag(covariance)
    random = variance > _LEAST_VARIANCE * max(float(variance.max()), 0.0)
    if np.any(mean[~random] <= 0):
        return 0.0
    if not np.any(random):
        return 1.0
    deviation = np.sqrt(variance[random])
    mean = mean[random] / deviation
    values, vectors = np.linalg.eigh(covariance[np.ix_(random, random)] / np.outer(deviation, deviation))
    if values[0] < -1e-4 * values[-1]:
        raise UsageError("the covariance has a negative eigenvalue; give one that was estimated from data.")
    kept = values > _LEAST_EIGENVALUE * values[-1]
    factor = vectors[:, kept] * np.sqrt(values[kept])
    generator, total = np.random.default_rng(seed), 0.0
    for start in range(0, directions, _DIRECTIONS_AT_ONCE):
        count = min(_DIRECTIONS_AT_ONCE, directions - start)
        unit = generator.standard_normal((count, factor.shape[1]))
        slopes = unit / np.linalg.norm(unit, axis=1, keepdims=True) @ factor.T
        total += _radial(mean, slopes, factor.shape[1]) + _radial(mean, -slopes, factor.shape[1])
    return min(max(total / (2 * directions), 0.0), 1.0)


def chebyshev_bound(mean: ArrayLike, variance: ArrayLike) -> float:
    """What P(all margins > 0) is at least, whatever their distribution: 1 − Σ σ_i²/μ_i² (Horváth et al., 2022, Eq. 5).

    Args:
        mean: The mean margins μ_i.
        variance: Their variances σ_i².

    Returns:
        The bound; 0 where it says nothing, as when a mean margin is not positive.

    Raises:
        UsageError: If a variance is negative.

    Example:
        >>> chebyshev_bound([2.0, 4.0], [0.4, 0.8])
        0.85
    """
    mean, variance = np.asarray(mean, dtype=np.float64), np.asarray(variance, dtype=np.float64)
    if np.any(variance < 0):
        raise UsageError("a variance must not be negative.")
    if np.any(mean <= 0):
        return 0.0
    return max(0.0, 1.0 - float(np.sum(variance / mean**2)))


def _radial(mean: FloatArray, slopes: FloatArray, dimension: int) -> float:
    """The sum over directions of P(mean + length · slopes > 0), the length being χ with ``dimension`` degrees."""
    with np.errstate(divide="ignore", invalid="ignore"):
        edges = -mean / slopes
    low = np.max(np.where(slopes > 0, edges, 0.0), axis=1, initial=0.0)
    high = np.maximum(np.min(np.where(slopes < 0, edges, np.inf), axis=1), low)
    shape = dimension / 2
    return float(np.sum(special.gammainc(shape, high**2 / 2) - special.gammainc(shape, low**2 / 2)))
