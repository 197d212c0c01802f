"""Exact binomial bounds and the top-class test, vectorised over counts.

Every result is rounded **outwards**, by more than the error of the special functions: a lower bound is never above the
exact value, and an upper bound or p-value is never below it.
"""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from smoothcert.types import UsageError

MAX_SAMPLES = 10**9
"""The largest number of samples for which the rounding below was verified."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@overload
def lower_bound(k: int, n: int, alpha: float) -> float: ...
@overload
def lower_bound(k: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> FloatArray: ...
def lower_bound(k: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> float | FloatArray:
    """Return the one-sided lower confidence bound on a success probability (Clopper and Pearson, 1934).

    Args:
        k: Successes, 0 ≤ k ≤ n.
        n: Trials, 1 ≤ n ≤ 10⁹.
        alpha: Probability that the bound exceeds the true probability, in (0, 1).

    Returns:
        The bound for each (k, n, alpha) after broadcasting; 0 at k = 0. A float when all arguments are numbers.

    Example:
        >>> round(lower_bound(999, 1000, 0.001), 6)
        0.990805
    """
    return _float_or_array(_lower(*_checked(k, n, alpha)))


@overload
def upper_bound(k: int, n: int, alpha: float) -> float: ...
@overload
def upper_bound(k: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> FloatArray: ...
def upper_bound(k: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> float | FloatArray:
    """Return the one-sided upper confidence bound, as :func:`lower_bound`; 1 at k = n.

    Example:
        >>> round(upper_bound(0, 1000, 0.001), 6)
        0.006884
    """
    k, n, alpha = _checked(k, n, alpha)
    return _float_or_array(np.minimum(rounded_up(1.0 - _lower(n - k, n, alpha)), 1.0))


@overload
def top_class_p_value(first: int, second: int) -> float: ...
@overload
def top_class_p_value(first: ArrayLike, second: ArrayLike) -> FloatArray: ...
def top_class_p_value(first: ArrayLike, second: ArrayLike) -> float | FloatArray:
    """Return the p-value of the test that the class with more votes is the more probable one (Hung and Fithian, 2019).

    This is the exact binomial test of ``first`` successes among ``first + second`` trials at ½. It is two-sided because
    the data chose the classes. The p-value is 1 for a tie and without votes.

    Example:
        >>> round(top_class_p_value(60, 40), 4)
        0.0569
    """
    first, second = np.broadcast_arrays(whole_numbers(first, "votes"), whole_numbers(second, "votes"))
    total = first + second
    require((first >= 0) & (second >= 0), np.minimum(first, second), "votes must not be negative")
    require(total <= MAX_SAMPLES, total, f"votes must not exceed {MAX_SAMPLES:,} in total")
    most = np.maximum(first, second)
    tail = special.betainc(np.maximum(most, 1), total - most + 1.0, 0.5)
    p = np.minimum(1.0, rounded_up(2.0 * tail * (1.0 + _tail_error(total))))
    return _float_or_array(np.where(2 * most == total, 1.0, p))


def require(valid: ArrayLike, values: ArrayLike, requirement: str) -> None:
    """Raise a UsageError that states the requirement and the first invalid value."""
    if not np.all(valid):
        valid, values = np.broadcast_arrays(valid, values)
        raise UsageError(f"{requirement}, got {values[~valid][0]}.")


def require_levels(**levels: ArrayLike | None) -> None:
    """Raise a UsageError unless all levels that are not None lie strictly between 0 and 1."""
    for name, level in levels.items():
        array = np.asarray(0.5 if level is None else level)
        require((array > 0) & (array < 1), array, f"{name} must lie strictly between 0 and 1")


def whole_numbers(values: ArrayLike, name: str) -> IntArray:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise UsageError(f"{name} must be whole numbers, got {array.dtype}.")
    return array.astype(np.int64)


def rounded_up(x: FloatArray) -> FloatArray:
    return np.nextafter(np.nextafter(x, np.inf), np.inf)


def _checked(k: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> tuple[IntArray, IntArray, FloatArray]:
    k, n, alpha = whole_numbers(k, "k"), whole_numbers(n, "n"), np.asarray(alpha, dtype=np.float64)
    require((n >= 1) & (n <= MAX_SAMPLES), n, f"n must be between 1 and {MAX_SAMPLES:,}")
    require_levels(alpha=alpha)
    require((k >= 0) & (k <= n), k, "k must be between 0 and n")
    k, n, alpha = np.broadcast_arrays(k, n, alpha)
    return k, n, alpha


def _lower(k: IntArray, n: IntArray, alpha: FloatArray) -> FloatArray:
    """Return the root p of P(Binomial(n, p) ≥ k) = alpha, rounded down.

    SciPy's inverse is far off at isolated points (n = 10⁹, k = 1000), so the forward function checks every root, and
    bisection replaces those that fail.
    """
    a, b = np.maximum(k, 1).astype(np.float64), (n - k + 1).astype(np.float64)
    error = _tail_error(n)
    target = alpha * (1.0 - error)
    p = np.asarray(special.betaincinv(a, b, target), dtype=np.float64)
    tail = special.betainc(a, b, p) / alpha
    off = ~((tail <= 1.0 - 0.5 * error) & (tail >= 1.0 - 1e-6 - 2.0 * error))
    if np.any(off):
        p[off] = _bisect(a[off], b[off], target[off])
    down = np.nextafter(np.nextafter(p, -np.inf), -np.inf)
    return np.where(k == 0, 0.0, np.maximum(down, 0.0))


def _bisect(a: FloatArray, b: FloatArray, tail: FloatArray) -> FloatArray:
    low, high = np.zeros_like(tail), np.ones_like(tail)
    for _ in range(200):
        middle = 0.5 * (low + high)
        below = special.betainc(a, b, middle) <= tail
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low


def _tail_error(n: IntArray) -> FloatArray:
    """Bound the relative error of SciPy's incomplete beta function and its inverse generously; it grows with n."""
    return 1e-12 + 4e-15 * n.astype(np.float64)


def _float_or_array(values: FloatArray) -> float | FloatArray:
    return float(values) if values.ndim == 0 else values
