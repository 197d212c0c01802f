"""Laplace noise (Teng, Lee and Yuan, 2020)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from smoothcert import Noise, Norm


@dataclass(frozen=True)
class Laplace(Noise):
    """Noise with the density exp(−|z|/λ)/2λ in each coordinate, which certifies the ℓ1 radius −λ log(2(1 − p)).

    Args:
        lam: The scale λ, in the units of the input.
    """

    lam: float

    name: ClassVar[str] = "laplace"
    symbol: ClassVar[str] = "λ"
    norms: ClassVar[tuple[Norm, ...]] = (Norm.L1,)

    @property
    def scale(self):
        return self.lam * 2**0.5

    @property
    def usual_radius(self):
        return self.lam

    def sample(self, x, out, generator=None):  # the difference of two exponential variables
        other = torch.empty_like(out).exponential_(1 / self.lam, generator=generator)
        return out.exponential_(1 / self.lam, generator=generator).sub_(other).add_(x)

    def _radius(self, p, norm, dimension):
        return -self.lam * np.log(np.maximum(2 * (1 - p), 1e-300))

    def _threshold(self, r, norm, dimension):
        return 1 - np.exp(-r / self.lam) / 2
