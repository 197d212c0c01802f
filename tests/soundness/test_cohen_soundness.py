"""False claims stay within alpha, measured on classifiers whose true radius is known, through the whole pipeline.

The margin is put where Clopper–Pearson is tightest, so that false claims come up nearly as often as they may; the last
tests weaken the bound on purpose and show that the check notices.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from smoothcert import ABSTAIN, Cohen, Gaussian, Smoothed
from smoothcert.stats import decisions, lower_bound

SIGMA = 0.5
QUICK, FULL = 2_000, 20_000
at_every_level = pytest.mark.parametrize(
    ("alpha", "runs"), [(0.05, QUICK), *(pytest.param(a, FULL, marks=pytest.mark.soundness) for a in (0.05, 0.001))]
)


def within(false: int, runs: int, alpha: float) -> bool:
    """Whether so many false claims are plausible when each happens with probability at most alpha."""
    return stats.binomtest(false, runs, alpha, alternative="greater").pvalue > 1e-4


def tightest_margin(n: int, alpha: float) -> float:
    """A distance from the boundary at which a false radius is as likely as Clopper–Pearson lets it be.

    There p lies just below the bound of some k, so that the k votes which give a false radius come up with probability
    alpha; around 0.7 single votes move the bound little, which makes a weakened bound stand out.
    """
    bounds = lower_bound(np.arange(n + 1), n, alpha)
    k = int(np.argmax(bounds > 0.7))
    margin = float(SIGMA * stats.norm.ppf(bounds[k])) - 1e-6  # float32 may move the input by that much
    assert stats.binom.sf(k - 1, n, stats.norm.cdf(margin / SIGMA)) > 0.99 * alpha
    return margin


def false_certificates(model, runs: int, alpha: float, n: int) -> int:
    margin = tightest_margin(n, alpha)
    smoothed = Smoothed(model, Gaussian(SIGMA), input_range=(-10, 10))
    x = torch.tensor([0.5 + margin, 0.5])
    procedure = Cohen(n0=40, n=n, alpha=alpha)
    certificates = smoothed.run(((i, x) for i in range(runs)), procedure, procedure.certify, seed=17)
    truth = float(x[0]) - 0.5
    return sum(c.label != ABSTAIN and (c.label != 1 or c.radius > truth) for _, c in certificates)


def false_predictions(model, x: torch.Tensor, top: int, runs: int, alpha: float, n: int) -> int:
    smoothed = Smoothed(model, Gaussian(SIGMA))
    procedure = Cohen(n=n, alpha=alpha)
    answers = smoothed.run(((i, x) for i in range(runs)), procedure, procedure.predict, seed=23)
    return sum(a.label not in (ABSTAIN, top) for _, a in answers)


@at_every_level
def test_false_radii_stay_within_alpha(half_space, runs, alpha):
    false = false_certificates(half_space, runs, alpha, 400)
    assert within(false, runs, alpha)
    # and the check is sharp: false radii come up about as often as they may
    assert within(runs - false, runs, 1 - 0.8 * alpha)


@at_every_level
def test_false_predictions_stay_within_alpha(half_space, threes, runs, alpha):
    barely = torch.tensor([0.5 + 1e-5, 0.5])  # the top class is ahead by less than the test can see
    assert within(false_predictions(half_space, barely, 1, runs, alpha, n=101), runs, alpha)
    assert within(false_predictions(threes, barely, 0, runs, alpha, n=101), runs, alpha)


@pytest.mark.parametrize(
    "weakened",
    [lambda k, n, alpha: lower_bound(k, n, 2 * alpha), lambda k, n, alpha: k / n],
    ids=["alpha doubled", "no bound at all"],
)
def test_the_check_fails_when_the_bound_is_weakened(half_space, monkeypatch, weakened):
    monkeypatch.setattr(decisions, "lower_bound", weakened)
    assert not within(false_certificates(half_space, QUICK, 0.05, 400), QUICK, 0.05)


@pytest.mark.soundness
def test_the_full_check_fails_at_small_alpha_too(half_space, monkeypatch):
    monkeypatch.setattr(decisions, "lower_bound", lambda k, n, alpha: lower_bound(k, n, 4 * alpha))
    assert not within(false_certificates(half_space, FULL, 0.001, 400), FULL, 0.001)


def test_the_check_fails_when_the_top_class_test_is_weakened(half_space, monkeypatch):
    real = decisions.top_class_p_value
    monkeypatch.setattr(decisions, "top_class_p_value", lambda a, b: real(a, b) / 8)
    assert not within(false_predictions(half_space, torch.tensor([0.5 + 1e-5, 0.5]), 1, QUICK, 0.05, 101), QUICK, 0.05)
