"""Isotropic Gaussian noise and its ℓ2 certificate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from scipy import special
from torch import Generator, Tensor

from smoothcert.noise.base import FloatArray, Noise
from smoothcert.types import Norm, UsageError


@dataclass(frozen=True)
class Gaussian(Noise):
    """Noise N(0, σ²I), which certifies the ℓ2 radius σ Φ⁻¹(p) (Cohen, Rosenfeld and Kolter, 2019, Theorem 1).

    Args:
        sigma: Standard deviation, in the units of the input.

    Raises:
        UsageError: If sigma is not a positive number.

    Example:
        >>> float(Gaussian(0.5).radius(0.99)) < 0.5 * 2.3264
        True
    """

    sigma: float

    name: ClassVar[str] = "gaussian"
    norms: ClassVar[tuple[Norm, ...]] = (Norm.L2,)

    def __post_init__(self) -> None:
        if not (isinstance(self.sigma, (int, float)) and math.isfinite(self.sigma) and self.sigma > 0):
            raise UsageError(f"sigma must be a positive number, got {self.sigma!r}.")
        object.__setattr__(self, "sigma", float(self.sigma))

    @property
    def scale(self) -> float:
        return self.sigma

    def sample(self, x: Tensor, out: Tensor, generator: Generator | None = None) -> Tensor:
        return out.normal_(0.0, self.sigma, generator=generator).add_(x)

    def _radius(self, p: FloatArray, norm: Norm, dimension: int | None) -> FloatArray:
        return self.sigma * special.ndtri(p)  # type: ignore[no-any-return]

    def _threshold(self, r: FloatArray, norm: Norm, dimension: int | None) -> FloatArray:
        return special.ndtr(r / self.sigma)  # type: ignore[no-any-return]
