"""False claims of Anytime with the runner-up bound stay within alpha and beta, whenever the votes are stopped.

The best bounds of all looks are those of whoever stops as soon as a claim is false, so one check of them covers every
stop. The last tests weaken the bounds on purpose and show that the check notices.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from scipy import stats

from smoothcert import Anytime, Gaussian
from smoothcert.certify import Task, answer
from smoothcert.stats import lower_bound, two_sided, upper_bound
from smoothcert.stats.sequential import LAST_LOOK, check_times
from smoothcert.stats.two_sided import TwoSided
from smoothcert.testing.procedures import Simulated
from smoothcert.types import Outcome, is_certified

N0, N_MAX, ALPHA = 20, 160, 0.05
NOISE = Gaussian(1.0)
QUICK, FULL = 20_000, 200_000
RUNS = [QUICK, pytest.param(FULL, marks=pytest.mark.soundness)]

SHARES = {
    "two classes": (0.7, 0.3),
    "two equal classes": (0.5, 0.5),
    "three near a tie": (0.34, 0.33, 0.33),
    "hardly ahead": (0.36, 0.355, 0.285),
    "below one half, a tie of two runners-up": (0.4, 0.3, 0.3),
    "below one half, one runner-up": (0.45, 0.4, 0.05, 0.05, 0.05),
    "above one half, three others": (0.55, 0.15, 0.15, 0.15),
    "a hundred classes": (0.208, *[0.008] * 99),
    "a hundred equal classes": (0.01,) * 100,
    "an invalid copy may be the runner-up's": (0.5, 0.2),
    "rare votes": (0.98, 0.01, 0.01),
    "a rare second": (0.4, 0.36, 0.12, 0.12),
}
"""Probabilities of the classes, the likeliest first; the rest are invalid copies."""


def within(false: int, runs: int, level: float) -> bool:
    """Whether so many false claims are plausible when each happens with probability at most ``level``."""
    return bool(stats.binomtest(false, runs, level, alternative="greater").pvalue > 1e-4)


def votes(shares: tuple[float, ...], looks: np.ndarray, runs: int, n0: int) -> tuple[np.ndarray, np.ndarray]:
    """Selection votes, (runs, classes), and votes up to each look, (runs, looks, classes)."""
    rng = np.random.default_rng(9)
    every = np.array([*shares, max(1 - sum(shares), 0.0)])
    steps = np.diff(looks, prepend=0)
    draws = rng.multinomial(np.array([n0, *steps]), every / every.sum(), size=(runs, len(steps) + 1))[..., :-1]
    return draws[:, 0], np.cumsum(draws[:, 1:], axis=1)


def best(test: TwoSided, counts: list[list[int]], looks: list[int], what: str) -> tuple[float, float]:
    """The best bounds of all looks: the largest lower and the smallest upper bound."""
    first, second = zip(*(getattr(test, what)(k, n) for k, n in zip(counts, looks, strict=True)), strict=True)
    return (max(first), min(second)) if what == "proved" else (min(first), max(second))


def false_claims(
    shares: tuple[float, ...], runs: int, *, n0: int = N0, reuse: bool = False, last_look: float = LAST_LOOK
) -> dict[str, int]:
    """Count runs with a false bound, certificate or refutation at any look.

    ``reuse`` counts the selection votes as evidence. With ``last_look=1`` there is no look but that at the budget.
    """
    p, q = shares[0], max(shares[1:]) + max(1 - sum(shares), 0.0)
    times = check_times(N_MAX) if last_look < 1 else np.array([N_MAX])
    looks = (times + n0 * reuse).tolist()
    guesses, proved, possible = [], [], []
    for selected, counts in zip(*votes(shares, times, runs, n0), strict=True):
        rows = (counts + selected * reuse).tolist()
        test = TwoSided(selected.tolist(), ALPHA, ALPHA, N_MAX, last_look)
        guesses.append(test.guess)
        proved.append(best(test, rows, looks, "proved"))
        possible.append(best(test, rows, looks, "possible"))
    guess, (lower, upper), (top, second) = np.array(guesses), np.transpose(proved), np.transpose(possible)
    label_is_false = (guess != 0) | (p <= q + 1e-12)
    too_long = NOISE.radius(lower, p_upper=upper) > NOISE.radius(p, p_upper=q) + 1e-9
    others = np.array([max((*shares[:c], *shares[c + 1 :])) for c in range(len(shares))]) + q - max(shares[1:])
    return {
        "bounds": int(((lower >= np.array(shares)[guess]) | (upper <= others[guess])).sum()),
        "certificates": int((is_certified(lower, upper) & (label_is_false | too_long)).sum()),
        "refutations": int((NOISE.radius(top, p_upper=second) < NOISE.radius(p, p_upper=max(shares[1:]))).sum()),
    }


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("name", SHARES)
def test_false_claims_stay_within_alpha_and_beta(name, runs):
    for what, false in false_claims(SHARES[name], runs).items():
        assert within(false, runs, ALPHA), what


def tight(alpha: float) -> tuple[float, ...]:
    """Three classes; the bounds at alpha of some number of votes for the first two just miss their probabilities."""
    n = np.arange(N_MAX + 1)
    lower, upper = lower_bound(n, N_MAX, alpha), upper_bound(n, N_MAX, alpha)
    p, q = float(lower[np.argmax(lower > 0.5)]) - 1e-9, float(upper[np.argmax(upper > 0.3)]) + 1e-9
    return p, q, 1 - p - q


@pytest.mark.parametrize("runs", RUNS)
def test_false_claims_of_a_budget_alone(runs):
    found = false_claims(tight(ALPHA / 2), runs, last_look=1.0)
    assert all(within(false, runs, ALPHA) for false in found.values())
    # Each bound is wrong with probability α/2; often both are wrong together, so that one is with 0.74 α.
    assert within(runs - found["bounds"], runs, 1 - 0.7 * ALPHA), "the check is not sharp"


@cache
def fixed_bound(k: int, n: int, level: float, n_max: int, *, last_look: float) -> float:
    """A bound of a fixed number of votes, at every look."""
    return lower_bound(k, n, level)


def _second_selected(test: TwoSided, counts: list[int], n: int) -> tuple[float, float]:
    """The upper bound of the class with the second most selection votes, which need not be the runner-up."""
    return test._between(counts[test.guess], counts[test._rival], n, ALPHA / 2, False)


def _without_invalid(test: TwoSided, counts: list[int], n: int) -> tuple[float, float]:
    others = counts[: test.guess] + counts[test.guess + 1 :]
    return test._between(counts[test.guess], max(others), n, ALPHA / 2, False)


def _of_the_guess(test: TwoSided, counts: list[int], n: int) -> tuple[float, float]:
    """The lower bound of the more frequent class, as if it were the runner-up."""
    second, top = test._between(max(counts[test.guess], counts[test._rival]), max(counts), n, ALPHA / 2, False)
    return min(top, 1 - second), second


WEAKENED = {
    "a fixed bound at every look": ("lower_sequence", fixed_bound, "two classes", ("bounds", "certificates")),
    "the class that the selection votes put second": (
        "proved",
        _second_selected,
        "a rare second",
        ("bounds", "certificates"),
    ),
    "invalid copies count for no class": (
        "proved",
        _without_invalid,
        "an invalid copy may be the runner-up's",
        ("bounds", "certificates"),
    ),
    "the more frequent class as the runner-up": (
        "possible",
        _of_the_guess,
        "above one half, three others",
        ("refutations",),
    ),
}


@pytest.mark.parametrize("name", WEAKENED)
def test_the_check_fails_when_the_bounds_are_weakened(monkeypatch, name):
    function, weak, shares, wrong = WEAKENED[name]
    monkeypatch.setattr(two_sided if function == "lower_sequence" else TwoSided, function, weak)
    found = false_claims(SHARES[shares], QUICK, n0=3)
    for what in wrong:
        assert not within(found[what], QUICK, ALPHA), (what, found)


def test_the_check_fails_when_alpha_is_not_split(monkeypatch):
    between = TwoSided._between

    def unsplit(test: TwoSided, low: int, high: int, n: int, level: float, roughly: bool) -> tuple[float, float]:
        return between(test, low, high, n, 2 * level, roughly)

    monkeypatch.setattr(TwoSided, "_between", unsplit)
    assert not within(false_claims(tight(ALPHA), QUICK, last_look=1.0)["bounds"], QUICK, ALPHA)


def test_the_check_fails_when_selection_votes_are_evidence():
    assert not within(false_claims(SHARES["a hundred equal classes"], QUICK, reuse=True)["bounds"], QUICK, ALPHA)


TARGETS = ((0.45, 0.4, 0.05, 0.05, 0.05), (0.6, 0.2, 0.2), (0.7, 0.29, 0.01), (0.4, 0.3, 0.3), (0.95, 0.025, 0.025))


def decisions(shares: tuple[float, ...], runs: int, shift: float) -> tuple[int, int]:
    """Decide targets around the true radius with the procedure itself; count false certificates and refutations."""
    truth = float(NOISE.radius(shares[0], p_upper=max(shares[1:])))
    plain = float(NOISE.radius(shares[0]))
    radii = sorted({truth / 2, truth + shift, truth + 0.1})
    procedure = Anytime(radii, n_max=300, alpha=ALPHA, beta=ALPHA, bound="runner-up")
    rng, false, refuted = np.random.default_rng(3), 0, 0
    for index in range(runs):
        task = Task(NOISE, len(shares), 1, seed=0, index=index)
        found = answer(procedure.certify(task), Simulated(shares, rng).draw)
        false += not found.abstained and (found.label != 0 or found.radius > truth + 1e-9)
        reached = plain if found.p_upper is None else truth  # by the bound that the input uses
        refuted += any(r <= reached and each is Outcome.REFUTED for r, each in found.decisions.items())
    return false, refuted


@pytest.mark.parametrize("runs", [400, pytest.param(QUICK, marks=pytest.mark.soundness)])
@pytest.mark.parametrize("shift", [1e-6, -1e-6])
@pytest.mark.parametrize("shares", TARGETS, ids=str)
def test_decisions_of_the_procedure(shares, shift, runs):
    assert all(within(each, runs, ALPHA) for each in decisions(shares, runs, shift))


def test_the_check_of_decisions_fails_without_bounds(monkeypatch):
    monkeypatch.setattr(TwoSided, "_between", lambda test, low, high, n, level, roughly: (low / n, high / n))
    false, refuted = decisions((0.6, 0.2, 0.2), 400, 1e-6)
    assert not within(false, 400, ALPHA)
    assert not within(refuted, 400, ALPHA)
