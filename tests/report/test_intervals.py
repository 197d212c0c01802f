"""Bootstrap, sign flips and quantiles: against SciPy and closed cases."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from scipy import stats

from smoothcert.report import intervals
from smoothcert.report.intervals import (
    acr_interval,
    bootstrap_interval,
    credited_radius,
    probability_quantiles,
    resampled_means,
    sign_flip_p_value,
)
from smoothcert.report.metrics import Outcomes, average_certified_radius
from smoothcert.types import UsageError


@pytest.fixture
def radii():
    return np.random.default_rng(0).gamma(2.0, 0.3, size=400)


def test_examples():
    assert doctest.testmod(intervals).failed == 0


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
def test_bootstrap_agrees_with_scipy(radii, confidence):
    found = bootstrap_interval(radii, confidence=confidence, resamples=20_000)
    expected = stats.bootstrap(
        (radii,),
        np.mean,
        confidence_level=confidence,
        n_resamples=20_000,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert found == pytest.approx(tuple(expected), abs=0.15 * radii.std() / 20)


def test_rows_share_their_draws(radii):
    rows = np.stack([radii, radii[::-1] * 2, radii + 0.25])
    means = resampled_means(rows, resamples=500, seed=3)
    assert means.shape == (500, 3)
    assert means[:, 2] - means[:, 0] == pytest.approx(0.25)
    assert means[:, 0].tolist() == resampled_means(radii, resamples=500, seed=3).tolist()
    assert means[:, 0].tolist() != resampled_means(radii, resamples=500, seed=4)[:].tolist()
    # Drawn with replacement: the spread is that of the mean.
    assert means[:, 0].std() == pytest.approx(radii.std() / 20, rel=0.15)


def test_many_inputs_are_drawn_in_parts(radii, monkeypatch):
    whole = resampled_means(radii, resamples=50)
    monkeypatch.setattr(intervals, "_AT_ONCE", 7 * len(radii))
    assert resampled_means(radii, resamples=50).tolist() == whole.tolist()
    assert sign_flip_p_value(radii - 0.55, resamples=50) == sign_flip_p_value(radii - 0.55, resamples=50)


def test_acr_interval_is_about_all_inputs():
    run = Outcomes("run", range(6), [1] * 6, [1, 1, 0, -1, 1, 1], [0.5, 0.2, 0.9, 0.0, 0.1, 0.4])
    assert credited_radius(run).tolist() == [0.5, 0.2, 0.0, 0.0, 0.1, 0.4]
    assert credited_radius(run).mean() == pytest.approx(average_certified_radius(run))
    low, high = acr_interval(run)
    assert 0 <= low < average_certified_radius(run) < high <= 0.5
    assert acr_interval(run) == (low, high)


@pytest.mark.parametrize("shift", [0.0, 0.1, 0.3])
def test_sign_flips_agree_with_scipy(shift):
    values = np.random.default_rng(5).normal(shift, 1.0, size=12)
    expected = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
    assert sign_flip_p_value(values, resamples=20_000) == pytest.approx(expected, abs=0.015)


def test_sign_flips_are_never_too_sure():
    assert sign_flip_p_value([0.3] * 5) > 0.05  # 2 of 32 assignments of signs reach it
    assert sign_flip_p_value([0.0] * 50) == 1.0
    assert sign_flip_p_value([0.1] * 50, resamples=999) == 0.001


def test_quantiles_of_probabilities():
    values = np.random.default_rng(2).beta(5, 1, size=999)
    levels = [0.0, 0.05, 0.5, 0.95, 1.0]
    expected = stats.mstats.mquantiles(values, levels[1:-1], alphap=0, betap=1)
    found = probability_quantiles(values, levels)
    assert set(found) <= set(values)
    assert found[1:-1] == pytest.approx(expected, abs=0.01)
    assert (found[0], found[-1]) == (values.min(), values.max())
    for level, value in zip(levels, found, strict=True):
        assert (values <= value).mean() >= level


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: bootstrap_interval([]), "at least one input"),
        (lambda: bootstrap_interval([1.0], confidence=1.0), "between 0 and 1, not 1.0"),
        (lambda: resampled_means([1.0], resamples=0), "one resample"),
        (lambda: sign_flip_p_value([]), "at least one input"),
        (lambda: probability_quantiles([]), "at least one input"),
        (lambda: probability_quantiles([0.5, 1.5]), "must lie between 0 and 1"),
        (lambda: probability_quantiles([0.5], [-0.1]), "must lie between 0 and 1"),
        (lambda: probability_quantiles([float("nan")]), "must lie between 0 and 1"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(UsageError, match=said):
        call()
