"""Noise that replaces values by others of their grid, and its certificate for the number of changed values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from smoothcert.noise.base import Noise, is_whole, off_grid
from smoothcert.stats.binomial import FloatArray
from smoothcert.types import Norm, UsageError

if TYPE_CHECKING:
    from torch import Generator, Tensor

MOST_LEVELS = 65_535
"""The finest grid whose values are well separated in single precision."""

MOST_CHANGES = 1_000
"""The largest radius that is computed; larger ones are cut to it."""

_TOLERANCE = 2.0**-21  # k/K in single precision is off by 2⁻²⁵ at most, but some programs round twice


@dataclass(frozen=True)
class Discrete(Noise):
    """Noise on the grid 0, 1/K, …, 1 that certifies an ℓ0 radius, a number of changed coordinates (Lee et al., 2019).

    Each coordinate keeps its value with probability a, and changes to each of the K others with probability
    b = (1 − a)/K. For two inputs that differ in r coordinates, only these matter: where u of them have the value of the
    first input and v that of the second, the likelihood ratio is (a/b)^{u−v}. Of all sets with probability p under the
    first input, the one with the largest ratios has the least probability ρ_r(p) under the second (Neyman and Pearson,
    1933); the radius is the largest r with ρ_r(p) > ½. It is computed in whole numbers, without rounding.

    Noisy copies are made from 62-bit integers, so the probability of each value of a coordinate is exact within 2⁻⁶¹. A
    coordinate is one pixel of one channel: to change one point of a colour image changes three coordinates.

    Args:
        keep: The probability a, between 1/(K + 1) and 1; a float means the decimal number it prints as, 0.2 for 1/5.
        levels: The number K of steps of the grid, from 1 to 65 535: 1 for binary images, 255 for 8-bit ones.

    Example:
        >>> binary = Discrete(keep=0.8, levels=1)
        >>> [str(binary.exact_threshold(r)) for r in (1, 2, 3)]
        ['7/8', '31/32', '127/128']
        >>> binary.radius([0.6, 0.9, 0.99]).tolist()
        [0.0, 1.0, 2.0]
    """

    keep: float
    levels: int

    name: ClassVar[str] = "discrete"
    norms: ClassVar[tuple[Norm, ...]] = (Norm.L0,)
    additive: ClassVar[bool] = False
    rounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (is_whole(self.levels) and 1 <= self.levels <= MOST_LEVELS):
            raise UsageError(
                f"levels must be a whole number from 1 (binary) to {MOST_LEVELS} (255 for 8-bit images), "
                f"got {self.levels!r}."
            )
        number = isinstance(self.keep, (int, float)) and not isinstance(self.keep, bool)
        if not (number and math.isfinite(self.keep) and self.levels * self._keep > 1 - self._keep and self.keep < 1):
            raise UsageError(
                f"keep must be above 1/{self.levels + 1}, where copies would not depend on the input, and below 1, "
                f"got {self.keep!r}."
            )
        object.__setattr__(self, "keep", float(self.keep))

    @property
    def _keep(self) -> Fraction:
        return Fraction(str(float(self.keep)))

    @property
    def scale(self) -> float:
        """The standard deviation of a coordinate whose value is 0 or 1, where it is largest."""
        levels, other = self.levels, (1 - self._keep) / self.levels
        mean = other * levels * (levels + 1) / 2
        square = other * levels * (levels + 1) * (2 * levels + 1) / 6
        return math.sqrt(square - mean**2) / levels

    @property
    def usual_radius(self) -> float:
        """One pixel."""
        return 1.0

    @property
    def exact(self) -> bool:
        return True

    def check(self, x: Tensor) -> None:
        steps = x.detach().double() * self.levels
        nearest = steps.round()
        off = ((steps - nearest).abs() > _TOLERANCE * self.levels) | (nearest < 0) | (nearest > self.levels)
        if off.any():
            rounded = "x.round()" if self.levels == 1 else f"(x * {self.levels}).round() / {self.levels}"
            needed = f"on the grid of {self.levels + 1} values from 0 to 1, which {self!r} needs"
            raise off_grid(x, off.cpu().numpy(), needed, f"round the input with {rounded}, or choose other levels.")

    def sample(self, x: Tensor, out: Tensor, generator: Generator | None = None) -> Tensor:
        from smoothcert.noise.drawing import fill_levels

        return fill_levels(x, out, generator, self._keep, self.levels)

    def exact_threshold(self, r: int) -> Fraction:
        """Return ρ_r⁻¹(½), the exact probability that the top class must exceed for the radius ``r`` ≤ 1000."""
        if not (is_whole(r) and 0 <= r <= MOST_CHANGES):
            raise UsageError(f"r must be a whole number of coordinates from 0 to {MOST_CHANGES}, got {r!r}.")
        return _exact(self._keep, self.levels, r)

    def _radius(self, p: FloatArray, norm: Norm, dimension: int | None) -> FloatArray:
        proved, refused = np.zeros(p.shape), np.full(p.shape, MOST_CHANGES + 1.0)
        while np.any(refused - proved > 1):  # bisection, as thresholds grow with the number of changes
            middle = np.floor((proved + refused) / 2)
            enough = p >= self._threshold(middle, norm, None)
            proved, refused = np.where(enough, middle, proved), np.where(enough, refused, middle)
        proved = np.where(p < 1, proved, math.inf)
        return proved if dimension is None else np.minimum(proved, dimension)

    def _threshold(self, r: FloatArray, norm: Norm, dimension: int | None) -> FloatArray:
        changes = np.ceil(r) if dimension is None else np.minimum(np.ceil(r), dimension)
        each, places = np.unique(changes, return_inverse=True)
        found = [_least_above(self._keep, self.levels, int(min(number, MOST_CHANGES + 1))) for number in each.tolist()]
        return np.array(found)[places].reshape(r.shape)


@lru_cache(maxsize=10_000)
def _least_above(keep: Fraction, levels: int, changes: int) -> float:
    """Return the least floating-point number above the threshold, 1 beyond ``MOST_CHANGES``; a bound ≥ it is proof."""
    if changes > MOST_CHANGES:
        return 1.0
    exact = _exact(keep, levels, changes)
    nearest = float(exact)
    return nearest if nearest > exact else math.nextafter(nearest, math.inf)


@lru_cache(maxsize=10_000)
def _exact(keep: Fraction, levels: int, changes: int) -> Fraction:
    """Return ρ_r⁻¹(½), the mass under the first input of the set with the largest ratios and mass ½ under the second.

    With a = A/D and b = B/D, the masses of the outcomes with u − v = r, r − 1, …, −r are the coefficients of
    (A + Cs + Bs²)^r over D^r, where C = (K − 1)B; under the second input A and B are swapped.
    """
    kept, other = keep.numerator * levels, keep.denominator - keep.numerator
    neither, whole = (levels - 1) * other, (keep.denominator * levels) ** changes
    first = second = under_first = under_second = 0
    ours, theirs = (_coefficients(a, neither, b, changes) for a, b in ((kept, other), (other, kept)))
    for under_first, under_second in zip(ours, theirs, strict=True):
        if 2 * (second + under_second) >= whole:
            break
        first, second = first + under_first, second + under_second
    share = Fraction(whole - 2 * second, 2 * under_second)  # of the last outcomes, to reach ½
    return Fraction(first, whole) + share * Fraction(under_first, whole)


def _coefficients(constant: int, linear: int, square: int, power: int) -> Iterator[int]:
    """Yield the coefficients of (constant + linear·s + square·s²)^power, the constant one first.

    The derivative of P^r is r P'/P times P^r, so each coefficient follows from the two before it: all of them take 2r
    steps instead of a sum over all u, v and w.
    """
    before, now = 0, constant**power
    yield now
    for place in range(2 * power):
        total = linear * (power - place) * now + square * (2 * power - place + 1) * before
        before, now = now, total // (constant * (place + 1))
        yield now
