"""E-values against high-precision sums, boundaries against e-values, characteristics against simulation."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import special, stats
from scipy.special import ndtr

from smoothcert.stats import lower_bound
from smoothcert.stats.evalues import log_e
from smoothcert.stats.sequential import (
    AGREEING,
    LAST_LOOK,
    Boundary,
    anytime_lower_bound,
    boundary,
    check_times,
    level_for,
    nested_boundaries,
    operating_characteristics,
    wald_bound,
)
from smoothcert.types import UsageError


def exact_log_e(k: int, n: int, threshold: float, n_max: int, side: str, tuned_to: float | None = None) -> mpmath.mpf:
    """The mean likelihood ratio over 16 shifts of the log-odds, from 5/sqrt(n_max t (1 − t)) to 4."""
    t = mpmath.mpf(threshold)
    center = t if tuned_to is None else mpmath.mpf(tuned_to)
    least = min(5 / mpmath.sqrt(n_max * center * (1 - center)), mpmath.mpf(4))
    ratios = []
    for i in range(16):
        # the float that the package uses; an e-value holds for any shifts
        shift = mpmath.mpf(float(least) * (4.0 / float(least)) ** (i / 15)) * (1 if side == "up" else -1)
        odds = t / (1 - t) * mpmath.exp(shift)
        ratios.append(k * mpmath.log(odds / (1 + odds) / t) + (n - k) * mpmath.log(1 / (1 + odds) / (1 - t)))
    most = max(ratios)
    return most + mpmath.log(mpmath.fsum(mpmath.exp(ratio - most) for ratio in ratios) / 16)


def cases() -> list[tuple[int, int, float]]:
    found = []
    for threshold in (1e-15, 1e-9, 0.001, 0.3, 0.5, 0.9772498680518208, 1 - 1e-9, 1 - 1e-15):
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
@pytest.mark.parametrize("n_max", [100, 10**7])
@pytest.mark.parametrize("tuned_to", [None, 0.5])
def test_e_values_are_just_below_the_exact_ones(n_max, side, tuned_to):
    with mpmath.workdps(40):
        for k, n, threshold in cases():
            computed = float(log_e(k, n, threshold, n_max, side, tuned_to=tuned_to))
            short = exact_log_e(k, n, threshold, n_max, side, tuned_to) - mpmath.mpf(computed)
            assert 0 <= short <= 3e-9 + 3e-14 * n, (k, n, threshold)


@pytest.mark.parametrize("n_max", [100, 100_000])
def test_evidence_with_fixed_shifts_falls_or_grows_with_the_threshold(n_max):
    """So a threshold is rejected together with all smaller (up) or larger (down) ones."""
    thresholds = special.expit(np.linspace(-20, 20, 2_001))
    for k, n in ((0, 10), (1, 10), (10, 10), (300, 1_000), (5, 100_000), (99_990, 100_000)):
        up, down = (log_e(k, n, thresholds, n_max, side, tuned_to=0.5) for side in ("up", "down"))
        assert np.all(np.diff(up) <= 1e-12 * n)
        assert np.all(np.diff(down) >= -1e-12 * n)


def test_e_values_grow_with_the_count_and_broadcast():
    n = 1_000
    k = np.arange(n + 1)
    up, down = (log_e(k, n, 0.9, n, side) for side in ("up", "down"))
    assert np.all(np.diff(up) > 0)
    assert np.all(np.diff(down) < 0)
    assert up[950] == log_e(950, n, 0.9, n, "up")
    assert log_e(k[:, None], n, np.array([0.5, 0.9]), n, "up").shape == (n + 1, 2)
    assert log_e(0, 0, 0.9, n, "up") == pytest.approx(0.0, abs=1e-8)


def test_evidence_is_at_most_one_on_average():
    """The mean of E_up under p = threshold is 1, under smaller p less: the defining property."""
    n = 200
    k = np.arange(n + 1)
    evidence = np.exp(log_e(k, n, 0.9, 1_000, "up"))
    assert stats.binom.pmf(k, n, 0.9) @ evidence == pytest.approx(1.0, abs=1e-6)
    assert stats.binom.pmf(k, n, 0.85) @ evidence < 0.9


def test_looks():
    looks = check_times(12_345)
    assert looks[:10].tolist() == list(range(10, 101, 10))
    assert looks[-1] == 12_345
    assert {100, 1_000, 10_000} <= set(looks.tolist())
    assert np.all(looks[10:-1] % 20 == 0)
    assert np.all(np.diff(looks) <= np.maximum(20, 0.02 * looks[:-1] + 20))
    assert np.all(np.diff(looks) > 0)
    assert check_times(20).tolist() == [10, 20]
    assert check_times(10**7)[-1] == 10**7


@pytest.mark.parametrize("threshold", [0.5, 0.84, 0.9987, 1 - 1e-9])
@pytest.mark.parametrize("n_max", [1_000, 100_000])
def test_boundary_certifies_wherever_the_e_values_or_the_last_look_do(threshold, n_max):
    """The nominal level is at least the given one, so the boundary is at least as eager as one without calibration."""
    alpha, beta = 0.001, 0.01
    stop = boundary(threshold, alpha, beta, n_max)
    n, certify, refute = stop.n[:-1], stop.certify[:-1], stop.refute[:-1]
    level = level_for(threshold, alpha)
    bar = -np.log(level * (1 - LAST_LOOK))
    one_less = np.minimum(certify - 1, n)
    assert np.all(
        (log_e(one_less, n, threshold, n_max, "up") < bar) | (one_less - AGREEING <= threshold * (n - AGREEING))
    )
    assert np.all(log_e(refute + 1, n, threshold, n_max, "down") < -np.log(beta * (1 - LAST_LOOK)))
    assert lower_bound(min(int(stop.certify[-1]) - 1, n_max), n_max, LAST_LOOK * level) <= threshold
    assert np.all(certify - AGREEING > threshold * (n - AGREEING))
    assert np.all(stop.refute < stop.certify)
    assert boundary(threshold, alpha, beta, n_max) is stop


def test_the_level_for_all_classes():
    """L(t)/t^m falls, and the shares of two classes add up to alpha."""
    t = np.linspace(0.5, 1.0, 10_001)
    level = level_for(t, 1.0)
    assert level[0] == pytest.approx(0.5)
    assert level_for(0.7, 0.001) > 0.99e-3
    assert np.all(np.diff(level / t**AGREEING) < 0)
    assert np.all(level + 0.5 * (2 - 2 * t) ** AGREEING <= 1)


def exact_error(stop: Boundary, p: Fraction) -> tuple[Fraction, Fraction]:
    """The probabilities to reach each side of the boundary, whatever the other does, in rational numbers."""
    found = []
    for reached in (lambda k, i: k >= stop.certify[i], lambda k, i: k <= stop.refute[i]):
        mass, before, total = {0: Fraction(1)}, 0, Fraction(0)
        for i, n in enumerate(stop.n.tolist()):
            step = [math.comb(n - before, j) * p**j * (1 - p) ** (n - before - j) for j in range(n - before + 1)]
            after = dict[int, Fraction]()
            for k, weight in mass.items():
                for j, share in enumerate(step):
                    after[k + j] = after.get(k + j, Fraction(0)) + weight * share
            total += sum(weight for k, weight in after.items() if reached(k, i))
            mass, before = {k: weight for k, weight in after.items() if not reached(k, i)}, n
        found.append(total)
    return found[0], found[1]


@pytest.mark.parametrize(("threshold", "alpha"), [(0.5, 0.05), (0.75, 0.001), (0.84375, 0.05)])
def test_the_calibrated_level_in_rational_numbers(threshold, alpha):
    stop = boundary(threshold, alpha, alpha, 120)
    certify, refute = exact_error(stop, Fraction(threshold))
    assert 0.5 * level_for(threshold, alpha) < certify <= level_for(threshold, alpha)
    assert 0.2 * alpha < refute <= alpha  # few counts are possible


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
def test_exact_error_rates_stay_within_alpha_and_beta(threshold):
    """The probability to certify rises with p, so that p = threshold is the worst case; it is computed exactly."""
    for alpha, beta in ((0.05, 0.01), (0.001, 0.001)):
        stop = boundary(threshold, alpha, beta, 20_000)
        worst = operating_characteristics(stop, threshold)
        assert 0 < worst.certify <= alpha
        assert 0 < worst.refute <= beta
        assert operating_characteristics(stop, threshold - 0.001).certify < worst.certify
        assert operating_characteristics(stop, threshold + 0.001).refute < worst.refute


def test_all_samples_come_near_walds_bound():
    for r, p, times in ((0.25, 0.99, 1.5), (1.0, 0.97, 1.3), (1.0, 0.9, 1.25), (1.0, 0.75, 1.3)):
        threshold = float(ndtr(r))
        bound = wald_bound(p, threshold, 0.001)
        assert operating_characteristics(boundary(threshold, 0.001, 0.001, 20_000), p).expected_n < times * bound


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
    stops = nested_boundaries(thresholds, 0.001, 0.001, 5_000)
    for i, stop in enumerate(stops):
        alone = boundary(thresholds[i], 0.001, 0.001, 5_000)
        assert np.all(stop.certify >= alone.certify)
        assert np.all(stop.refute <= alone.refute)
    assert np.all(np.diff([stop.certify for stop in stops], axis=0) >= 0)
    assert np.all(np.diff([stop.refute for stop in stops], axis=0) >= 0)


@pytest.mark.parametrize("threshold", [0.7, 0.8413, 0.95])
def test_anytime_bound_reaches_the_target_where_the_boundary_certifies(threshold):
    """The grid below the target never delays it."""
    stop = boundary(threshold, 0.001, 0.001, 3_000)
    looks = list(zip(stop.n.tolist(), stop.certify.tolist(), strict=True))
    for n, k in looks:
        if k <= n:
            assert anytime_lower_bound(k, n, 0.001, 3_000, (stop,)) >= threshold
            assert anytime_lower_bound(k - 1, n, 0.001, 3_000, (stop,)) < threshold


def test_anytime_bound():
    assert anytime_lower_bound(10, 20, 0.001, 1_000) == 0.0
    bounds = [anytime_lower_bound(k, 1_000, 0.001, 10_000) for k in range(500, 1_001, 20)]
    assert np.all(np.diff(bounds) >= 0)
    for n in (100, 10_000, 10**7):
        fixed = lower_bound(n * 19 // 20, n, 0.001)
        assert 0.5 < anytime_lower_bound(n * 19 // 20, n, 0.001, min(2 * n, 10**7)) < fixed
        assert 0.5 < anytime_lower_bound(n * 19 // 20, n, 0.001, n) < fixed
        assert fixed - 0.001 < anytime_lower_bound(n * 19 // 20, n, 0.001, n, last_look=1.0) < fixed
    assert anytime_lower_bound(10**7, 10**7, 0.001, 10**7) < 1.0


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
        (lambda: log_e(11, 10, 0.8, 100, "up"), "0 ≤ k ≤ n"),
        (lambda: log_e(-1, 10, 0.8, 100, "down"), "0 ≤ k ≤ n"),
        (lambda: log_e(5.0, 10, 0.8, 100, "up"), "whole numbers"),
        (lambda: log_e(5, 10**7 + 1, 0.8, 100, "up"), "n must be at most 10,000,000"),
        (lambda: nested_boundaries((0.8, 0.8), 0.1, 0.1, 1_000), "strictly increasing"),
        (lambda: nested_boundaries((), 0.1, 0.1, 1_000), "strictly increasing"),
        (lambda: anytime_lower_bound(5, 10, 0.0, 20), "alpha must lie"),
        (lambda: operating_characteristics(boundary(0.8, 0.1, 0.1, 100), 1.1), "p must lie"),
        (lambda: wald_bound(0.9, 0.8, 0.0), "alpha must lie"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(UsageError, match=message):
        call()
