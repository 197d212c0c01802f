"""Margins of an ensemble under noise, and the probability that all of them are positive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from smoothcert.stats.binomial import FloatArray
from smoothcert.types import UsageError

_LEAST_VARIANCE = 1e-10  # relative to the largest; less is what rounding leaves of margins that do not vary
_LEAST_EIGENVALUE = 1e-12  # relative; less is what rounding leaves of directions without variance
_CHUNK = 2_048  # directions computed together


@dataclass(frozen=True, eq=False)
class Margins:
    """Mean and covariance of the margins z_i = y_label − y_i, for all classes but the label, in order.

    Example:
        >>> margins = Margins(np.array([2.0, 4.0]), np.diag([0.4, 0.8]))
        >>> round(margins.success_probability(), 3), margins.chebyshev_bound()
        (0.999, 0.85)
    """

    mean: FloatArray
    covariance: FloatArray

    def success_probability(self, *, directions: int = 10_000, seed: int = 0) -> float:
        """Estimate P(all margins > 0) for Gaussian margins (Horváth et al., 2022, Eq. 4), by Deák's (1980) method.

        The vector of margins is its mean plus a random length along a random direction. Along a direction, the lengths
        with all margins positive form an interval, whose probability is a difference of χ distributions. Only the
        directions are sampled, each with its opposite: this is never less accurate than counting Gaussian vectors, much
        more accurate in few dimensions or near 1, and exact for one margin. A singular covariance needs no jitter:
        directions without variance are left out. A margin without variance counts as positive if its mean is.

        Args:
            directions: The number of directions; the standard error is below ½/√directions, usually far below.
            seed: The seed of the directions.
        """
        if not (np.all(np.isfinite(self.mean)) and np.all(np.isfinite(self.covariance))):
            raise UsageError("mean and covariance must be finite; leave out logits that are not.")
        variance = np.diag(self.covariance)
        random = variance > _LEAST_VARIANCE * max(float(variance.max()), 0.0)
        if np.any(self.mean[~random] <= 0):
            return 0.0
        if not np.any(random):
            return 1.0
        deviation = np.sqrt(variance[random])
        mean = self.mean[random] / deviation
        values, vectors = np.linalg.eigh(self.covariance[np.ix_(random, random)] / np.outer(deviation, deviation))
        if values[0] < -1e-4 * values[-1]:
            raise UsageError("the covariance has a negative eigenvalue; pass one that was estimated from data.")
        kept = values > _LEAST_EIGENVALUE * values[-1]
        factor = vectors[:, kept] * np.sqrt(values[kept])
        generator, total = np.random.default_rng(seed), 0.0
        for start in range(0, directions, _CHUNK):
            unit = generator.standard_normal((min(_CHUNK, directions - start), factor.shape[1]))
            slopes = unit / np.linalg.norm(unit, axis=1, keepdims=True) @ factor.T
            total += _radial(mean, slopes, factor.shape[1]) + _radial(mean, -slopes, factor.shape[1])
        return min(max(total / (2 * directions), 0.0), 1.0)

    def chebyshev_bound(self) -> float:
        """Return a lower bound on P(all margins > 0) for any distribution with these moments (Eq. 5): 1 − Σ σ_i²/μ_i².

        The bound is 0 unless all mean margins are positive.
        """
        if np.any(self.mean <= 0):
            return 0.0
        variance = np.maximum(np.diag(self.covariance), 0.0)  # rounding may leave −10⁻¹⁷
        return max(0.0, 1.0 - float(np.sum(variance / self.mean**2)))


def _radial(mean: FloatArray, slopes: FloatArray, dimension: int) -> float:
    """Sum P(mean + length · slopes > 0) over directions, for a length that is χ with ``dimension`` degrees."""
    with np.errstate(divide="ignore", invalid="ignore"):
        edges = -mean / slopes
    low = np.max(np.where(slopes > 0, edges, 0.0), axis=1, initial=0.0)
    high = np.maximum(np.min(np.where(slopes < 0, edges, np.inf), axis=1), low)
    shape = dimension / 2
    return float(np.sum(special.gammainc(shape, high**2 / 2) - special.gammainc(shape, low**2 / 2)))
