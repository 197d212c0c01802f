"""PREDICT that stops early is wrong with probability at most alpha, on simulated votes; weakened twins are caught.

In a tie every answer counts as wrong. The evidence loses much of alpha to the mixture, so that sampling alone would not
notice first votes that are counted twice; the exact mean of the e-values notices it.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from smoothcert import ABSTAIN, Anytime, Gaussian
from smoothcert.certify import Task, answer
from smoothcert.sampling import Draw
from smoothcert.stats import top_class_p_value
from smoothcert.stats.pairs import anytime_top_class, looks
from smoothcert.types import Votes

BUDGET = 400
RUNS = [4_000, pytest.param(50_000, marks=pytest.mark.soundness)]
CASES = {
    "two equal classes": [0.5, 0.5],
    "two equal classes and invalid votes": [0.3, 0.3],
    "three classes that nearly tie": [0.335, 0.3325, 0.3325],
    "two that lead many": [0.2, 0.2, *[0.6 / 48] * 48],
    "many equal classes": [0.02] * 50,
    "just ahead": [0.505, 0.495],
}


def within(false: int, runs: int, alpha: float) -> bool:
    """Whether so many wrong answers are plausible when each happens with probability at most alpha."""
    return stats.binomtest(false, runs, alpha, alternative="greater").pvalue > 1e-4


def wrong_answers(shares: list[float], runs: int, alpha: float, test=anytime_top_class) -> int:
    rng = np.random.default_rng([len(shares), runs])
    top = int(np.argmax(shares)) if shares.count(max(shares)) == 1 else ABSTAIN
    begin, *times = looks(BUDGET)
    p = [*shares, max(1 - sum(shares), 0)]
    first = rng.multinomial(begin, p, runs)[:, :-1]
    later, n, wrong = np.zeros_like(first), begin, 0
    for until in times:
        later += rng.multinomial(until - n, p, len(first))[:, :-1]
        label, p_value = test(first, later, BUDGET, until == BUDGET)
        answered, n = p_value <= alpha, until
        wrong += int((answered & (label != top)).sum())
        first, later = first[~answered], later[~answered]
    return wrong


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("alpha", [0.05, 0.001])
@pytest.mark.parametrize("name", CASES)
def test_wrong_predictions_stay_within_alpha(name, alpha, runs):
    assert within(wrong_answers(CASES[name], runs, alpha), runs, alpha)


def fixed_test_at_every_look(first, later, n_max, last):
    ranked = np.sort(first + later, axis=1)
    return (first + later).argmax(1), top_class_p_value(ranked[:, -1], ranked[:, -2])


def likeliest_alternative(first, later, n_max, last):
    """The alternative is chosen by the votes that it is tested with, instead of a mixture fixed before."""
    ranked = np.sort(later, axis=1)
    most, both = ranked[:, -1], ranked[:, -1] + ranked[:, -2]
    return later.argmax(1), np.exp(stats.binom.logpmf(most, both, 0.5) - stats.binom.logpmf(most, both, most / both))


@pytest.mark.parametrize("weakened", [fixed_test_at_every_look, likeliest_alternative])
def test_the_check_notices_a_weakened_test(weakened):
    assert not within(wrong_answers(CASES["two equal classes"], 20_000, 0.05, weakened), 20_000, 0.05)


@pytest.mark.parametrize(("m", "n"), [(5, 15), (5, 95), (20, 20)])
def test_the_mean_evidence_in_a_tie_is_at_most_one_unless_first_votes_count_twice(m, n):
    """Exact, over all outcomes: Ville's inequality needs E[share · E] ≤ 1; a p-value below 1 is 1/(¾ · share · E)."""
    k, a = np.arange(m + 1)[:, None, None], np.arange(n + 1)[None, :, None]
    first, later = (np.concatenate(pair, -1) for pair in ((k, m - k), (a, n - a)))
    chance = stats.binom.pmf(k, m, 0.5)[..., 0] * stats.binom.pmf(a, n, 0.5)[..., 0]

    def mean(evidence):
        p_value = anytime_top_class(first, evidence, BUDGET)[1]
        return float((chance * np.where(p_value < 1, 1 / (0.75 * p_value), 0)).sum())

    assert 0.5 < mean(later) <= 1
    assert mean(first + later) > 1.2


def test_the_generator_makes_the_decisions_of_the_test():
    """Every vote counts in one look, in the order drawn, up to the budget or a deadline."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        votes = rng.choice(3, BUDGET, p=[0.5, 0.35, 0.15])
        until = int(rng.integers(5, 2 * BUDGET))  # no more votes come after so many

        def draw(request: Draw, votes=votes, until=until) -> tuple[Votes]:
            found = votes[request.start : min(request.stop, until)]
            return (Votes(len(found), tuple(np.bincount(found, minlength=3).tolist())),)

        given = answer(Anytime(n_max=BUDGET).predict(Task(Gaussian(1.0), 3, 1, 0, 0)), draw)
        begin, *times = looks(BUDGET)
        first, expected = np.bincount(votes[:begin], minlength=3), (ABSTAIN, begin)
        for n in times:
            seen = votes[begin : min(n, until)]
            label, p_value = anytime_top_class(first, np.bincount(seen, minlength=3), BUDGET, n == BUDGET <= until)
            expected = (int(label) if p_value <= 0.001 else ABSTAIN, begin + len(seen))
            if p_value <= 0.001 or n > until:
                break
        assert (given.label, given.n) == expected
        assert given.counts == tuple(np.bincount(votes[: given.n], minlength=3).tolist())
