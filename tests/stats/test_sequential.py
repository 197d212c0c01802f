"""E-values against high-precision integrals, boundaries against e-values, characteristics against simulation."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from smoothcert.stats import lower_bound
from smoothcert.stats.evalues import JEFFREYS, Prior, log_e
from smoothcert.stats.sequential import (
    LAST_LOOK,
    anytime_lower_bound,
    boundary,
    check_times,
    nested_boundaries,
    operating_characteristics,
    wald_bound,
)
from smoothcert.types import UsageError

INFORMED = Prior.informed(93, 100)


def log_integral(a: mpmath.mpf, b: mpmath.mpf, x: mpmath.mpf) -> mpmath.mpf:
    """log ∫ q^(a−1) (1−q)^(b−1) over [0, x], split where the integrand changes."""
    mode, spread = a / (a + b), mpmath.sqrt(a * b / (a + b) ** 3)
    points = {mpmath.mpf(0), x, *(mode + c * spread for c in (-30, -12, -6, -3, 0, 3, 6, 12, 30))}
    slope = abs((a - 1) / x - (b - 1) / (1 - x)) + 1 / x
    points |= {x - c / slope for c in (1, 4, 10, 20, 40, 80)}
    inside = sorted(q for q in points if 0 <= q <= x)
    peak = min(mode, x)  # quad stops at an absolute error, so the integrand is scaled to about 1

    def density(q: mpmath.mpf) -> mpmath.mpf:
        return (q / peak) ** (a - 1) * ((1 - q) / (1 - peak)) ** (b - 1)

    return mpmath.log(mpmath.quad(density, inside)) + (a - 1) * mpmath.log(peak) + (b - 1) * mpmath.log1p(-peak)


def exact_log_e(k: int, n: int, threshold: float, prior: Prior, side: str) -> mpmath.mpf:
    t, a, b = mpmath.mpf(threshold), mpmath.mpf(prior.a), mpmath.mpf(prior.b)
    if side == "up":
        ratio = log_integral(b + n - k, a + k, 1 - t) - log_integral(b, a, 1 - t)
    else:
        ratio = log_integral(a + k, b + n - k, t) - log_integral(a, b, t)
    return ratio - k * mpmath.log(t) - (n - k) * mpmath.log1p(-t)


def cases() -> list[tuple[int, int, float]]:
    found = []
    for threshold in (0.5, 0.9772498680518208, 1 - 1e-9):
        for n in (20, 2_000, 10**7):
            near = 6 * np.sqrt(n * threshold * (1 - threshold))
            counts = {
                0,
                n,
                round(n * threshold),
                min(n, round(n * threshold + near)),
                max(0, round(n * threshold - near)),
            }
            found += [(k, n, threshold) for k in sorted(counts)]
    return found


@pytest.mark.parametrize("side", ["up", "down"])
@pytest.mark.parametrize("prior", [JEFFREYS, INFORMED], ids=["jeffreys", "informed"])
def test_e_values_are_just_below_the_exact_integral(prior, side):
    with mpmath.workdps(25):
        for k, n, threshold in cases():
            short = exact_log_e(k, n, threshold, prior, side) - mpmath.mpf(float(log_e(k, n, threshold, prior, side)))
            assert 0 <= short <= 3e-9 + 3e-13 * n, (k, n, threshold)


def test_e_values_grow_with_the_count_and_broadcast():
    n = 1_000
    k = np.arange(n + 1)
    up, down = (log_e(k, n, 0.9, INFORMED, side) for side in ("up", "down"))
    assert np.all(np.diff(up) > 0)
    assert np.all(np.diff(down) < 0)
    assert up[950] == log_e(950, n, 0.9, INFORMED, "up")
    assert log_e(k[:, None], n, np.array([0.5, 0.9]), INFORMED, "up").shape == (n + 1, 2)
    assert log_e(0, 0, 0.9, JEFFREYS, "up") == pytest.approx(0.0, abs=1e-8)


def test_evidence_is_at_most_one_on_average():
    """The mean of E_up under p = threshold is 1, under smaller p less: the defining property."""
    n = 200
    k = np.arange(n + 1)
    for prior in (JEFFREYS, INFORMED):
        evidence = np.exp(log_e(k, n, 0.9, prior, "up"))
        assert stats.binom.pmf(k, n, 0.9) @ evidence == pytest.approx(1.0, abs=1e-6)
        assert stats.binom.pmf(k, n, 0.85) @ evidence < 0.9


def test_looks():
    looks = check_times(12_345)
    assert looks[0] == 20
    assert looks[-1] == 12_345
    assert {100, 1_000, 10_000} <= set(looks.tolist())
    assert np.all(looks[:-1] % 20 == 0)
    assert np.all(np.diff(looks) <= np.maximum(20, 0.02 * looks[:-1] + 20))
    assert np.all(np.diff(looks) > 0)
    assert check_times(20).tolist() == [20]
    assert check_times(10**7)[-1] == 10**7


@pytest.mark.parametrize("threshold", [0.5, 0.84, 0.9987, 1 - 1e-9])
@pytest.mark.parametrize("n_max", [1_000, 10**7])
def test_boundary_agrees_with_the_e_values(threshold, n_max):
    alpha, beta = 0.001, 0.01
    stop = boundary(threshold, alpha, beta, n_max, INFORMED)
    n, certify, refute = stop.n[:-1], stop.certify[:-1], stop.refute[:-1]
    bar = -np.log(alpha * (1 - LAST_LOOK))
    some = certify <= n
    assert np.all(log_e(certify[some], n[some], threshold, INFORMED, "up") >= bar)
    assert np.all(log_e(certify - 1, n, threshold, INFORMED, "up") < bar)
    bar = -np.log(beta * (1 - LAST_LOOK))
    some = refute >= 0
    assert np.all(log_e(refute[some], n[some], threshold, INFORMED, "down") >= bar)
    assert np.all(log_e(refute + 1, n, threshold, INFORMED, "down") < bar)
    assert np.all(stop.refute < stop.certify)
    assert boundary(threshold, alpha, beta, n_max, INFORMED) is stop


def test_last_look_is_clopper_pearson_at_a_quarter():
    stop = boundary(0.84, 0.001, 0.001, 10_000)
    assert lower_bound(int(stop.certify[-1]), 10_000, 0.001 / 4) > 0.84
    assert lower_bound(int(stop.certify[-1]) - 1, 10_000, 0.001 / 4) <= 0.84
    assert stop.certify[-1] < boundary(0.84, 0.001, 0.001, 10_020).certify[len(stop.n) - 1]


def test_never_refuting():
    stop = boundary(0.84, 0.001, None, 10_000)
    assert np.all(stop.refute == -1)
    assert operating_characteristics(stop, 0.2).refute == 0.0
    assert operating_characteristics(stop, 0.2).undecided == pytest.approx(1.0)


@pytest.mark.parametrize("p", [0.0, 0.7, 0.84, 0.88, 1.0])
def test_characteristics_agree_with_simulation(p):
    stop = boundary(0.84, 0.05, 0.05, 2_000)
    rng, runs = np.random.default_rng(3), 20_000
    k, used, before = np.zeros(runs, dtype=np.int64), np.zeros(runs), 0
    outcome = np.zeros(runs, dtype=np.int64)
    for n, certify, refute in zip(stop.n.tolist(), stop.certify, stop.refute, strict=True):
        used += (n - before) * (outcome == 0)
        k, before = k + rng.binomial(n - before, p, runs), n
        outcome = np.where(outcome == 0, 1 * (k >= certify) - 1 * (k <= refute), outcome)
    exact = operating_characteristics(stop, p)
    assert sum(exact[:3]) == pytest.approx(1.0, abs=1e-9)
    for share, probability in zip((1, -1, 0), exact[:3], strict=True):
        assert np.mean(outcome == share) == pytest.approx(probability, abs=4.5 * 0.5 / np.sqrt(runs))
    assert used.mean() == pytest.approx(exact.expected_n, abs=4.5 * used.std() / np.sqrt(runs) + 1e-6)


@pytest.mark.parametrize("threshold", [0.69, 0.84, 0.9987])
@pytest.mark.parametrize("k0", [80, 95, 100])
def test_exact_error_rates_stay_within_alpha_and_beta(threshold, k0):
    """The probability to certify rises with p, so that p = threshold is the worst case; it is computed exactly."""
    for alpha, beta in ((0.05, 0.01), (0.001, 0.001)):
        stop = boundary(threshold, alpha, beta, 20_000, Prior.informed(k0, 100))
        worst = operating_characteristics(stop, threshold)
        assert 0 < worst.certify <= alpha
        assert 0 < worst.refute <= beta
        assert operating_characteristics(stop, threshold - 0.001).certify < worst.certify
        assert operating_characteristics(stop, threshold + 0.001).refute < worst.refute


def test_informed_prior_needs_fewer_votes_and_both_come_near_walds_bound():
    threshold, p = float(ndtr(1.0)), 0.9
    bound = wald_bound(p, threshold, 0.001)
    plain = operating_characteristics(boundary(threshold, 0.001, 0.001, 20_000), p).expected_n
    informed = operating_characteristics(boundary(threshold, 0.001, 0.001, 20_000, Prior.informed(90, 100)), p)
    assert informed.expected_n < plain < 1.6 * bound
    assert bound < informed.expected_n < 1.35 * bound


def test_walds_bound():
    divergence = 0.9 * np.log(0.9 / 0.8) + 0.1 * np.log(0.1 / 0.2)
    assert wald_bound(0.9, 0.8, 0.001) == pytest.approx(np.log(1_000) / divergence)
    divergence = 0.7 * np.log(0.7 / 0.8) + 0.3 * np.log(0.3 / 0.2)
    assert wald_bound(0.7, 0.8, 0.001, 0.01) == pytest.approx(np.log(100) / divergence)
    assert wald_bound(0.7, 0.8, 0.001) == pytest.approx(np.log(1_000) / divergence)
    assert wald_bound(0.8, 0.8, 0.001) == np.inf
    assert wald_bound(1.0, 0.8, 0.001) == pytest.approx(np.log(1_000) / np.log(1 / 0.8))


def test_nested_boundaries_certify_from_below_and_refute_from_above():
    thresholds = (0.6, 0.84, 0.98, 0.9987)
    stops = nested_boundaries(thresholds, 0.001, 0.001, 5_000, Prior.informed(97, 100))
    for i, stop in enumerate(stops):
        alone = boundary(thresholds[i], 0.001, 0.001, 5_000, Prior.informed(97, 100))
        assert np.all(stop.certify >= alone.certify)
        assert np.all(stop.refute <= alone.refute)
    assert np.all(np.diff([stop.certify for stop in stops], axis=0) >= 0)
    assert np.all(np.diff([stop.refute for stop in stops], axis=0) >= 0)


@pytest.mark.parametrize("prior", [JEFFREYS, Prior.informed(88, 100)], ids=["jeffreys", "informed"])
@pytest.mark.parametrize("threshold", [0.7, 0.8413, 0.95])
def test_anytime_bound_reaches_the_target_where_the_boundary_certifies(prior, threshold):
    stop = boundary(threshold, 0.001, None, 3_000, prior)
    looks = list(zip(stop.n.tolist(), stop.certify.tolist(), strict=True))
    for n, k in [*looks[::9], looks[-1]]:
        if k <= n:
            last = n == 3_000
            assert anytime_lower_bound(k, n, 0.001, prior, extra=(threshold,), last=last) >= threshold
            assert anytime_lower_bound(k - 1, n, 0.001, prior, extra=(threshold,), last=last) < threshold


def test_anytime_bound():
    assert anytime_lower_bound(10, 20, 0.001) == 0.0
    bounds = [anytime_lower_bound(k, 1_000, 0.001) for k in range(500, 1_001, 20)]
    assert np.all(np.diff(bounds) >= 0)
    for n in (100, 10_000, 10**7):
        fixed = lower_bound(n * 19 // 20, n, 0.001)
        assert 0.5 < anytime_lower_bound(n * 19 // 20, n, 0.001) < fixed
        at_last = anytime_lower_bound(n * 19 // 20, n, 0.001, last=True)
        assert anytime_lower_bound(n * 19 // 20, n, 0.001) <= at_last < fixed
    assert anytime_lower_bound(10**7, 10**7, 0.001) < 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: boundary(0.8, 0.0, 0.1, 1_000), "alpha must lie"),
        (lambda: boundary(0.8, 1.0, 0.1, 1_000), "alpha must lie"),
        (lambda: boundary(0.8, 0.1, 0.0, 1_000), "beta must lie"),
        (lambda: boundary(0.8, 0.1, 1.5, 1_000), "beta must lie"),
        (lambda: boundary(0.49, 0.1, 0.1, 1_000), "threshold must lie"),
        (lambda: boundary(1.0, 0.1, 0.1, 1_000), "threshold must lie"),
        (lambda: boundary(float("nan"), 0.1, 0.1, 1_000), "threshold must lie"),
        (lambda: boundary(0.8, 0.1, 0.1, 19), "n_max must be between 20"),
        (lambda: boundary(0.8, 0.1, 0.1, 10**7 + 1), "n_max must be between 20"),
        (lambda: log_e(11, 10, 0.8, JEFFREYS, "up"), "0 ≤ k ≤ n"),
        (lambda: log_e(-1, 10, 0.8, JEFFREYS, "down"), "0 ≤ k ≤ n"),
        (lambda: log_e(5.0, 10, 0.8, JEFFREYS, "up"), "whole numbers"),
        (lambda: log_e(5, 10**7 + 1, 0.8, JEFFREYS, "up"), "n must be at most 10,000,000"),
        (lambda: nested_boundaries((0.8, 0.8), 0.1, 0.1, 1_000), "strictly increasing"),
        (lambda: nested_boundaries((), 0.1, 0.1, 1_000), "strictly increasing"),
        (lambda: anytime_lower_bound(5, 10, 0.0), "alpha must lie"),
        (lambda: anytime_lower_bound(5, 10, 0.1, extra=(0.4,)), "threshold must lie"),
        (lambda: operating_characteristics(boundary(0.8, 0.1, 0.1, 100), 1.1), "p must lie"),
        (lambda: wald_bound(0.9, 0.8, 0.0), "alpha must lie"),
        (lambda: Prior.informed(101, 100), "0 ≤ k0 ≤ n0"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(UsageError, match=message):
        call()
