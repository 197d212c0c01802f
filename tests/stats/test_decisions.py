"""Answers from counts: one input and many alike, ties, and the rule of ACES case by case."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from smoothcert.stats.decisions import (
    certified_class,
    choice_votes,
    guess_and_bound,
    guessed_choice,
    is_majority,
    predicted_choice,
    predicted_class,
    routed_class,
)
from smoothcert.types import ABSTAIN, CERTIFIER, CORE


@pytest.fixture
def votes() -> np.ndarray:
    return np.random.default_rng(0).multinomial(200, [0.5, 0.3, 0.2], size=60)


def test_many_inputs_are_answered_as_one_by_one(votes):
    selection = np.random.default_rng(1).multinomial(10, [0.5, 0.3, 0.2], size=60)
    guess, p_lower = guess_and_bound(selection, votes, 200, 0.01)
    label, p_value = predicted_class(votes, 0.01)
    for i in range(60):
        assert (guess[i], p_lower[i]) == guess_and_bound(selection[i], votes[i], 200, 0.01)
        assert (label[i], p_value[i]) == predicted_class(votes[i], 0.01)


def test_certified_is_what_clopper_and_pearson_put_above_one_half(votes):
    guess, p_lower = guess_and_bound(votes, votes, 200, 0.05)
    exact = stats.beta.ppf(0.05, votes.max(1), 200 - votes.max(1) + 1)
    assert np.allclose(p_lower, exact)
    assert (p_lower <= exact).all()
    assert certified_class(guess, p_lower).tolist() == [
        g if p > 0.5 else ABSTAIN for g, p in zip(guess, exact, strict=True)
    ]
    assert 0 < is_majority(p_lower).sum() < 60
    assert not is_majority(0.5)


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
    assert int(certified_class(*guess_and_bound([0, 0], [0, 0], 10, 0.5))) == ABSTAIN
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
