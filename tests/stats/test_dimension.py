"""The limit of per-input noise scales, against its definition, closed forms, SciPy and high-precision arithmetic."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from scipy import optimize, special, stats

from smoothcert.stats.dimension import MAX_DIMENSION, scale_limit, worst_case_probability
from smoothcert.types import UsageError

CASES = [(0.9, 0.5, 0.6, 0.3), (0.99, 0.5, 0.45, 0.5), (0.6, 1.0, 1.5, 0.25), (0.999, 0.25, 0.24, 0.4)]
"""p, σ, τ, ε"""


@pytest.mark.parametrize("d", [1, 2, 3, 8, 40])
@pytest.mark.parametrize(("p", "sigma", "tau", "epsilon"), CASES)
def test_the_definition_by_simulation(p, sigma, tau, epsilon, d):
    """k is the p-quantile of the distance of σ²‖δ‖²/d from σ²; x' is tried at several distances in one direction."""
    generator = np.random.default_rng(d)
    size = 200_000
    k = np.quantile(np.abs(sigma**2 * (generator.standard_normal((size, d)) ** 2).sum(1) / d - sigma**2), p)
    delta = tau * generator.standard_normal((size, d))
    shares = []
    for distance in np.linspace(0, epsilon, 6):
        moved = delta.copy()
        moved[:, 0] += distance
        shares.append(np.mean(np.abs((moved**2).sum(1) / d - sigma**2) <= k))
    # The share and the quantile both have errors; the density changes the second into a probability of the same order.
    assert scale_limit(p, d, sigma, tau, epsilon) == pytest.approx(max(shares), abs=8 * math.sqrt(0.25 / size))


@pytest.mark.parametrize("d", [1, 2, 7, 784, 3072])
@pytest.mark.parametrize(("p", "sigma", "tau", "epsilon"), CASES)
def test_equals_a_search_with_scipy(p, sigma, tau, epsilon, d):
    chi2 = stats.chi2(d)
    half = optimize.brentq(lambda h: chi2.cdf(d * (1 + h)) - chi2.cdf(d * (1 - h)) - p, 1e-9, 1e3, xtol=1e-14)
    low, high = d * max(0.0, 1 - half) * sigma**2 / tau**2, d * (1 + half) * sigma**2 / tau**2
    shifts = (np.linspace(0, epsilon, 200) / tau) ** 2
    shifts[0] = 1e-12  # SciPy's non-central distribution has no central case
    tried = stats.ncx2.cdf(high, d, shifts) - stats.ncx2.cdf(low, d, shifts)
    found = scale_limit(p, d, sigma, tau, epsilon)
    assert found == pytest.approx(tried.max(), rel=1e-4, abs=1e-10)
    assert found >= tried.max() - 1e-10


def lower_gamma(a, x):
    """The distribution function of a gamma variable of shape a, by its power series."""
    if x <= 0:
        return mpf(0)
    total = term = 1 / a
    k = 0
    while term > total * mpf(10) ** (-mpmath.mp.dps):
        k += 1
        term *= x / (a + k)
        total += term
    return total * mpmath.exp(a * mpmath.log(x) - x - mpmath.loggamma(a))


def shifted_cdf(d, shift, x):
    """The distribution function of a non-central χ², by its Poisson mixture."""
    mean, weight, total, j = mpf(shift) / 2, mpmath.exp(-mpf(shift) / 2), mpf(0), 0
    while weight > mpf(10) ** (-mpmath.mp.dps) or j < mean:
        total += weight * lower_gamma(mpf(d) / 2 + j, mpf(x) / 2)
        j += 1
        weight *= mean / j
    return total


def root(f, near):
    """The root of an increasing function near a number, by the secant method."""
    return mpmath.findroot(f, (mpf(near), mpf(near) * (1 + mpf(10) ** -7)), tol=mpf(10) ** -60)


