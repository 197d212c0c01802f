"""Staged and Anytime through the whole pipeline on a classifier with a known radius: false claims within α, β.

The true radius lies a hair below the target for certificates and a hair above it for refutations, the worst cases.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from smoothcert import Anytime, Gaussian, Smoothed, Staged
from smoothcert.certify import staged
from smoothcert.stats import sequential
from smoothcert.types import Outcome

SIGMA, TARGET, HAIR = 0.5, 0.4, 1e-5
QUICK, TWIN, FULL = 500, 1_000, 20_000
at_every_level = pytest.mark.parametrize(
    ("level", "runs"), [(0.05, QUICK), *(pytest.param(a, FULL, marks=pytest.mark.soundness) for a in (0.05, 0.001))]
)


def within(false: int, runs: int, level: float) -> bool:
    """Whether so many false claims are plausible when each happens with probability at most ``level``."""
    return bool(stats.binomtest(false, runs, level, alternative="greater").pvalue > 1e-4)


def certificates(model, procedure, runs: int, margin: float):
    smoothed = Smoothed(model, Gaussian(SIGMA), input_range=(-10, 10), batch_size=2000)
    x = torch.tensor([0.5 + margin, 0.5])
    return [c for _, c in smoothed.run(((i, x) for i in range(runs)), procedure, procedure.certify, seed=29)]


def false_claims(model, procedure, runs: int) -> int:
    """Certificates that claim more than the truth: a wrong class, a radius too large, or the target itself."""
    truth = TARGET - HAIR
    found = certificates(model, procedure, runs, truth)
    return sum(
        not c.abstained and (c.label != 1 or c.radius > truth + 1e-6 or Outcome.CERTIFIED in _from(c, TARGET))
        for c in found
    )


def false_refutations(model, procedure, runs: int) -> int:
    found = certificates(model, procedure, runs, TARGET + HAIR)
    guessed = [c for c in found if not c.selection or np.argmax(c.selection) == 1]  # Staged refutes its guess only
    return sum(Outcome.REFUTED in _up_to(c, TARGET) for c in guessed)


def _from(c, target):
    return [outcome for radius, outcome in c.decisions.items() if radius >= target]


def _up_to(c, target):
    return [outcome for radius, outcome in c.decisions.items() if radius <= target]


def procedures(level: float):
    return {
        "staged": Staged(radius=TARGET, stages=(60, 200, 400), alpha=level, beta=level, n0=40),
        "target": Anytime(radius=TARGET, n_max=400, alpha=level, beta=level),
        "several radii": Anytime(radius=(0.2, 0.35, TARGET, 0.45, 0.6), n_max=400, alpha=level, beta=level),
        "budget": Anytime(n_max=400, alpha=level, beta=level),
        "deadline": Anytime(radius=TARGET, n_max=400, alpha=level, beta=level, deadline=0.004),
    }


@at_every_level
@pytest.mark.parametrize("name", procedures(0.5))
def test_false_certificates_stay_within_alpha(half_space, name, level, runs):
    assert within(false_claims(half_space, procedures(level)[name], runs), runs, level)


@at_every_level
@pytest.mark.parametrize("name", ["staged", "target", "several radii", "deadline"])
def test_false_refutations_stay_within_beta(half_space, name, level, runs):
    assert within(false_refutations(half_space, procedures(level)[name], runs), runs, level)


def test_the_check_fails_for_a_broken_stage_boundary(half_space, monkeypatch):
    real = staged.stage_boundaries

    def broken(*arguments):
        found = real(*arguments)
        return replace(found, certify=found.certify - 8, abort=found.abort + 8)

    monkeypatch.setattr(staged, "stage_boundaries", broken)
    assert not within(false_claims(half_space, procedures(0.05)["staged"], TWIN), TWIN, 0.05)
    assert not within(false_refutations(half_space, procedures(0.05)["staged"], TWIN), TWIN, 0.05)


def test_the_check_fails_for_a_bound_that_is_not_for_every_time(half_space, monkeypatch):
    """A fixed-n bound looked at again and again is the classical mistake."""
    from smoothcert.stats import lower_bound

    monkeypatch.setattr(sequential, "anytime_lower_bound", lambda k, n, alpha, *_, **__: lower_bound(k, n, alpha))

    def eager(*arguments):
        return tuple(replace(b, certify=np.zeros_like(b.certify)) for b in real(*arguments))

    real = sequential.nested_boundaries
    monkeypatch.setattr(sequential, "nested_boundaries", eager)
    assert not within(false_claims(half_space, procedures(0.05)["target"], TWIN), TWIN, 0.05)


def test_the_check_fails_for_a_broken_refutation(half_space, monkeypatch):
    real = sequential.nested_boundaries

    def broken(*arguments):
        return tuple(replace(b, refute=b.refute + 4) for b in real(*arguments))

    monkeypatch.setattr(sequential, "nested_boundaries", broken)
    assert not within(false_refutations(half_space, procedures(0.05)["target"], TWIN), TWIN, 0.05)
