"""Recertification: false radii stay within alpha where the probabilities of both models are known.

The procedure runs on votes drawn from those probabilities. The changed model loses copies of the original's class and
gains none, so that its probability is exactly that of the original less ζ. That the votes of real models are counted so
is tested in tests/certify/test_recertify.py.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from smoothcert import ABSTAIN, Gaussian
from smoothcert.certify import Task, answer
from smoothcert.certify.recertify import Recertify, StoredVotes
from smoothcert.classifiers import Pair
from smoothcert.sampling import Draw
from smoothcert.sampling.copies import input_digest
from smoothcert.stats import decisions, lower_bound, upper_bound
from smoothcert.types import Votes

SIGMA, N = 0.5, 400
MANY = 1_000_000_000  # stored votes, whose bound is then as good as exact
QUICK, FULL = 2_000, 20_000
at_every_level = pytest.mark.parametrize(
    ("alpha", "runs"), [(0.05, QUICK), *(pytest.param(a, FULL, marks=pytest.mark.soundness) for a in (0.05, 0.001))]
)


@pytest.fixture(autouse=True)
def bounds_are_cached(monkeypatch):
    monkeypatch.setattr(decisions, "lower_bound", functools.cache(lower_bound))
    monkeypatch.setattr(decisions, "upper_bound", functools.cache(upper_bound))


def within(false: int, runs: int, alpha: float) -> bool:
    """Whether so many false claims are plausible when each happens with probability at most alpha."""
    return stats.binomtest(false, runs, alpha, alternative="greater").pvalue > 1e-4


def false_radii(p: float, zeta: float, stored: int, runs: int, alpha: float, direct: float = 0.99) -> int:
    """Count false claims where the original has probability p and ``stored`` votes, and the changed model p − ζ."""
    random, noise = np.random.default_rng(7), Gaussian(SIGMA)
    inputs = [torch.tensor([float(number)]) for number in range(runs)]  # each has its own stored votes
    votes = random.binomial(stored, p, runs)
    counts = np.stack([stored - votes, votes], axis=1)
    known = StoredVotes([input_digest(x) for x in inputs], np.tile([0, 40], (runs, 1)), 40, counts, stored)
    pair = Pair(nn.Linear(1, 2), nn.Linear(1, 2))
    procedure = Recertify(pair=pair, stored=known, n=N, alpha=alpha, direct=direct)
    truth, false = float(SIGMA * stats.norm.ppf(p - zeta)), 0

    def draw(request: Draw) -> tuple[Votes, ...]:
        kept, lost, _ = random.multinomial(request.n, [p - zeta, zeta, 1 - p]).tolist()
        own = Votes(request.n, (request.n - kept, kept))
        return (Votes(request.n, (0, lost, request.n - lost)), own) if request.source else (own,)

    for number, x in enumerate(inputs):
        found = answer(procedure.certify(Task(noise, 2, 1, seed=0, index=number, x=x)), draw)
        false += found.label != ABSTAIN and (found.label != 1 or found.radius > truth + 1e-12)
    return false


def tight_change(alpha: float) -> float:
    """Return a ζ at which a count comes up, whose bound is too small, as often as Clopper–Pearson lets it."""
    return upper_bound(4, N, alpha) + 2e-4  # more than the bound from many stored votes loses


def tight_votes(alpha: float) -> float:
    """Return a p at which a false bound comes up as often as Clopper–Pearson lets it."""
    bounds = lower_bound(np.arange(N + 1), N, alpha)
    return float(bounds[int(np.argmax(bounds > 0.7))]) - 1e-9


@at_every_level
@pytest.mark.parametrize("stored", [1_000, MANY])
def test_false_radii_stay_within_alpha(runs, alpha, stored):
    """Few stored votes make the original's bound matter; with many, only the bound of the change can fail."""
    false = false_radii(0.8, tight_change(0.45 * alpha), stored, runs, alpha)
    assert within(false, runs, alpha)
    if stored == MANY:  # and the check is sharp: false radii come up about as often as that bound lets them
        assert within(runs - false, runs, 1 - 0.25 * alpha)


@at_every_level
def test_false_radii_of_direct_bounds_stay_within_alpha(runs, alpha):
    """In the second case the stored votes choose the branch: about half of the runs take each."""
    p = tight_votes(0.9 * alpha)
    false = false_radii(p, 0.0, 1_000, runs, alpha, direct=0.5)
    assert within(false, runs, alpha)
    assert within(runs - false, runs, 1 - 0.7 * alpha)
    assert within(false_radii(p, 0.0, 1_000, runs, alpha, direct=p), runs, alpha)


def test_the_check_fails_with_a_point_estimate_of_the_change(monkeypatch):
    monkeypatch.setattr(decisions, "upper_bound", lambda k, n, alpha: k / n)
    assert not within(false_radii(0.8, tight_change(0.45 * 0.05), MANY, QUICK, 0.05), QUICK, 0.05)


def test_the_check_fails_when_the_bound_of_the_votes_is_weakened(monkeypatch):
    monkeypatch.setattr(decisions, "lower_bound", lambda k, n, alpha: lower_bound(k, n, 3 * alpha))
    assert not within(false_radii(tight_votes(0.1), 0.0, 1_000, QUICK, 0.05, direct=0.5), QUICK, 0.05)


@pytest.mark.soundness
def test_the_full_check_fails_at_small_alpha_too(monkeypatch):
    monkeypatch.setattr(decisions, "upper_bound", lambda k, n, alpha: k / n)
    assert not within(false_radii(0.8, tight_change(0.45 * 0.001), MANY, FULL, 0.001), FULL, 0.001)
