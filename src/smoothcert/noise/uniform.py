"""Uniform noise on a cube and its certificates in ℓ1 and ℓ∞."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smoothcert.noise.grid import GridNoise
from smoothcert.noise.thresholds import uniform_thresholds
from smoothcert.stats.binomial import FloatArray
from smoothcert.types import Norm

if TYPE_CHECKING:
    from torch import Generator, Tensor


@dataclass(frozen=True, repr=False)
class Uniform(GridNoise):
    """Noise uniform on [−λ, λ]^d, which certifies the ℓ1 radius 2λ(p − ½) (Lee et al., 2019; Yang et al., 2020).

    Two cubes shifted by δ share Π(1 − |δ_i|/2λ) of their volume, and a class can lose only the rest. At least
    1 − ‖δ‖₁/2λ is shared, and at least (1 − ‖δ‖∞/2λ)^d, which proves the ℓ∞ radius 2λ(1 − (3/2 − p)^{1/d}) of Yang et
    al. (2020). Both are tight: a class that contains all of the lost volume attains them.

    The certificate is about real-valued noise. Without a grid, noise lies on a lattice: in single precision PyTorch
    draws one of 2²⁴ values in [−λ, λ), so that a coordinate is within λ·2⁻²³ of an ideal draw, before its sum with the
    input is rounded. A classifier that reads the last bits of its inputs can get a false certificate; with a grid it
    cannot.

    Args:
        lam: Half the width λ of the cube, in the units of the input.
        grid: As for ``Gaussian``.

    Example:
        >>> f"{float(Uniform(0.5).radius(0.9)):.6f}"
        '0.400000'
        >>> f"{float(Uniform(0.5).radius(0.9, 'linf', dimension=784)):.6f}"
        '0.000651'
    """

    lam: float
    grid: int | None = None

    name: ClassVar[str] = "uniform"
    symbol: ClassVar[str] = "λ"
    norms: ClassVar[tuple[Norm, ...]] = (Norm.L1, Norm.LINF)
    _thresholds = staticmethod(uniform_thresholds)

    @property
    def scale(self) -> float:
        return self.lam / math.sqrt(3)

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
            with np.errstate(divide="ignore"):  # disjoint cubes: log 0
                lost = -np.expm1(self.require_dimension(norm, dimension) * np.log1p(-lost))
        return 0.5 + lost