@pytest.mark.parametrize(
    ("d", "ratio", "epsilon", "p"),
    [(1, 1.5, 0.5, 0.9), (5, 0.8, 0.3, 0.99), (60, 1.2, 1.0, 0.999), (300, 0.9, 0.5, 0.75)],
)
def test_rounds_up_by_next_to_nothing(d, ratio, epsilon, p):
    """In 40 digits; σ = 1, and in these cases no maximum lies inside the ball but at an end."""
    chi2 = stats.chi2(d)
    near = optimize.brentq(lambda h: chi2.cdf(d * (1 + h)) - chi2.cdf(d * (1 - h)) - p, 1e-9, 1e3)
    inside = ratio > 1
    with mpmath.workdps(40):
        tau, far, centre = mpf(ratio), mpf(epsilon), mpf(d) / 2
        half = root(lambda h: lower_gamma(centre, centre * (1 + h)) - lower_gamma(centre, centre * (1 - h)) - p, near)
        ends = [d * max(mpf(0), 1 - half) / tau**2, d * (1 + half) / tau**2]
        shifts = (mpf(0), (far / tau) ** 2)
        exact = max(shifted_cdf(d, shift, ends[1]) - shifted_cdf(d, shift, ends[0]) for shift in shifts)
        assert exact <= mpf(float(scale_limit(p, d, 1.0, ratio, epsilon))) <= exact * (1 + mpf(10) ** -8)
        before, after = (far / (tau**2 - 1)) ** 2, (far * tau / (tau**2 - 1)) ** 2
        share = mpf(p) if inside else 1 - mpf(p)
        edge = root(lambda q: shifted_cdf(d, before, q) - share, stats.ncx2.ppf(float(share), d, float(before)))
        worst = shifted_cdf(d, after, edge / tau**2) if inside else 1 - shifted_cdf(d, after, edge / tau**2)
        found = mpf(float(worst_case_probability(p, d, 1.0, ratio, epsilon)))
        assert worst <= found <= worst * (1 + mpf(10) ** -8)


@pytest.mark.parametrize(("ratio", "smallest"), [(1.01, 1e-4), (0.99, 1e-4), (1.03, 1e-60)])
def test_an_imagenet_image_in_high_precision(ratio, smallest):
    d = 150_528
    with mpmath.workdps(100):
        half = mpf(float(special.ndtri(0.995) * math.sqrt(2 / d)))  # about the right one, made exact by its own p
        centre = mpf(d) / 2
        inside = lower_gamma(centre, centre * (1 + half)) - lower_gamma(centre, centre * (1 - half))
        tau = mpf(ratio)
        exact = lower_gamma(centre, centre * (1 + half) / tau**2) - lower_gamma(centre, centre * (1 - half) / tau**2)
        assert exact > smallest
        below, above = (float(scale_limit(float(inside) + change, d, 1.0, ratio, 0.0)) for change in (-1e-15, 1e-15))
        assert below <= exact * (1 + mpf(10) ** -7)
        assert exact <= above <= exact * (1 + mpf(10) ** -7)


def test_closed_forms():
    """Without distance and in two coordinates ‖δ‖²/2 is exponential; in one, everything is an interval of a normal."""
    half = optimize.brentq(lambda h: math.exp(-1 + h) - math.exp(-1 - h) - 0.5, 0, 1)
    expected = math.exp(-(1 - half) / 1.44) - math.exp(-(1 + half) / 1.44)
    assert scale_limit(0.5, 2, 0.5, 0.6, 0.0) == pytest.approx(expected, rel=1e-10)
    wide = math.sqrt(1 + optimize.brentq(lambda h: 2 * special.ndtr(math.sqrt(1 + h)) - 1 - 0.9, 1, 9))
    expected = special.ndtr((wide - 0.0) / 1.5) - special.ndtr(-wide / 1.5)  # from the origin: it falls with distance
    assert scale_limit(0.9, 1, 1.0, 1.5, 0.7) == pytest.approx(expected, rel=1e-10)
    exact = stats.chi2.cdf(stats.chi2.ppf(0.9, 784) / 1.21, 784)
    assert worst_case_probability(0.9, 784, 0.5, 0.55, 0.0) == pytest.approx(exact, rel=1e-8)
    exact = stats.chi2.sf(stats.chi2.isf(0.9, 784) / 0.81, 784)
    assert worst_case_probability(0.9, 784, 0.5, 0.45, 0.0) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(("sigma", "tau", "epsilon"), [(0.5, 0.7, 0.4), (0.7, 0.5, 0.4), (1.0, 1.2, 1.5)])
@pytest.mark.parametrize("p", [0.2, 0.8, 0.99])
def test_the_worst_classifier_in_the_plane_by_sorting_cells(p, sigma, tau, epsilon):
    """Neyman and Pearson from scratch: take the cells of a fine grid in order of the ratio of their masses."""
    edges = np.linspace(-9, 9, 2401)

    def masses(scale, centre):
        return np.diff(special.ndtr((edges - centre) / scale))

    first = np.outer(masses(sigma, 0.0), masses(sigma, 0.0)).ravel()
    second = np.outer(masses(tau, epsilon), masses(tau, 0.0)).ravel()
    order = np.argsort(second / np.maximum(first, 1e-290), kind="stable")
    expected = np.interp(p, np.cumsum(first[order]), np.cumsum(second[order]))
    assert worst_case_probability(p, 2, sigma, tau, epsilon) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("d", [1, 12, 784, 3072])
