"""Exact binomial bounds and the top-class test, vectorised over counts.

Every result is rounded **outwards**: a lower bound is never above, an upper bound and a p-value never below the exact
value, whatever the error of the special functions used.
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
    """One-sided lower confidence bound on a success probability (Clopper and Pearson, 1934).

    Args:
        k: Successes, 0 ≤ k ≤ n.
        n: Trials, 1 ≤ n ≤ 10⁹.
        alpha: Probability that the bound lies above the truth, in (0, 1).

    Returns:
        The bound for each (k, n, alpha) after broadcasting; 0 at k = 0. A float when all arguments are numbers.

    Raises:
        UsageError: If an argument is out of range.

    Example:
        >>> round(lower_bound(999, 1000, 0.001), 6)
        0.990805
    """
    return _as_given(_lower(*_checked(k, n, alpha)))


@overload
def upper_bound(k: int, n: int, alpha: float) -> float: ...
@overload
def upper_bound(k: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> FloatArray: ...
def upper_bound(k: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> float | FloatArray:
    """One-sided upper confidence bound on a success probability (Clopper and Pearson, 1934).

    Args, Returns, Raises: As :func:`lower_bound`; the bound is 1 at k = n.

    Example:
        >>> round(upper_bound(0, 1000, 0.001), 6)
        0.006884
    """
    k, n, alpha = _checked(k, n, alpha)
    return _as_given(np.minimum(_up(1.0 - _lower(n - k, n, alpha)), 1.0))


@overload
def top_class_p_value(first: int, second: int) -> float: ...
@overload
def top_class_p_value(first: ArrayLike, second: ArrayLike) -> FloatArray: ...
def top_class_p_value(first: ArrayLike, second: ArrayLike) -> float | FloatArray:
    """Two-sided p-value that the class with more votes is really the more probable one (Hung and Fithian, 2019).

    The exact binomial test of ``first`` among ``first + second`` at ½; two-sided, because the data chose the classes.

    Args:
        first: Votes of one class.
        second: Votes of the other class.

    Returns:
        The p-value, 1 for a tie or without votes. A float when both arguments are numbers.

    Raises:
        UsageError: If a count is negative or not whole.

    Example:
        >>> round(top_class_p_value(60, 40), 4)
        0.0569
    """
    first, second = np.broadcast_arrays(_whole(first, "votes"), _whole(second, "votes"))
    total = first + second
    if np.any(first < 0) or np.any(second < 0) or np.any(total > MAX_SAMPLES):
        raise UsageError(f"votes must be between 0 and {MAX_SAMPLES:,} in all; give counts of one sample.")
    most = np.maximum(first, second)
    tail = special.betainc(np.maximum(most, 1), total - most + 1.0, 0.5)
    p = np.minimum(1.0, _up(2.0 * tail * (1.0 + _tail_error(total))))
    return _as_given(np.where(2 * most == total, 1.0, p))


def _checked(k: ArrayLike, n: ArrayLike, alpha: ArrayLike) -> tuple[IntArray, IntArray, FloatArray]:
    k, n = _whole(k, "k"), _whole(n, "n")
    alpha = np.asarray(alpha, dtype=np.float64)
    if np.any(n < 1) or np.any(n > MAX_SAMPLES):
        raise UsageError(f"n must be between 1 and {MAX_SAMPLES:,}, got {_first(n, (n < 1) | (n > MAX_SAMPLES))}.")
    if not np.all((alpha > 0) & (alpha < 1)):
        raise UsageError(f"alpha must lie strictly between 0 and 1, got {_first(alpha, ~((alpha > 0) & (alpha < 1)))}.")
    k, n, alpha = np.broadcast_arrays(k, n, alpha)
    if np.any((k < 0) | (k > n)):
        raise UsageError(f"k must be between 0 and n, got {_first(k, (k < 0) | (k > n))}.")
    return k, n, alpha


def _whole(values: ArrayLike, name: str) -> IntArray:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise UsageError(f"{name} must be whole numbers, got {array.dtype}.")
    return array.astype(np.int64)


def _first(values: NDArray[np.generic], wrong: NDArray[np.bool_]) -> str:
    return str(values[wrong].ravel()[0])


def _lower(k: IntArray, n: IntArray, alpha: FloatArray) -> FloatArray:
    """The root p of P(Binomial(n, p) ≥ k) = alpha, from below.

    SciPy's inverse is verified by the forward function: at isolated points (n = 10⁹, k = 1000) it is far off, and
    there the root is bisected.
    """
    a, b = np.maximum(k, 1).astype(np.float64), (n - k + 1).astype(np.float64)
    error = _tail_error(n)
    p = np.asarray(special.betaincinv(a, b, alpha * (1.0 - error)), dtype=np.float64)
    tail = special.betainc(a, b, p) / alpha
    off = ~((tail <= 1.0 - 0.5 * error) & (tail >= 1.0 - 1e-6 - 2.0 * error))
    if np.any(off):
        p[off] = _bisect(a[off], b[off], (alpha * (1.0 - error))[off])
    return np.where(k == 0, 0.0, _down(p))


def _bisect(a: FloatArray, b: FloatArray, tail: FloatArray) -> FloatArray:
    low, high = np.zeros_like(tail), np.ones_like(tail)
    for _ in range(200):
        middle = 0.5 * (low + high)
        below = special.betainc(a, b, middle) <= tail
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low


def _tail_error(n: IntArray) -> FloatArray:
    """A generous relative error of SciPy's incomplete beta function and its inverse, which grows with n."""
    return 1e-12 + 4e-15 * n.astype(np.float64)


def _down(x: FloatArray) -> FloatArray:
    return np.maximum(np.nextafter(np.nextafter(x, -np.inf), -np.inf), 0.0)


def _up(x: FloatArray) -> FloatArray:
    return np.nextafter(np.nextafter(x, np.inf), np.inf)


def _as_given(values: FloatArray) -> float | FloatArray:
    return float(values) if values.ndim == 0 else values
