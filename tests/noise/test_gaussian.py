"""Gaussian noise: its samples, its certificate, and what it refuses."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from smoothcert.noise import Gaussian, Uniform
from smoothcert.types import Norm, UsageError


def test_radius_is_sigma_times_the_quantile_and_never_more():
    p = np.array([0.0, 0.3, 0.5, 0.6, 0.9, 0.999, 1 - 1e-9])
    radius = Gaussian(0.25).radius(p)
    exact = np.where(p > 0.5, 0.25 * stats.norm.ppf(p), 0.0)
    assert radius == pytest.approx(exact, rel=1e-12)
    assert np.all(radius <= exact)


def test_threshold_inverts_radius():
    noise = Gaussian(0.7)
    r = np.linspace(0.01, 3, 50)
    assert noise.radius(noise.threshold(r)) == pytest.approx(r, rel=1e-9)
    assert noise.threshold(0.0) == pytest.approx(0.5, rel=1e-14)
    assert np.all(noise.threshold(r) >= stats.norm.cdf(r / 0.7))
    assert noise.threshold(100.0) == 1.0


def test_samples_are_gaussian_around_the_input():
    x = torch.tensor([0.2, 0.8])
    out = Gaussian(0.5).sample(x, torch.empty(200_000, 2), torch.Generator().manual_seed(1))
    residual = (out - x).numpy() / 0.5
    assert stats.kstest(residual[:, 0], "norm").pvalue > 1e-3
    assert stats.kstest(residual[:, 1], "norm").pvalue > 1e-3
    assert abs(np.corrcoef(residual.T)[0, 1]) < 0.01


@pytest.mark.parametrize("sigma", [0, -1, float("nan"), float("inf"), "0.5", None])
def test_refuses_sigma(sigma):
    with pytest.raises(UsageError, match="sigma must be a positive number"):
        Gaussian(sigma)


def test_refuses_norm_probability_and_radius():
    with pytest.raises(UsageError, match=r"does not certify the norm 'l1'; it certifies: l2, linf"):
        Gaussian(1.0).radius(0.9, norm="l1")
    with pytest.raises(UsageError, match=r"does not certify the norm 'l0'; it certifies"):
        Gaussian(1.0).radius(0.9, norm=Norm.L0)
    with pytest.raises(UsageError, match="between 0 and 1"):
        Gaussian(1.0).radius(float("nan"))
    with pytest.raises(UsageError, match="≥ 0"):
        Gaussian(1.0).threshold(-0.1)


def test_the_radius_between_two_probabilities_is_never_too_long():
    """Against 50 digits; where both are close, the rounding errors are large relative to their difference."""
    p = np.array([0.3, 0.3, 0.51, 0.9, 0.135335, 0.999, 1e-6, 0.4, 0.2, 0.7])
    q = np.array([0.1, 0.3 - 1e-15, 0.48, 1e-9, 0.13533, 0.0005, 9e-7, 0.4, 0.3, 0.9])
    mpmath.mp.dps = 50

    def exact(a, b):
        quantile = [mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(float(value)) - 1) for value in (a, b)]
        return 0.25 * (quantile[0] - quantile[1])

    for a, b in zip(p[:7], q[:7], strict=True):
        radius = float(Gaussian(0.5).radius(a, p_upper=b))
        assert radius <= exact(a, b)
        assert radius == pytest.approx(float(exact(a, b)), rel=1e-9, abs=1e-14)
        linf = float(Gaussian(0.5).radius(a, "linf", 16, p_upper=b))
        assert linf <= exact(a, b) / 4
        assert linf == pytest.approx(radius / 4, rel=1e-9, abs=1e-14)
    assert Gaussian(0.5).radius(p[7:], p_upper=q[7:]).tolist() == [0, 0, float(Gaussian(0.5).radius(0.7))]
    assert float(Gaussian(0.5).radius(0.6, p_upper=0.3, offset=0.01)) < exact(0.6, 0.3) - 0.01


def test_a_bound_that_says_nothing_new_gives_the_plain_radius():
    p = np.linspace(0, 1, 101)
    assert (Gaussian(0.5).radius(p, p_upper=1 - p) == Gaussian(0.5).radius(p)).all()
    assert np.isfinite(Gaussian(0.5).radius(0.9, p_upper=0.0))
    with pytest.raises(UsageError, match="p_upper must be a probability between 0 and 1"):
        Gaussian(1.0).radius(0.9, p_upper=-0.1)
    with pytest.raises(UsageError, match="uniform noise has no radius for the runner-up bound; use the plain bound"):
        Uniform(1.0).radius(0.4, p_upper=0.3)


@pytest.mark.parametrize("dimension", [1, 784, 150_528])
def test_linf_radius_is_the_l2_radius_over_the_root_of_the_dimension(dimension):
    noise, p = Gaussian(0.25), np.array([0.4, 0.6, 0.9, 0.999])
    exact = np.where(p > 0.5, 0.25 * stats.norm.ppf(p) / dimension**0.5, 0.0)
    radius = noise.radius(p, "linf", dimension)
    assert radius == pytest.approx(exact, rel=1e-12)
    assert np.all(radius <= exact)
    r = np.array([0.001, 0.01, 0.1]) / dimension**0.5
    assert noise.threshold(r, "linf", dimension) == pytest.approx(stats.norm.cdf(r * dimension**0.5 / 0.25), rel=1e-13)
    assert np.all(noise.threshold(r, "linf", dimension) >= stats.norm.cdf(r * dimension**0.5 / 0.25))
