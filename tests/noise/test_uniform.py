"""Uniform noise: its samples, its certificates against exact arithmetic, and classes that attain them."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from smoothcert.noise import Uniform
from smoothcert.types import UsageError

P = (0.5 + 2**-40, 0.500001, 0.51, 0.6, 0.75, 0.9, 0.999, 1 - 2**-40, 1.0)
DIMENSIONS = (1, 2, 7, 784, 3_072, 150_528, 10**9)


def exact_radius(lam: float, p: float, dimension: int) -> mpmath.mpf:
    """2λ(1 − (3/2 − p)^{1/d}) with 60 digits."""
    with mpmath.workdps(60):
        return 2 * mpmath.mpf(lam) * (1 - mpmath.power(mpmath.mpf("1.5") - mpmath.mpf(p), mpmath.mpf(1) / dimension))


def exact_threshold(lam: float, r: float, dimension: int) -> mpmath.mpf:
    with mpmath.workdps(60):
        return mpmath.mpf("1.5") - (1 - mpmath.mpf(r) / (2 * mpmath.mpf(lam))) ** dimension


@pytest.mark.parametrize("lam", [0.3, 1.0, 7.7])
def test_l1_radius(lam):
    for p in P:
        exact = 2 * mpmath.mpf(lam) * (mpmath.mpf(p) - mpmath.mpf("0.5"))
        radius = float(Uniform(lam).radius(p))
        assert radius <= exact
        assert radius == pytest.approx(float(exact), rel=1e-13)
    for r in (0.0, 1e-9, 0.1, 0.29):
        threshold = float(Uniform(lam).threshold(r))
        assert threshold >= mpmath.mpf("0.5") + mpmath.mpf(r) / (2 * mpmath.mpf(lam))
        assert threshold == pytest.approx(0.5 + r / (2 * lam), rel=1e-14)
    assert Uniform(lam).threshold(lam) == Uniform(lam).threshold(5 * lam) == 1.0


@pytest.mark.parametrize("dimension", DIMENSIONS)
@pytest.mark.parametrize("lam", [0.3, 1.0])
def test_linf_radius_keeps_its_digits_and_never_rounds_up(lam, dimension):
    noise = Uniform(lam)
    for p in P:
        radius, exact = float(noise.radius(p, "linf", dimension)), exact_radius(lam, p, dimension)
        assert 0 < radius <= exact
        assert radius == pytest.approx(float(exact), rel=1e-13)
    for share in (1e-6, 0.01, 0.3, 0.69):
        r = 2 * lam * share / dimension
        threshold, exact = float(noise.threshold(r, "linf", dimension)), min(exact_threshold(lam, r, dimension), 1)
        assert threshold >= exact
        assert threshold == pytest.approx(float(exact), rel=1e-14)
    assert noise.threshold(2 * lam, "linf", dimension) == noise.threshold(9 * lam, "linf", dimension) == 1.0


def test_l1_and_linf_are_the_same_for_one_coordinate():
    p = np.linspace(0.5, 1, 40)
    assert Uniform(0.7).radius(p, "linf", 1) == pytest.approx(Uniform(0.7).radius(p), rel=1e-12)


def share_of_box(low: np.ndarray, high: np.ndarray, at: np.ndarray, lam: float) -> float:
    """The probability of a box of coordinates under noise around a point: overlaps of intervals, multiplied."""
    overlap = np.minimum(high, at + lam) - np.maximum(low, at - lam)
    return float(np.prod(np.maximum(overlap, 0) / (2 * lam)))


@pytest.mark.parametrize("p", [0.55, 0.7, 0.95])
def test_a_half_space_attains_the_l1_radius(p):
    lam, dimension = 0.6, 5
    radius = float(Uniform(lam).radius(p))
    low, high = np.full(dimension, -np.inf), np.full(dimension, np.inf)
    high[2] = lam * (2 * p - 1)  # so that the class has probability p at 0
    assert share_of_box(low, high, np.zeros(dimension), lam) == pytest.approx(p, abs=1e-14)
    step = np.eye(dimension)[2]
    assert share_of_box(low, high, radius * step, lam) == pytest.approx(0.5, abs=1e-13)
    rng = np.random.default_rng(0)
    for _ in range(200):  # and no point as near falls below one half
        other = rng.normal(size=dimension)
        at = radius * other / np.abs(other).sum()
        assert share_of_box(low, high, at, lam) >= 0.5 - 1e-13


@pytest.mark.parametrize("dimension", [1, 2, 6, 784])
@pytest.mark.parametrize("p", [0.55, 0.7, 0.95])
def test_a_class_that_fills_what_is_lost_attains_the_linf_radius(dimension, p):
    """The other class: one corner box of the cube's part that a diagonal shift shares, and all beyond the cube."""
    lam = 0.6
    radius = float(Uniform(lam).radius(p, "linf", dimension))

    def top(at: float) -> float:
        """The top class at the point (at, …, at): all but z ≥ radius − λ, and of these z₀ < cut inside the cube."""
        corner = np.full(dimension, radius - lam)
        beyond = np.full(dimension, np.inf)
        point = np.full(dimension, at)
        inner = np.full(dimension, lam)
        inner[0] = cut
        kept = share_of_box(corner, inner, point, lam)
        return 1 - share_of_box(corner, beyond, point, lam) + kept

    shared = (1 - radius / (2 * lam)) ** dimension
    cut = radius - lam + (p - 1 + shared) / shared * (2 * lam - radius)
    assert top(0.0) == pytest.approx(p, abs=1e-12)
    assert top(radius) == pytest.approx(0.5, abs=1e-12)
    assert all(top(share * radius) >= 0.5 - 1e-12 for share in np.linspace(-1, 1, 41))


def test_samples_are_uniform_around_the_input():
    x = torch.tensor([0.2, 0.8])
    out = Uniform(0.5).sample(x, torch.empty(200_000, 2), torch.Generator().manual_seed(1))
    offsets = (out - x).double().numpy()
    assert np.abs(offsets).max() <= 0.5 + 1e-6
    for column in (0, 1):
        assert stats.kstest(offsets[:, column], "uniform", args=(-0.5, 1)).pvalue > 1e-3
    assert abs(np.corrcoef(offsets.T)[0, 1]) < 0.01


@pytest.mark.parametrize("lam", [0, -1, float("nan"), float("inf"), "0.5", None])
def test_refuses_lam(lam):
    with pytest.raises(UsageError, match="lam must be a positive number"):
        Uniform(lam)


def test_refuses_norms_it_does_not_certify():
    with pytest.raises(UsageError, match=r"uniform noise does not certify the norm 'l2'; it certifies: l1, linf"):
        Uniform(1.0).radius(0.9, norm="l2")
