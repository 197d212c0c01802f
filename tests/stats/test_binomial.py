"""Bounds and the top-class test against SciPy, statsmodels and high-precision arithmetic."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from smoothcert.stats import lower_bound, top_class_p_value, upper_bound
from smoothcert.types import UsageError

CASES = [(k, n) for n in (1, 2, 10, 100, 1000, 100_000) for k in sorted({0, 1, n // 3, n // 2, n - 1, n})]


@pytest.mark.parametrize("alpha", [0.05, 0.001, 1e-9])
def test_bounds_equal_statsmodels_and_scipy(alpha):
    for k, n in CASES:
        low, high = proportion_confint(k, n, alpha=2 * alpha, method="beta")
        assert lower_bound(k, n, alpha) == pytest.approx(low, rel=1e-8, abs=1e-300)
        assert upper_bound(k, n, alpha) == pytest.approx(high, rel=1e-8)
        exact = stats.binomtest(k, n, alternative="greater").proportion_ci(1 - alpha, method="exact")
        assert lower_bound(k, n, alpha) == pytest.approx(exact.low, rel=1e-6, abs=1e-11)


def test_ends():
    assert lower_bound(0, 1000, 0.001) == 0.0
    assert upper_bound(1000, 1000, 0.001) == 1.0
    assert lower_bound(1000, 1000, 0.001) == pytest.approx(0.001 ** (1 / 1000), rel=1e-12)
    assert upper_bound(0, 1000, 0.001) == pytest.approx(1 - 0.001 ** (1 / 1000), rel=1e-9)


@pytest.mark.parametrize("n", [1, 7, 100, 1000, 100_000])
@pytest.mark.parametrize("alpha", [0.05, 0.001, 1e-12])
def test_lower_bound_is_never_above_the_exact_one(n, alpha):
    """The tail beyond the bound, in 50 digits, is at most alpha: the bound rounds outwards."""
    with mpmath.workdps(50):
        for missing in (0, 1, 3, n // 5):
            if missing >= n:
                continue
            k = n - missing
            p = mpmath.mpf(lower_bound(k, n, alpha))
            tail = mpmath.fsum(
                mpmath.binomial(n, j) * p ** (n - j) * (1 - p) ** j for j in range(min(missing, 400) + 1)
            )
            if missing <= 400:
                assert tail <= mpmath.mpf(alpha)
                assert tail >= mpmath.mpf(alpha) * (1 - mpmath.mpf(10) ** -7)


@pytest.mark.parametrize("n", [10**7, 10**9])
def test_huge_n(n):
    k = np.array([0, 1, 1000, n // 3, n // 2, n - 1000, n - 1, n])
    low, high = lower_bound(k, n, 0.001), upper_bound(k, n, 0.001)
    assert np.all(np.isfinite(low))
    assert np.all((low <= k / n) & (k / n <= high))
    assert np.all(np.diff(low) > 0)
    assert np.all(np.diff(high[:-2]) > 0)
    # all votes agree: 1 - p = -log(alpha)/n up to terms of order 1/n²
    assert (1 - low[-1]) * n == pytest.approx(-np.log(0.001), rel=1e-5)
    # far from the ends the bound is the normal one
    assert low[4] == pytest.approx(0.5 - stats.norm.isf(0.001) / (2 * np.sqrt(n)), abs=1e-3 / np.sqrt(n))
    tail = stats.binom.sf(k[2:-1] - 1, n, low[2:-1])
    assert tail == pytest.approx(np.full_like(tail, 0.001), rel=1e-4)


def test_tail_beyond_the_bound_is_alpha_everywhere():
    """SciPy's inverse alone fails this: at n = 10⁹, k = 1000 its bound has the tail 1."""
    rng = np.random.default_rng(0)
    for n in (1000, 10**5, 10**7, 10**9):
        edge = np.unique(np.concatenate([np.logspace(0, np.log10(n), 300), rng.integers(1, n, 300)]).astype(np.int64))
        k = np.concatenate([edge, n - edge[edge < n]])
        for alpha in (0.05, 0.001, 1e-9):
            tail = stats.binom.sf(k - 1, n, lower_bound(k, n, alpha)) / alpha
            assert np.all(tail <= 1.0)
            assert np.all(tail >= 1 - 1e-4)
            inner = k[(k < n) & (k > 0)]
            tail = stats.binom.cdf(inner, n, upper_bound(inner, n, alpha)) / alpha
            assert np.all(tail <= 1.0)
            assert np.all(tail[inner < 0.99 * n] >= 1 - 1e-4)  # beyond, doubles next to 1 are too coarse


def test_broadcasts_and_agrees_with_scalars():
    k, n = np.array([[0], [5], [10]]), np.array([10, 20])
    table = lower_bound(k, n, 0.01)
    assert table.shape == (3, 2)
    assert table[1, 1] == lower_bound(5, 20, 0.01)


@pytest.mark.parametrize(("first", "second"), [(60, 40), (40, 60), (1, 0), (0, 0), (50, 50), (999, 1), (100_000, 0)])
def test_top_class_equals_scipy(first, second):
    total = first + second
    expected = stats.binomtest(first, total, 0.5).pvalue if total else 1.0
    assert top_class_p_value(first, second) == pytest.approx(expected, rel=1e-8, abs=1e-300)
    assert top_class_p_value(first, second) >= expected * (1 - 1e-13)


def test_top_class_huge():
    p = top_class_p_value(np.array([500_050_000, 10**9]), np.array([499_950_000, 0]))
    assert p[0] == pytest.approx(2 * stats.norm.sf(100_000 / np.sqrt(10**9)), rel=1e-2)
    assert 0 <= p[1] < 1e-300


@pytest.mark.parametrize(
    ("k", "n", "alpha", "match"),
    [
        (1, 0, 0.1, "n must be"),
        (1, 10**9 + 1, 0.1, "n must be"),
        (-1, 10, 0.1, "k must be"),
        (11, 10, 0.1, "k must be"),
        (1, 10, 0.0, "alpha must"),
        (1, 10, 1.0, "alpha must"),
        (1, 10, float("nan"), "alpha must"),
        (1.5, 10, 0.1, "whole numbers"),
    ],
)
def test_refuses(k, n, alpha, match):
    for bound in (lower_bound, upper_bound):
        with pytest.raises(UsageError, match=match):
            bound(k, n, alpha)


def test_top_class_refuses_negative_votes():
    with pytest.raises(UsageError, match="votes"):
        top_class_p_value(-1, 5)
