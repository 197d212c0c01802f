"""Uniform noise on a cube and its certificates in ℓ1 and ℓ∞."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Generator, Tensor

from smoothcert.noise.base import FloatArray
from smoothcert.noise.grid import GridNoise
from smoothcert.noise.thresholds import Thresholds, uniform_thresholds
from smoothcert.types import Norm, UsageError


@dataclass(frozen=True, repr=False)
class Uniform(GridNoise):
    """Noise uniform on [−λ, λ]^d, which certifies the ℓ1 radius 2λ(p − ½) (Lee et al., 2019; Yang et al., 2020).

    Two cubes shifted by δ share Π(1 − |δ_i|/2λ) of their volume, and what they do not share is all that a class can
    lose. At least 1 − ‖δ‖₁/2λ is shared, and at least (1 − ‖δ‖∞/2λ)^d, from which the ℓ∞ radius 2λ(1 − (3/2 − p)^{1/d})
    follows (Yang et al., 2020). Both are tight: a class that fills all that is lost, and more, attains them.

    The certificate is about real-valued noise. Without a grid, what is drawn lies on a lattice: in single precision
    PyTorch draws one of 2²⁴ values in [−λ, λ), so that a coordinate is within λ·2⁻²³ of where an ideal draw would put
    it, before its sum with the input is rounded. A classifier that reads the last bits of its inputs can be certified
    wrongly; with a grid it cannot.

    Args:
        lam: Half the width λ of the cube, in the units of the input.
        grid: Steps per unit of the grid that inputs lie on, such as 255 for 8-bit images: copies are then drawn
            exactly, in whole steps (see ``GridNoise``). None for noise in floating point around any input.

    Raises:
        UsageError: If lam is not a positive number, or the grid not a whole number from 1 to 65 535.

    Example:
        >>> f"{float(Uniform(0.5).radius(0.9)):.6f}"
        '0.400000'
        >>> f"{float(Uniform(0.5).radius(0.9, 'linf', dimension=784)):.6f}"
        '0.000651'
    """

    lam: float
    grid: int | None = None

    name: ClassVar[str] = "uniform"
    norms: ClassVar[tuple[Norm, ...]] = (Norm.L1, Norm.LINF)

    def __post_init__(self) -> None:
        if not (isinstance(self.lam, (int, float)) and math.isfinite(self.lam) and self.lam > 0):
            raise UsageError(f"lam must be a positive number, got {self.lam!r}.")
        object.__setattr__(self, "lam", float(self.lam))
        self._check_grid()

    @property
    def scale(self) -> float:
        return self.lam / math.sqrt(3)

    @property
    def _thresholds(self) -> tuple[Callable[[float, int], Thresholds], float]:
        return uniform_thresholds, self.lam

    def _sample(self, x: Tensor, out: Tensor, generator: Generator | None) -> Tensor:
        return out.uniform_(-self.lam, self.lam, generator=generator).add_(x)

    def _radius(self, p: FloatArray, norm: Norm, dimension: int | None) -> FloatArray:
        lost = p - 0.5  # exact, as p ≥ ½: the share of the volume that may be lost
        if norm is Norm.LINF:
            # (1 − lost)^{1/d} is so close to 1 that plain subtraction would leave few digits.
            lost = -np.expm1(np.log1p(-lost) / self.require_dimension(norm, dimension))
        return 2.0 * self.lam * lost

    def _threshold(self, r: FloatArray, norm: Norm, dimension: int | None) -> FloatArray:
        lost = np.minimum(r / (2.0 * self.lam), 1.0)
        if norm is Norm.LINF:
            with np.errstate(divide="ignore"):  # cubes that do not meet: log 0
                lost = -np.expm1(self.require_dimension(norm, dimension) * np.log1p(-lost))
        return 0.5 + lost
