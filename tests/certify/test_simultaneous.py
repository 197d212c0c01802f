"""Statements that hold together: shares that never add up to more than alpha, and what they cost."""

from __future__ import annotations

import doctest
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smoothcert import Anytime, Cohen, Gaussian, Smoothed, Staged
from smoothcert.certify import Aces
from smoothcert.certify import plan as planning
from smoothcert.certify import simultaneous as module
from smoothcert.certify.plan import plan, simultaneous_cost
from smoothcert.certify.simultaneous import simultaneous
from smoothcert.stats import LAST_LOOK, lower_bound
from smoothcert.types import UsageError


def test_examples():
    assert doctest.testmod(module).failed == doctest.testmod(planning).failed == 0


@given(st.floats(1e-12, 0.5), st.integers(1, 10**9))
def test_shares_never_add_up_to_more_than_alpha(alpha, count):
    share = simultaneous(Cohen(alpha=alpha), count).alpha
    assert Fraction(share) * count <= Fraction(alpha)
    assert Fraction(repr(share)) * count <= Fraction(repr(alpha))
    assert share * count == pytest.approx(alpha, rel=1e-12)


@pytest.mark.parametrize(
    "procedure",
    [
        Cohen(n=500, n0=20, norm="linf"),
        Staged(radius=0.25, stages=(100, 1000), beta=0.01),
        Anytime(radius=(0.25, 0.5), n_max=5000),
        Aces(core=torch.nn.Linear(2, 2), n=300, theta=0.4),
    ],
)
def test_nothing_but_alpha_changes(procedure):
    shared = simultaneous(procedure, 250)
    assert type(shared) is type(procedure)
    changed = {key for key, value in procedure.config().items() if shared.config()[key] != value}
    assert changed == {"alpha"}
    assert shared.alpha == pytest.approx(procedure.alpha / 250)


def test_refusals():
    with pytest.raises(UsageError, match="select at least one input"):
        simultaneous(Cohen(), 0)
    with pytest.raises(UsageError, match="too small to be shared by 1,000 inputs"):
        simultaneous(Cohen(alpha=5e-324), 1000)


def test_certificates_carry_their_share(half_space):
    smoothed = Smoothed(half_space, Gaussian(0.5))
    x, procedure = torch.tensor([0.9, 0.5]), Cohen(n=2000, alpha=0.01)
    single = smoothed.certify(x, procedure, seed=1)
    shared = smoothed.certify(x, simultaneous(procedure, 100), seed=1)
    assert (single.alpha, shared.alpha) == (0.01, pytest.approx(0.0001))
    assert shared.radius < single.radius
    assert shared.p_lower == lower_bound(max(shared.counts), 2000, shared.alpha)


@pytest.mark.parametrize(
    ("procedure", "part"),
    [
        (Cohen(n=10_000, alpha=0.001), 1.0),
        (Staged(radius=0.25, stages=(100, 1000), alpha=0.001), 0.5),
        (Anytime(radius=0.25, n_max=10_000, alpha=0.001), LAST_LOOK),
    ],
)
def test_the_cost_is_that_of_both_plans(procedure, part):
    noise = Gaussian(0.5)
    cost = simultaneous_cost(procedure, noise, 500)
    assert cost.share == 2e-06
    assert cost.single == plan(procedure, noise).largest_radius
    assert cost.together == plan(simultaneous(procedure, 500), noise).largest_radius
    assert cost.together < cost.single
    # level^(1/n) is the bound when all votes agree, so the exponents must be alike.
    assert cost.factor == pytest.approx(np.log(part * 2e-06) / np.log(part * 0.001))


def test_so_many_samples_keep_the_reach():
    procedure, noise = Cohen(n=10_000, alpha=0.001), Gaussian(0.5)
    cost = simultaneous_cost(procedure, noise, 500)
    more = simultaneous(Cohen(n=int(np.ceil(10_000 * cost.factor)), alpha=0.001), 500)
    assert plan(more, noise).largest_radius == pytest.approx(cost.single, abs=1e-4)
