"""Upper bounds on the probability that a class keeps when the noise scale changes from one input to the next.

Smoothing with a separate scale for each input proves nothing by itself: in many dimensions, noise of another scale lies
in another shell, where the base classifier may answer differently. Both bounds are upper bounds, so they round **up**.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from smoothcert.stats.binomial import FloatArray, require, require_levels, rounded_up, whole_numbers
from smoothcert.types import UsageError

MAX_DIMENSION = 200_000
"""The largest number of coordinates: SciPy's incomplete gamma function fails from shapes of about 150 000 on."""

MAX_SHIFT = 20_000.0
"""The largest non-centrality, a squared distance in units of the noise's variance."""

_ENDS = 2e-15  # the relative error of the ends of an interval
_Bound = Callable[[float, int, float, float], float]


def scale_limit(p: ArrayLike, d: ArrayLike, sigma: ArrayLike, tau: ArrayLike, epsilon: ArrayLike) -> FloatArray:
    """Return the largest probability within ε and under noise τδ guaranteed to a class of probability p under noise σδ.

    Jeong et al. (2021), App. B, Theorem 1 and Eq. 12, for Gaussian δ: some classifier that returns the class with
    probability p around x returns it around x', ‖x'−x‖ ≤ ε, with a probability of at most

        max over ‖z‖ ≤ ε of P(‖z+τδ‖²/d ∈ [σ²−k, σ²+k]),  where k solves  P(σ²‖δ‖²/d ∈ [σ²−k, σ²+k]) = p.

    This is the probability of an interval under the non-central χ² distribution with d degrees of freedom. It rises and
    then falls with ‖z‖, because the distribution has a monotone likelihood ratio, so bisection finds the maximum.

    Args:
        p: The probability of the class at x, strictly between 0 and 1.
        d: The number of coordinates of an input.
        sigma: The scale σ of the noise at x.
        tau: The scale τ ≠ σ of the noise at x'; for equal scales see ``Gaussian.radius``.
        epsilon: The largest ℓ2 distance ε of x' from x.

    Returns:
        The bound for each combination after broadcasting, rounded up.

    Example:
        >>> [round(float(bound), 3) for bound in scale_limit(0.99, [10, 784, 3072], 0.5, 0.55, 0.5)]
        [0.962, 0.094, 0.0]
    """
    return _each(_limit, p, d, sigma, tau, epsilon)


def worst_case_probability(
    p: ArrayLike, d: ArrayLike, sigma: ArrayLike, tau: ArrayLike, epsilon: ArrayLike
) -> FloatArray:
    """Return the smallest probability under noise τδ, at distance ε, of a class of probability p under noise σδ.

    :func:`scale_limit` bounds the worst classifier; this is its exact value for Gaussian δ. By the lemma of Neyman and
    Pearson (1933), the worst classifier returns the class where the ratio of the two densities is small: inside a ball
    for τ > σ and outside one for τ < σ, centred at x + (x'−x) σ²/(σ²−τ²). Nothing above this value can be proved from p
    alone. As τ approaches σ, it approaches Φ(Φ⁻¹(p) − ε/σ) of Cohen, Rosenfeld and Kolter (2019).

    Args and Returns: As :func:`scale_limit`; epsilon is the exact distance.

    Raises:
        UsageError: Also if σ and τ are too close for the computation.

    Example:
        >>> [round(float(worst), 3) for worst in worst_case_probability(0.99, [10, 784, 3072], 0.5, 0.55, 0.5)]
        [0.872, 0.056, 0.0]
    """
    return _each(_worst, p, d, sigma, tau, epsilon)


def _each(bound: _Bound, p: ArrayLike, d: ArrayLike, *lengths: ArrayLike) -> FloatArray:
    """Check the arguments and call a bound for each combination, with τ and ε in units of σ."""
    d = whole_numbers(d, "d")
    require((d >= 1) & (d <= MAX_DIMENSION), d, f"d must be between 1 and {MAX_DIMENSION:,}")
    p = np.asarray(p, dtype=np.float64)
    require_levels(p=p)
    sigma, tau, epsilon = (np.asarray(length, dtype=np.float64) for length in lengths)
    for name, scale in (("sigma", sigma), ("tau", tau)):
        require((scale > 0) & np.isfinite(scale), scale, f"{name} must be a positive number")
    require((epsilon >= 0) & np.isfinite(epsilon), epsilon, "epsilon must be a distance, at least 0")
    ratio, distance = tau / sigma, epsilon / sigma
    require(ratio != 1, tau, "sigma and tau must differ (for equal scales, see Gaussian.radius)")
    grid = np.broadcast_arrays(p, d, ratio, distance)
    found = [bound(float(q), int(n), float(r), float(e)) for q, n, r, e in zip(*(a.flat for a in grid), strict=True)]
    return np.array(found, dtype=np.float64).reshape(grid[0].shape)


def _limit(p: float, d: int, ratio: float, distance: float) -> float:
    half = _half_width(p, d)
    low, high = max(0.0, d * (1 - half)) / ratio**2, d * (1 + half) / ratio**2
    low, high = low * (1 - _ENDS), high * (1 + _ENDS)
    last = _checked_shift((distance / ratio) ** 2) * (1 + _ENDS)
    left, right = _peak(d, low, high, last)
    # The probability times exp(λ/2) never falls with the non-centrality λ, which bounds it between the two.
    return _upper(_shifted(d, right, low, high)[1] * math.exp((right - left) / 2))


