"""The distribution of noise rounded to whole steps: integers that enclose its cumulative probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, isqrt

import numpy as np

from smoothcert.stats.binomial import IntArray

BITS = 62
"""Number of bits of the random words that are compared with thresholds."""

_WHOLE = 1 << BITS


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Bounds on P(z ≤ j − reach − 1) for a whole number z of steps, j = 0 … 2·reach + 1, in units of 2⁻⁶²."""

    lower: IntArray
    upper: IntArray
    reach: int  # the largest |z| that is drawn

    @classmethod
    def symmetric(cls, lower: list[int], upper: list[int]) -> Thresholds:
        """Extend the bounds for z ≤ 0, z ≤ 1, … to negative z, where −z is distributed like z.

        Steps at the ends with hardly a unit of probability are left out, so that no two enclosures overlap.
        """
        keep = next((i for i in range(1, len(lower)) if upper[i - 1] > lower[i]), len(lower))
        lower, upper = lower[:keep], upper[:keep]
        return cls(
            np.array([_WHOLE - value for value in reversed(upper)] + lower, np.int64),
            np.array([_WHOLE - value for value in reversed(lower)] + upper, np.int64),
            len(lower) - 1,
        )


def uniform_thresholds(lam: float, grid: int) -> Thresholds:
    """Return the thresholds of z = ⌊grid·ε + ½⌋ for ε uniform on [−lam, lam]: P(z ≤ i) = ½ + (i + ½)/(2·grid·lam).

    They are computed as exact fractions, with the exact value of the float, so lower and upper differ by 1 at most.
    """
    half = Fraction(lam) * grid  # half the width in steps
    n, d = half.numerator, half.denominator
    reach = floor(half + Fraction(1, 2))
    scaled = [((2 * n + (2 * i + 1) * d) << BITS, 4 * n) for i in range(reach + 1)]
    lower = [min(above // below, _WHOLE) for above, below in scaled]
    upper = [min(-(-above // below), _WHOLE) for above, below in scaled]
    return Thresholds.symmetric(lower, upper)


_PRECISION = 160
_ONE = 1 << _PRECISION
_SLACK = 1 << _PRECISION - 90
_PI = 31415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421
"""π·10⁹⁴, rounded down."""


def gaussian_thresholds(sigma: float, grid: int) -> Thresholds:
    """Return the thresholds of z = ⌊grid·ε + ½⌋ for ε ~ N(0, sigma²): P(z ≤ i) = Φ((i + ½)·w) with w = 1/(grid·sigma).

    All arithmetic is in integers, in units of 2⁻¹⁶⁰. The line is divided into intervals of width v = w/q ≤ 1/16 around
    m = 0, v, 2v, …, with q odd, so that each threshold ends an interval. With s = v/2, the density φ and the Hermite
    polynomials He_k,

        ∫ φ over [m − s, m + s]  =  2sφ(m) Σ_{k even} c_k/(k + 1),   c_k = He_k(m)·sᵏ/k!,
        c_{k+1} = (m·s·c_k − s²·c_{k−1})/(k + 1),   φ((j + 1)v) = φ(jv)·E^{2j+1},   E = exp(−v²/2).

    The result is off by less than 2⁻⁹⁰. Let J be the number of intervals: J·v < 10, as they end where Φ is within 2⁻⁶³
    of 1, and J < 2²¹ (see ``GridNoise``). Rounding errors: E is off by at most 2⁶ units, so E^{2j+1} by 2⁷(j + 1) and φ
    by 2⁷J² < 2⁵⁰, as all factors are below 1; c_k by less than 2²⁵, nearly all of it from m·s = 2js². Their sum is J·2s
    times as much: below 2⁵⁵ units, 2⁻¹⁰⁵. Truncation: by Cramér's inequality φ(m)|He_k(m)| < 0.44·√k!, so terms from
    k = K + 2 on are at most s^{K+3} in one interval and 5·s^{K+2} in all of them, where s^{K+2} < 2⁻¹⁰⁰.
    """
    width = 1 / (Fraction(sigma) * grid)
    parts = 1 if 16 * width <= 1 else 2 * ceil(8 * width) + 1
    narrow = width / parts
    half, square = floor(narrow / 2 * _ONE), floor(narrow**2 / 4 * _ONE)  # s and s²
    last, left_out = 2, float(narrow / 2) ** 4
    while left_out >= 2.0**-100:
        last, left_out = last + 2, left_out * float(narrow / 2) ** 2
    density = isqrt(10**94 * _ONE * _ONE // (2 * _PI))  # 1/√(2π)
    ratio = _exp_minus(2 * square)
    ratio_step = ratio * ratio >> _PRECISION
    below, lower, upper = _ONE >> 1, list[int](), list[int]()
    j = 0
    while below < _ONE - (_ONE >> BITS + 1):
        slope, before, now, total = 2 * j * square, 0, _ONE, _ONE
        for k in range(1, last + 1):
            before, now = now, ((slope * now - square * before) >> _PRECISION) // k
            if k % 2 == 0:
                total += now // (k + 1)
        mass = half * (density * total >> _PRECISION) >> _PRECISION - 1
        below += mass if j else mass >> 1  # of the first interval, one half lies above 0
        if j % parts == parts // 2:
            lower.append(below - _SLACK >> _PRECISION - BITS)
            upper.append(-(-(below + _SLACK) >> _PRECISION - BITS))
        density = density * ratio >> _PRECISION
        ratio = ratio * ratio_step >> _PRECISION
        j += 1
    if not upper or upper[-1] < _WHOLE:  # beyond the last interval Φ is within a unit of 1
        lower.append(_WHOLE - 1)
        upper.append(_WHOLE)
    return Thresholds.symmetric(lower, [min(value, _WHOLE) for value in upper])


def _exp_minus(exponent: int) -> int:
    """Return exp(−exponent) for 0 ≤ exponent ≤ 1/512, in units of 2⁻¹⁶⁰, with an error below 2⁵ units."""
    total, term = 0, _ONE
    for k in range(1, 24):
        total += term
        term = -term * exponent // (k << _PRECISION)
    return total
