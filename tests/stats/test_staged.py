"""Stages against the figures of Horváth et al. (2022), the bounds they are made of, and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from smoothcert.stats import lower_bound, upper_bound
from smoothcert.stats.staged import last_stage_size, samples_needed, stage_boundaries, staged_characteristics
from smoothcert.types import UsageError

AT_SIGMA = float(ndtr(1.0))


def test_published_counts():
    """Figure 4: certify from 880, 8538, 105607 on; abort below 795 and 8270."""
    found = stage_boundaries(AT_SIGMA, (1_000, 10_000, 125_000), 0.001, 0.0001)
    assert found.certify.tolist() == [880, 8_538, 105_607]
    assert found.abort.tolist() == [794, 8_269, -1]


@pytest.mark.parametrize("threshold", [0.5, 0.7, AT_SIGMA, 0.9987])
def test_counts_are_where_the_bounds_cross(threshold):
    stages = (100, 1_000, 10_000, 120_000)
    found = stage_boundaries(threshold, stages, 0.001, 0.01)
    for n, certify, abort in zip(stages, found.certify.tolist(), found.abort.tolist(), strict=True):
        assert lower_bound(certify - 1, n, 0.001 / 4) <= threshold
        assert certify == n + 1 or lower_bound(certify, n, 0.001 / 4) > threshold
        if n == stages[-1]:
            assert abort == -1
        else:
            assert upper_bound(abort, n, 0.01 / 3) < threshold <= upper_bound(abort + 1, n, 0.01 / 3)


def test_one_stage_is_plain_certification():
    found = stage_boundaries(0.8, (1_000,), 0.001, 0.01)
    assert found.abort.tolist() == [-1]
    assert (
        lower_bound(int(found.certify[0]), 1_000, 0.001) > 0.8 >= lower_bound(int(found.certify[0]) - 1, 1_000, 0.001)
    )


@pytest.mark.parametrize("n", [100, 1_000, 100_000])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_last_stage_keeps_the_largest_radius(n, stages, alpha):
    """Theorem 6.1(3): with all votes agreeing, the last stage at alpha/s proves what CERTIFY proves at n."""
    size = last_stage_size(n, alpha, stages)
    assert lower_bound(size, size, alpha / stages) >= lower_bound(n, n, alpha) * (1 - 1e-12)
    if stages > 1:
        assert lower_bound(size - 1, size - 1, alpha / stages) < lower_bound(n, n, alpha)


@pytest.mark.parametrize("threshold", [0.5, 0.7, AT_SIGMA, 0.9987, 1 - 1e-6])
@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_samples_needed(threshold, alpha):
    n = samples_needed(threshold, alpha)
    assert lower_bound(n, n, alpha) > threshold
    assert n == 1 or alpha ** (1 / (n - 1)) <= threshold * (1 + 1e-12)


def test_samples_needed_beyond_the_verified_range():
    assert samples_needed(0.5, 2.0**-10) == 11
    assert samples_needed(1 - 1e-9, 0.001) == pytest.approx(6.9078e9, rel=1e-3)


@pytest.mark.parametrize("p", [0.0, 0.6, 0.8, AT_SIGMA, 0.87, 0.95, 1.0])
def test_characteristics_agree_with_simulation(p):
    stages, runs = (100, 1_000, 10_000), 20_000
    bounds = stage_boundaries(AT_SIGMA, stages, 0.05, 0.05)
    found = staged_characteristics(bounds, p)
    rng, going, used = np.random.default_rng(5), np.ones(runs, dtype=bool), np.zeros(runs)
    for j, n in enumerate(stages):
        used += n * going
        k = rng.binomial(n, p, runs)
        for share, exact in (
            (going & (k >= bounds.certify[j]), found.certify[j]),
            (going & (k <= bounds.abort[j]), found.abort[j]),
        ):
            assert np.mean(share) == pytest.approx(exact, abs=4.5 * 0.5 / np.sqrt(runs))
        going &= (k < bounds.certify[j]) & (k > bounds.abort[j])
        assert np.mean(going) == pytest.approx(found.go_on[j], abs=4.5 * 0.5 / np.sqrt(runs))
    assert used.mean() == pytest.approx(found.expected_samples, abs=4.5 * used.std() / np.sqrt(runs) + 1e-6)
    assert found.certify.sum() + found.abort.sum() + found.go_on[-1] == pytest.approx(1.0)


def test_first_stage_by_true_probability():
    """Figure 15: with 100 samples only a band around the threshold goes on, narrower for larger alpha and beta."""
    stages = (100, 10_000, 100_000, 1_200_000)
    p = np.linspace(0.5, 1.0, 51)
    loose, tight = (
        np.array([staged_characteristics(stage_boundaries(AT_SIGMA, stages, a, a), q).go_on[0] for q in p])
        for a in (0.01, 0.0001)
    )
    assert np.all(loose <= tight + 1e-12)
    assert tight[0] < 0.01
    assert tight[-1] < 1e-9
    assert tight[np.argmin(abs(p - AT_SIGMA))] > 0.99


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stage_boundaries(0.8, (100, 100), 0.1, 0.1), "strictly increasing"),
        (lambda: stage_boundaries(0.8, (1_000, 100), 0.1, 0.1), "strictly increasing"),
        (lambda: stage_boundaries(0.8, (0, 100), 0.1, 0.1), "positive"),
        (lambda: stage_boundaries(0.8, (), 0.1, 0.1), "positive"),
        (lambda: stage_boundaries(0.8, (100,), 0.0, 0.1), "alpha must lie"),
        (lambda: stage_boundaries(0.8, (100,), 0.1, 1.0), "beta must lie"),
        (lambda: stage_boundaries(1.0, (100,), 0.1, 0.1), "threshold must lie"),
        (lambda: stage_boundaries(0.4, (100,), 0.1, 0.1), "threshold must lie"),
        (lambda: staged_characteristics(stage_boundaries(0.8, (100,), 0.1, 0.1), -0.1), "p must lie"),
        (lambda: last_stage_size(0, 0.1, 3), "at least 1"),
        (lambda: last_stage_size(10, 0.1, 0), "at least 1"),
        (lambda: last_stage_size(10, 1.0, 2), "alpha must lie"),
        (lambda: samples_needed(1.0, 0.001), "threshold must lie"),
        (lambda: samples_needed(0.9, 0.0), "alpha must lie"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(UsageError, match=message):
        call()
