"""Intervals over the test sample: those of SciPy, repeatable, and never too sure of few inputs."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from smoothcert.report import intervals
from smoothcert.report.intervals import acr_interval, bootstrap_interval, credited_radius, sign_flip_p_value
from smoothcert.report.metrics import average_certified_radius
from smoothcert.store import Outcomes


def test_examples():
    assert doctest.testmod(intervals).failed == 0


def test_bootstrap_interval_has_the_width_of_the_mean():
    radii = np.random.default_rng(0).gamma(2.0, 0.3, size=400)
    low, high = bootstrap_interval(radii)
    assert bootstrap_interval(radii) == (low, high) != bootstrap_interval(radii, seed=1)
    assert high - low == pytest.approx(2 * 1.96 * radii.std() / 20, rel=0.1)
    assert bootstrap_interval([0.5]) == bootstrap_interval([0.5] * 3) == (0.5, 0.5)


def test_acr_interval_is_about_all_inputs():
    run = Outcomes("run", range(6), [1] * 6, [1, 1, 0, -1, 1, 1], [0.5, 0.2, 0.9, 0.0, 0.1, 0.4])
    assert credited_radius(run).tolist() == [0.5, 0.2, 0.0, 0.0, 0.1, 0.4]
    assert credited_radius(run).mean() == pytest.approx(average_certified_radius(run))
    low, high = acr_interval(run)
    assert 0 <= low < average_certified_radius(run) < high <= 0.5
    assert acr_interval(run) == (low, high)


def test_sign_flips_are_never_too_sure():
    assert sign_flip_p_value([0.3] * 5) == 2 / 32
    assert sign_flip_p_value([0.0] * 50) == 1.0
    assert sign_flip_p_value([0.1] * 50) == 1 / (1 + intervals.RESAMPLES)
    assert sign_flip_p_value([0.1]) == sign_flip_p_value([0.5, -0.5]) == 1.0
