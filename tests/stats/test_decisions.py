"""Answers from counts: one input and many alike, ties, and the rule of ACES case by case."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from smoothcert.noise import Gaussian
from smoothcert.stats.decisions import (
    certified_class,
    choice_votes,
    guess_and_bounds,
    guessed_choice,
    predicted_choice,
    predicted_class,
    prefers_runner_up,
    routed_class,
)
from smoothcert.types import ABSTAIN, CERTIFIER, CORE, is_certified


@pytest.fixture
def votes() -> np.ndarray:
    return np.random.default_rng(0).multinomial(200, [0.5, 0.3, 0.2], size=60)


def test_many_inputs_are_answered_as_one_by_one(votes):
    selection = np.random.default_rng(1).multinomial(10, [0.5, 0.3, 0.2], size=60)
    runner_up = prefers_runner_up(selection, 10, 200, 0.01)
    assert 0 < runner_up.sum() < 60
    bounds = guess_and_bounds(selection, votes, 200, 0.01, runner_up)
    label, p_value = predicted_class(votes, 0.01)
    for i in range(60):
        assert runner_up[i] == prefers_runner_up(selection[i], 10, 200, 0.01)
        assert tuple(bound[i] for bound in bounds) == guess_and_bounds(selection[i], votes[i], 200, 0.01, runner_up[i])
        assert (label[i], p_value[i]) == predicted_class(votes[i], 0.01)


def test_certified_is_what_clopper_and_pearson_put_above_one_half(votes):
    guess, p_lower, p_upper = guess_and_bounds(votes, votes, 200, 0.05)
    exact = stats.beta.ppf(0.05, votes.max(1), 200 - votes.max(1) + 1)
    assert np.allclose(p_lower, exact)
    assert (p_lower <= exact).all()
    assert certified_class(guess, p_lower).tolist() == [
        g if p > 0.5 else ABSTAIN for g, p in zip(guess, exact, strict=True)
    ]
    assert (p_upper == 1).all()
    assert 0 < is_certified(p_lower).sum() < 60
    assert not is_certified(0.5)


def test_the_runner_up_bound_halves_alpha_and_counts_invalid_copies(votes):
    n = votes.sum(1) + np.arange(60)  # the rest are invalid
    guess, p_lower, p_upper = guess_and_bounds(votes, votes, n, 0.05, runner_up=True)
    for row, size, g, low, high in zip(votes, n, guess, p_lower, p_upper, strict=True):
        second = np.sort(row)[-2] + size - 200
        assert low == pytest.approx(stats.beta.ppf(0.025, row[g], size - row[g] + 1))
        assert high == pytest.approx(stats.beta.ppf(0.975, second + 1, size - second))
    labels = certified_class(guess, p_lower, p_upper)
    assert (labels == np.where((p_lower > 0.5) | (p_lower > p_upper), guess, ABSTAIN)).all()
    assert ((labels != ABSTAIN) & (p_lower < 0.5)).any()
    one_class = guess_and_bounds([7], [90], 100, 0.05, runner_up=True)
    assert one_class[2] == pytest.approx(stats.beta.ppf(0.975, 11, 90))


def test_the_bound_is_chosen_where_several_classes_share_the_votes():
    votes = [[100, 0, 0], [0, 0, 0], [90, 10, 0], [90, 0, 0], [90, 5, 5], [40, 30, 30]]
    assert prefers_runner_up(votes, 100, 10_000, 0.001).tolist() == [False, False, False, False, True, True]


def test_the_choice_of_the_bound_never_costs_much():
    """Mean radii (σ = 1) over inputs whose logits are Gaussian and whose top class leads; see docs/statistics.md."""
    rng, inputs = np.random.default_rng(0), 2_000
    leads = {"spread": (10, 1.2, 0, 5), "sure": (10, 1.0, 4, 14), "two": (2, 0.0, 0, 6), "rare": (10, 1.0, 0, 6)}
    gains = {}
    for (name, (classes, spread, low, high)), n in itertools.product(leads.items(), (100, 1_000, 100_000)):
        logits = rng.normal(size=(inputs, classes)) * spread
        logits[:, 2:] -= 6 * (name == "rare")
        logits[:, 1] *= name != "rare"
        logits[:, 0] += rng.uniform(low, high, inputs)
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        selection, counts = rng.multinomial(100, p), rng.multinomial(n, p)
        chosen = prefers_runner_up(selection, 100, n, 0.001)

        def mean_radius(runner_up, selection=selection, counts=counts, n=n, p=p):
            guess, p_lower, p_upper = guess_and_bounds(selection, counts, n, 0.001, runner_up)
            return float((Gaussian(1.0).radius(p_lower, p_upper=p_upper) * (guess == p.argmax(1))).mean())

        gains[name, n] = mean_radius(chosen) / mean_radius(False) - 1, mean_radius(True) / mean_radius(False) - 1
    assert all(gain > -0.002 for gain, _ in gains.values())
    assert min(gain for (name, _), (gain, _) in gains.items() if name == "spread") > 0.3
    assert min(always for _, always in gains.values()) < -0.02  # which is why not all inputs use it


def test_predicted_is_what_the_two_sided_test_rejects(votes):
    label, p_value = predicted_class(votes, 0.01)
    for row, one, p in zip(votes, label, p_value, strict=True):
        second, first = np.sort(row)[-2:]
        exact = stats.binomtest(int(first), int(first + second), 0.5).pvalue
        assert p == pytest.approx(exact)
        assert one == (row.argmax() if exact <= 0.01 else ABSTAIN)


def test_a_tie_and_no_vote_at_all_are_abstentions():
    for counts in ([7, 7, 0], [0, 0, 0]):
        label, p_value = predicted_class(counts, 0.999)
        assert (int(label), float(p_value)) == (ABSTAIN, 1.0)
    assert int(certified_class(*guess_and_bounds([0, 0], [0, 0], 10, 0.5))) == ABSTAIN
    assert int(guessed_choice([5, 5])) == CERTIFIER


def test_choices_are_counted_at_every_threshold():
    scores = np.array([0.0, 0.1, 0.35, 0.5, 0.5, 0.9, 1.0])
    thresholds = np.linspace(0, 1, 11)
    histogram = [((scores <= t) & (scores > t - 0.1)).sum() if t else (scores <= 0).sum() for t in thresholds.round(1)]
    core, certifier = choice_votes([histogram, histogram])[:, 1]
    assert certifier.tolist() == [(scores <= t).sum() for t in thresholds.round(1)]
    assert (core + certifier == len(scores)).all()


def test_a_choice_is_predicted_as_a_class_is():
    for core, certifier in ((90, 10), (10, 90), (52, 48), (50, 50)):
        choice, p_value = predicted_choice([core, certifier], 0.01)
        assert p_value == pytest.approx(stats.binomtest(core, 100, 0.5).pvalue)
        assert int(choice) == (ABSTAIN if p_value > 0.01 else CORE if core > certifier else CERTIFIER)


@pytest.mark.parametrize(
    ("choice", "label", "core"), list(itertools.product((CERTIFIER, CORE, ABSTAIN), (0, 1, ABSTAIN), (0, 1, ABSTAIN)))
)
def test_the_rule_of_aces(choice, label, core):
    """As Algorithm 1 of the paper reads, with an abstention where there is no core to ask."""
    if choice == CERTIFIER:
        expected = label
    elif choice == CORE:
        expected = core
    else:
        expected = label if label == core else ABSTAIN
    assert int(routed_class(choice, label, core)) == expected