def _worst(p: float, d: int, ratio: float, distance: float) -> float:
    gap = (ratio - 1) * (ratio + 1)
    before, after = _checked_shift((distance / gap) ** 2), _checked_shift((distance * ratio / gap) ** 2)
    inside = ratio > 1  # whether the worst classifier returns the class inside or outside the ball

    def keeps(q: float) -> bool:
        """Return whether the ball of squared radius q, or its complement, certainly has probability p."""
        kept, lost = ((0.0, q), (q, math.inf)) if inside else ((q, math.inf), (0.0, q))
        if p > 0.5:  # 1 − p is exact, and the small probability is the more exact one
            return _shifted(d, before, *lost, reach=12)[1] <= 1 - p
        return _shifted(d, before, *kept, reach=12)[0] >= p

    if inside:
        interval = 0.0, _edge(keeps, start=d + before)[1] / ratio**2 * (1 + _ENDS)
    else:
        interval = _edge(lambda q: not keeps(q), start=d + before)[0] / ratio**2 * (1 - _ENDS), math.inf
    centre = 1e-14 * (1 + (before + after) / abs(gap))  # generous bound on the effect of rounding the ratio of scales
    return _upper(_shifted(d, after, *interval)[1] * (1 + centre))


def _half_width(p: float, d: int) -> float:
    """Return k/σ², the half-width about 1 of an interval that contains χ²/d with probability p, rounded up."""

    def holds(half: float) -> bool:
        low, high = d * max(0.0, 1 - half) / 2, d * (1 + half) / 2
        if p > 0.5:  # 1 − p is exact, and so is the probability outside where nearly everything is inside
            outside = special.gammainc(d / 2, low) + special.gammaincc(d / 2, high)
            return float(outside * (1 + _error(d / 2))) <= 1 - p
        return bool(_gamma_interval(np.array([d / 2]), low, high)[0][0] >= p)

    return _edge(holds, start=1.0)[1]


def _edge(holds: Callable[[float], bool], start: float) -> tuple[float, float]:
    """Return the two neighbouring positive numbers between which a condition begins to hold."""
    low, high = 0.0, start
    while not holds(high):
        low, high = high, 2 * high
    return _bisected(holds, low, high)


def _bisected(holds: Callable[[float], bool], low: float, high: float, within: float = 0.0) -> tuple[float, float]:
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high) or high - low < max(4e-16 * high, within):
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def _peak(d: int, low: float, high: float, last: float) -> tuple[float, float]:
    """Enclose the non-centrality in [0, last] at which the probability of an interval is largest.

    The derivative is half of what two more degrees of freedom add; where rounding hides its sign, nothing is assumed.
    """

    def slope(shift: float) -> tuple[float, float]:
        now, more = _shifted(d, shift, low, high), _shifted(d + 2, shift, low, high)
        return more[0] - now[1], more[1] - now[0]

    if slope(0.0)[1] <= 0:
        return 0.0, 0.0
    if slope(last)[0] >= 0:
        return last, last
    left = _bisected(lambda shift: slope(shift)[0] < 0, 0.0, last, within=1e-9)[0]
    return left, _bisected(lambda shift: slope(shift)[1] <= 0, 0.0, last, within=1e-9)[1]


def _shifted(d: int, shift: float, low: float, high: float, reach: int = 40) -> tuple[float, float]:
    """Bound the probability of [low, high] under a non-central χ², a Poisson mixture of central ones.

    The terms beyond ``reach`` count as 0 in the lower and as 1 in the upper bound; by Chernoff's bound they weigh less
    than 10⁻²⁵⁰ at 40, and less than 10⁻²⁵ at 12.
    """
    mean = shift / 2
    width = reach * math.sqrt(mean) + 10 * reach
    first = max(0, math.floor(mean - width))
    terms = np.arange(first, math.ceil(mean + width) + 1) if shift > 0 else np.array([0])
    weight = np.exp(special.xlogy(terms, mean) - mean - special.gammaln(terms + 1.0))
    least, most = _gamma_interval(np.asarray(d / 2 + terms, dtype=np.float64), low / 2, high / 2)
    beyond = float(special.pdtrc(terms[-1], mean)) + (float(special.pdtr(first - 1, mean)) if first else 0.0)
    error = 1e-12 + 2e-14 * mean
    return float(weight @ least) * (1 - error), float(weight @ most) * (1 + error) + 2 * beyond


def _gamma_interval(shape: FloatArray, low: float, high: float) -> tuple[FloatArray, FloatArray]:
    """Bound the probability of [low, high] under gamma distributions, each from the side on which less cancels."""
    below = special.gammainc(shape, low), special.gammainc(shape, high)
    above = special.gammaincc(shape, low), special.gammaincc(shape, high)
    right, left = low >= shape, high <= shape
    value = np.where(right, above[0] - above[1], np.where(left, below[1] - below[0], 1.0 - below[0] - above[1]))
    subtracted = np.where(right, above[0] + above[1], np.where(left, below[0] + below[1], below[0] + above[1]))
    error = _error(shape) * subtracted + np.where(right | left, 0.0, 1e-15)
    return np.maximum(value - error, 0.0), np.minimum(np.maximum(value, 0.0) + error, 1.0)


def _error(shape: FloatArray | float) -> FloatArray:
    """Bound the relative error of SciPy's incomplete gamma functions generously; it grows with the shape."""
    return np.asarray(1e-12 + 1e-14 * np.asarray(shape, dtype=np.float64))


def _checked_shift(shift: float) -> float:
    if shift > MAX_SHIFT:
        raise UsageError("epsilon is too large, or sigma and tau are too close; lower epsilon, or use equal scales.")
    return shift


def _upper(value: float) -> float:
    return min(float(rounded_up(np.asarray(value))) + 1e-300, 1.0)  # values below 10⁻³⁰⁰ are not exact
