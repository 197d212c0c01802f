"""What is left of a class's probability when the scale of the noise changes from one input to the next.

Smoothing with a scale of its own for each input proves nothing by itself: over many coordinates, noise of another
scale lies in another shell, and a classifier may answer differently there. Both functions here bound from above what
can be hoped for, so they round **up**.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from smoothcert.stats.binomial import FloatArray
from smoothcert.types import UsageError

MAX_DIMENSION = 200_000
"""The largest number of coordinates: SciPy's incomplete gamma function fails from shapes of about 150 000 on."""

MAX_SHIFT = 20_000.0
"""The largest non-centrality, a squared distance in units of the noise's variance."""

_ENDS = 2e-15  # the relative error of the ends of an interval


def scale_limit(p: ArrayLike, d: ArrayLike, sigma: ArrayLike, tau: ArrayLike, epsilon: ArrayLike) -> FloatArray:
    """The most that a class of probability p under noise σδ is sure to keep within ε under noise τδ.

    Jeong et al. (2021), App. B, Theorem 1 and Eq. 12, for Gaussian δ: some classifier that answers c with probability p
    around x answers it around x', ‖x'−x‖ ≤ ε, with a probability of at most

        max over ‖z‖ ≤ ε of P(‖z+τδ‖²/d ∈ [σ²−k, σ²+k]),  where k solves  P(σ²‖δ‖²/d ∈ [σ²−k, σ²+k]) = p.

    That is an interval of the non-central χ² distribution with d degrees of freedom. Its probability rises, then falls
    with ‖z‖, as the distribution has a monotone likelihood ratio, so the maximum is found and not sampled.

    Args:
        p: The probability of the class at x, strictly between 0 and 1.
        d: The number of coordinates of an input.
        sigma: The scale σ of the noise at x.
        tau: The scale τ ≠ σ of the noise at x'.
        epsilon: The largest ℓ2 distance ε of x' from x.

    Returns:
        The bound for each combination after broadcasting, rounded up.

    Raises:
        UsageError: If an argument is out of range, or σ = τ: then ``Gaussian.radius`` says what holds.

    Example:
        >>> [round(float(bound), 3) for bound in scale_limit(0.99, [10, 784, 3072], 0.5, 0.55, 0.5)]
        [0.962, 0.094, 0.0]
    """
    return _each(_limit, p, d, sigma, tau, epsilon)


def worst_case_probability(
    p: ArrayLike, d: ArrayLike, sigma: ArrayLike, tau: ArrayLike, epsilon: ArrayLike
) -> FloatArray:
    """The smallest probability under noise τδ, at distance ε, of a class that has probability p under noise σδ.

    Where :func:`scale_limit` bounds the worst classifier, this is the worst one, for Gaussian δ. By the lemma of Neyman
    and Pearson (1933) it answers c where the ratio of the two densities is small: in a ball for τ > σ, outside one for
    τ < σ, about x + (x'−x) σ²/(σ²−τ²). Nothing above this value can be proved from p alone. As τ comes close to σ, it
    comes close to Φ(Φ⁻¹(p) − ε/σ) of Cohen, Rosenfeld and Kolter (2019).

    Args:
        p, d, sigma, tau: As :func:`scale_limit`.
        epsilon: The ℓ2 distance ε of the two inputs.

    Returns:
        The probability for each combination after broadcasting, rounded up.

    Raises:
        UsageError: As :func:`scale_limit`, or if σ and τ are too close to tell them from equal ones.

    Example:
        >>> [round(float(worst), 3) for worst in worst_case_probability(0.99, [10, 784, 3072], 0.5, 0.55, 0.5)]
        [0.872, 0.056, 0.0]
    """
    return _each(_worst, p, d, sigma, tau, epsilon)


def _each(
    bound: Callable[[float, int, float, float], float],
    p: ArrayLike,
    d: ArrayLike,
    sigma: ArrayLike,
    tau: ArrayLike,
    epsilon: ArrayLike,
) -> FloatArray:
    """Check the arguments and go through them; the bounds know scales in units of σ only."""
    d = np.asarray(d)
    if d.dtype.kind not in "iu" or np.any(d < 1) or np.any(d > MAX_DIMENSION):
        raise UsageError(f"d must be whole numbers between 1 and {MAX_DIMENSION:,}, the coordinates of an input.")
    p, sigma, tau, epsilon = (np.asarray(value, dtype=np.float64) for value in (p, sigma, tau, epsilon))
    if not np.all((p > 0) & (p < 1)):
        raise UsageError("p must lie strictly between 0 and 1.")
    for name, scale in (("sigma", sigma), ("tau", tau)):
        if not np.all((scale > 0) & np.isfinite(scale)):
            raise UsageError(f"{name} must be positive numbers, in the units of the input.")
    if not np.all((epsilon >= 0) & np.isfinite(epsilon)):
        raise UsageError("epsilon must be a distance, at least 0.")
    ratio, distance = tau / sigma, epsilon / sigma
    if np.any(ratio == 1):
        raise UsageError("sigma and tau must differ; with equal ones nothing is lost but the distance: see Gaussian.")
    grid = np.broadcast_arrays(p, d, ratio, distance)
    found = [bound(float(q), int(n), float(r), float(e)) for q, n, r, e in zip(*(a.flat for a in grid), strict=True)]
    return np.array(found, dtype=np.float64).reshape(grid[0].shape)


