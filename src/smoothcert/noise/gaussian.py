"""Isotropic Gaussian noise and its certificates in ℓ2 and ℓ∞."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy import special

from smoothcert.noise.grid import GridNoise
from smoothcert.noise.thresholds import gaussian_thresholds
from smoothcert.stats.binomial import FloatArray
from smoothcert.types import Norm

if TYPE_CHECKING:
    from torch import Generator, Tensor


@dataclass(frozen=True, repr=False)
class Gaussian(GridNoise):
    """Noise N(0, σ²I), which certifies the ℓ2 radius σ Φ⁻¹(p) (Cohen, Rosenfeld and Kolter, 2019, Theorem 1).

    With an upper bound q on the probability of every other class, the radius is σ/2 (Φ⁻¹(p) − Φ⁻¹(q)).

    The ℓ∞ ball of radius r lies in the ℓ2 ball of radius r√d, so the ℓ∞ radius is the ℓ2 radius over √d (Salman et al.,
    2019); up to a constant, no other noise does better in ℓ∞ (Yang et al., 2020; Kumar et al., 2020).

    Args:
        sigma: Standard deviation, in the units of the input.
        grid: Steps per unit of the grid that inputs lie on, such as 255 for 8-bit images, to draw noise exactly in
            whole steps (see ``GridNoise``). None for noise in floating point around any input.

    Example:
        >>> float(Gaussian(0.5).radius(0.99)) < 0.5 * 2.3264
        True
        >>> Gaussian(0.5, grid=255)
        Gaussian(sigma=0.5, grid=255)
    """

    sigma: float
    grid: int | None = None

    name: ClassVar[str] = "gaussian"
    symbol: ClassVar[str] = "σ"
    norms: ClassVar[tuple[Norm, ...]] = (Norm.L2, Norm.LINF)
    two_sided: ClassVar[bool] = True
    _thresholds = staticmethod(gaussian_thresholds)

    @property
    def scale(self) -> float:
        return self.sigma

    def _sample(self, x: Tensor, out: Tensor, generator: Generator | None) -> Tensor:
        return out.normal_(0.0, self.sigma, generator=generator).add_(x)

    def _radius(self, p: FloatArray, norm: Norm, dimension: int | None) -> FloatArray:
        return self.sigma * special.ndtri(p) / self._stretch(norm, dimension)  # type: ignore[no-any-return]

    def _radius_between(self, p: FloatArray, q: FloatArray, norm: Norm, dimension: int | None) -> FloatArray:
        first, second = special.ndtri(p), special.ndtri(np.maximum(q, 1e-300))
        error = 1e-14 * (abs(first) + abs(second))  # of both, which is large relative to a small difference
        return self.sigma * (first - second - error) / (2.0 * self._stretch(norm, dimension))  # type: ignore[no-any-return]

    def _threshold(self, r: FloatArray, norm: Norm, dimension: int | None) -> FloatArray:
        return special.ndtr(r * self._stretch(norm, dimension) / self.sigma)  # type: ignore[no-any-return]

    def _stretch(self, norm: Norm, dimension: int | None) -> float:
        """Return the largest ratio of the ℓ2 length of a vector to its length in this norm."""
        return math.sqrt(self.require_dimension(norm, dimension)) if norm is Norm.LINF else 1.0