@pytest.mark.parametrize(("p", "sigma", "tau", "epsilon"), CASES)
def test_no_known_classifier_is_worse_than_the_worst(p, sigma, tau, epsilon, d):
    worst = worst_case_probability(p, d, sigma, tau, epsilon)
    assert worst <= scale_limit(p, d, sigma, tau, epsilon)
    half_space = special.ndtr((sigma * special.ndtri(p) - epsilon) / tau)
    assert worst <= half_space * (1 + 1e-9)
    assert worst > 0


def test_scales_that_come_close_lose_the_distance_only():
    expected = special.ndtr(special.ndtri(0.99) - 0.25)
    gaps = [abs(float(worst_case_probability(0.99, 784, 1.0, ratio, 0.25)) - expected) for ratio in (1.02, 1.01, 1.004)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.005
    assert gaps[0] > 3 * gaps[-1]


@pytest.mark.parametrize("ratio", [0.9, 1.05, 1.5])
def test_falls_with_the_dimension_at_least_like_its_inverse(ratio):
    d = np.array([784, 1_600, 3_072, 12_288, 50_176, 150_528])
    for bound in (scale_limit(0.99, d, 0.5, 0.5 * ratio, 0.5), worst_case_probability(0.99, d, 0.5, 0.5 * ratio, 0.5)):
        assert np.all(np.diff(bound) <= 0)
        assert np.all(np.diff(np.maximum(bound * d, 1e-290))[1:] <= 0)
        assert bound[-1] < 1e-100
        assert bound[-1] > 0  # an upper bound is not 0


def test_what_does_not_matter_and_what_does():
    d = np.array([[3], [300]])
    ratios = np.array([0.7, 0.9, 1.1, 1.4])
    bounds = scale_limit(0.9, d, 1.0, ratios, 0.5)
    assert bounds.shape == (2, 4)
    assert scale_limit(0.9, d, 4.0, 4.0 * ratios, 2.0).tolist() == bounds.tolist()  # units
    assert scale_limit(0.9, 300, 1.0, 0.9, 0.5) == bounds[1, 1]
    for function in (scale_limit, worst_case_probability):
        rising = function(np.array([1e-6, 0.1, 0.5, 0.9, 0.99, 1 - 1e-12]), 50, 1.0, 1.2, 0.5)
        assert np.all(np.diff(rising) > 0)
        assert rising[-1] < 1
    larger_balls = scale_limit(0.9, 50, 1.0, 0.8, np.linspace(0, 8, 30))
    assert np.all(np.diff(larger_balls) >= -1e-8)
    assert larger_balls[-1] > 1.5 * larger_balls[0]


def test_a_maximum_inside_the_ball():
    """For τ < σ the shell of σ is reached at some distance; beyond, more distance adds nothing."""
    inside = scale_limit(0.7, 30, 1.0, 0.8, [3.0, 4.0, 6.0, 20.0])
    assert inside[0] < 1
    assert np.ptp(inside[1:]) < 1e-6 * inside[1]
    half = optimize.brentq(lambda h: np.diff(stats.chi2.cdf([30 * (1 - h), 30 * (1 + h)], 30))[0] - 0.7, 0.01, 1)
    ends = np.array([30 * (1 - half), 30 * (1 + half)]) / 0.64
    best = optimize.minimize_scalar(
        lambda s: -np.diff(stats.ncx2.cdf(ends, 30, (s / 0.8) ** 2))[0], bounds=(1, 6), options={"xatol": 1e-9}
    )
    assert inside[1] == pytest.approx(-best.fun, rel=1e-6)


@pytest.mark.parametrize("function", [scale_limit, worst_case_probability])
def test_refuses(function):
    good = {"p": 0.9, "d": 10, "sigma": 0.5, "tau": 0.6, "epsilon": 0.1}
    for p in (0.0, 1.0, -0.1, 1.5, math.nan, [0.5, 1.0]):
        with pytest.raises(UsageError, match="p must lie strictly between 0 and 1"):
            function(**{**good, "p": p})
    for name in ("sigma", "tau"):
        for scale in (0.0, -1.0, math.inf, math.nan):
            with pytest.raises(UsageError, match=f"{name} must be a positive number"):
                function(**{**good, name: scale})
    with pytest.raises(UsageError, match="sigma and tau must differ"):
        function(**{**good, "tau": [0.6, 0.5]})
    for d in (0, -3, 2.5, MAX_DIMENSION + 1):
        with pytest.raises(UsageError, match=r"d must be (whole numbers|between 1 and 200,000)"):
            function(**{**good, "d": d})
    for epsilon in (-0.1, math.nan, math.inf):
        with pytest.raises(UsageError, match="epsilon must be a distance"):
            function(**{**good, "epsilon": epsilon})
    with pytest.raises(UsageError, match="epsilon is too large"):
        function(**{**good, "epsilon": 1e3})
    with pytest.raises(UsageError, match="too close"):
        worst_case_probability(0.9, 10, 0.5, 0.5 + 1e-6, 0.1)