def _limit(p: float, d: int, ratio: float, distance: float) -> float:
    half = _half_width(p, d)
    low, high = max(0.0, d * (1 - half)) / ratio**2, d * (1 + half) / ratio**2
    low, high = low * (1 - _ENDS), high * (1 + _ENDS)
    last = _checked_shift((distance / ratio) ** 2) * (1 + _ENDS)
    left, right = _peak(d, low, high, last)
    # The probability times exp(λ/2) never falls with the non-centrality λ, so it is not much higher between the two.
    return _rounded_up(_shifted(d, right, low, high)[1] * math.exp((right - left) / 2))


def _worst(p: float, d: int, ratio: float, distance: float) -> float:
    gap = (ratio - 1) * (ratio + 1)
    before, after = _checked_shift((distance / gap) ** 2), _checked_shift((distance * ratio / gap) ** 2)
    inside = ratio > 1  # whether the worst classifier answers the class inside a ball or outside of it

    def keeps(q: float) -> bool:
        """Whether the ball of squared radius q, or what is outside of it, has probability p for certain."""
        kept, lost = ((0.0, q), (q, math.inf)) if inside else ((q, math.inf), (0.0, q))
        if p > 0.5:  # 1 − p is exact, and the small probability is the more exact one
            return _shifted(d, before, *lost, reach=12)[1] <= 1 - p
        return _shifted(d, before, *kept, reach=12)[0] >= p

    if inside:
        interval = 0.0, _edge(keeps, start=d + before)[1] / ratio**2 * (1 + _ENDS)
    else:
        interval = _edge(lambda q: not keeps(q), start=d + before)[0] / ratio**2 * (1 - _ENDS), math.inf
    centre = 1e-14 * (1 + (before + after) / abs(gap))  # what a rounded ratio of scales can change, generously
    return _rounded_up(_shifted(d, after, *interval)[1] * (1 + centre))


def _half_width(p: float, d: int) -> float:
    """k/σ²: the half-width about 1 of an interval that holds χ²/d with probability p, rounded up."""

    def holds(half: float) -> bool:
        low, high = d * max(0.0, 1 - half) / 2, d * (1 + half) / 2
        if p > 0.5:  # 1 − p is exact, and so is what lies outside where the rest is nearly everything
            outside = special.gammainc(d / 2, low) + special.gammaincc(d / 2, high)
            return float(outside * (1 + _error(d / 2))) <= 1 - p
        return bool(_gamma_interval(np.array([d / 2]), low, high)[0][0] >= p)

    return _edge(holds, start=1.0)[1]


def _edge(holds: Callable[[float], bool], start: float) -> tuple[float, float]:
    """The two neighbouring numbers between which a condition begins to hold, for numbers above 0."""
    low, high = 0.0, start
    while not holds(high):
        low, high = high, 2 * high
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high) or high - low < 4e-16 * high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def _peak(d: int, low: float, high: float, last: float) -> tuple[float, float]:
    """Between which non-centralities up to ``last`` the probability of an interval is largest.

    It grows by half of what two more degrees of freedom add; where rounding hides the sign of that, nothing is assumed.
    """

    def slope(shift: float) -> tuple[float, float]:
        now, more = _shifted(d, shift, low, high), _shifted(d + 2, shift, low, high)
        return more[0] - now[1], more[1] - now[0]

    if slope(0.0)[1] <= 0:
        return 0.0, 0.0
    if slope(last)[0] >= 0:
        return last, last
    left = _bisected(lambda shift: slope(shift)[0] < 0, last)[0]
    return left, _bisected(lambda shift: slope(shift)[1] <= 0, last)[1]


def _bisected(holds: Callable[[float], bool], last: float) -> tuple[float, float]:
    """Below and above the place in [0, last] from which on a condition holds, a billionth apart."""
    low, high = 0.0, last
    for _ in range(60):
        if high - low < 1e-9:
            break
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def _shifted(d: int, shift: float, low: float, high: float, reach: int = 40) -> tuple[float, float]:
    """Bounds on the probability of [low, high] for a non-central χ²: a Poisson mixture of central ones.

    The terms beyond ``reach`` count as 0 below and as 1 above; by Chernoff's bound they weigh less than 10⁻²⁵⁰ at 40,
    and less than 10⁻²⁵ at 12.
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
    """Bounds on the probability of [low, high] for gamma distributions, each from the side on which less cancels."""
    below = special.gammainc(shape, low), special.gammainc(shape, high)
    above = special.gammaincc(shape, low), special.gammaincc(shape, high)
    right, left = low >= shape, high <= shape
    value = np.where(right, above[0] - above[1], np.where(left, below[1] - below[0], 1.0 - below[0] - above[1]))
    subtracted = np.where(right, above[0] + above[1], np.where(left, below[0] + below[1], below[0] + above[1]))
    error = _error(shape) * subtracted + np.where(right | left, 0.0, 1e-15)
    return np.maximum(value - error, 0.0), np.minimum(np.maximum(value, 0.0) + error, 1.0)


def _error(shape: FloatArray | float) -> FloatArray:
    """A generous relative error of SciPy's incomplete gamma functions, which grows with the shape."""
    return np.asarray(1e-12 + 1e-14 * np.asarray(shape, dtype=np.float64))


def _checked_shift(shift: float) -> float:
    if shift > MAX_SHIFT:
        raise UsageError(
            "epsilon is too large, or sigma and tau are too close, for the difference of the scales to matter; "
            "lower epsilon, or use equal scales."
        )
    return shift


def _rounded_up(value: float) -> float:
    return float(min(np.nextafter(np.nextafter(value, np.inf), np.inf) + 1e-300, 1.0))  # smaller ones are not exact
