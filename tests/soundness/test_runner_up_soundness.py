"""False claims of the runner-up bound stay within alpha for classes of known probabilities.

Votes are drawn directly from these probabilities. A certificate is false if its class is not the likeliest, or if its
radius exceeds σ/2 (Φ⁻¹(p) − Φ⁻¹(q)), which some classifier with these probabilities attains.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from smoothcert import Gaussian, Staged
from smoothcert.certify import Task, answer
from smoothcert.stats import decisions, lower_bound
from smoothcert.stats.decisions import certified_class, guess_and_bounds, prefers_runner_up
from smoothcert.testing.procedures import Simulated

N0, N = 20, 400
NOISE = Gaussian(1.0)
RUNS = 20_000
levels = pytest.mark.parametrize(
    ("alpha", "runs"), [(0.05, RUNS), *(pytest.param(a, 200_000, marks=pytest.mark.soundness) for a in (0.05, 0.001))]
)


def within(false: int, runs: int, alpha: float) -> bool:
    """Whether so many false claims are plausible when each happens with probability at most alpha."""
    return bool(stats.binomtest(false, runs, alpha, alternative="greater").pvalue > 1e-4)


def tight(alpha: float) -> float:
    """A probability just below the bound of some number of votes."""
    bounds = lower_bound(np.arange(N + 1), N, alpha)
    return float(bounds[int(np.argmax(bounds > 0.7))]) - 1e-9


def cases(alpha: float) -> dict[str, tuple[float, ...]]:
    """Probabilities of the classes, the likeliest first; the rest are invalid copies."""
    return {
        "two classes, where the plain bound is tight": (tight(alpha), 1 - tight(alpha)),
        "two classes, where the runner-up bound is tight": (tight(alpha / 2), 1 - tight(alpha / 2)),
        "and a rare third": (tight(alpha), 0.99 - tight(alpha), 0.01),
        "two equal classes": (0.5, 0.5),
        "three equal classes": (1 / 3, 1 / 3, 1 / 3),
        "hardly ahead": (0.36, 0.355, 0.285),
        "below one half, a tie of two runners-up": (0.4, 0.3, 0.3),
        "below one half, one runner-up": (0.45, 0.4, 0.05, 0.05, 0.05),
        "a hundred classes": (0.109, *[0.009] * 99),
        "an invalid copy may be the runner-up's": (0.5, 0.2),
        "rare votes": (0.99, 0.005, 0.005),
    }


def false_claims(shares: tuple[float, ...], runs: int, alpha: float, always: bool) -> int:
    """Count the false claims; ``always`` is whether all inputs use the runner-up bound, or those that prefer it."""
    rng = np.random.default_rng(7)
    invalid = max(1 - sum(shares), 0.0)
    every = np.array([*shares, invalid])
    selection, counts = (rng.multinomial(n, every / every.sum(), size=runs)[:, :-1] for n in (N0, N))
    runner_up = np.full(runs, True) if always else prefers_runner_up(selection, N0, N, alpha)
    guess, p_lower, p_upper = guess_and_bounds(selection, counts, N, alpha, runner_up)
    label, radius = certified_class(guess, p_lower, p_upper), NOISE.radius(p_lower, p_upper=p_upper)
    assert ((radius == 0) | (label >= 0)).all()
    p, q = shares[0], max(shares[1:]) + invalid
    truth = float(NOISE.radius(p, p_upper=q)) + 1e-9
    wrong = (label != 0) if p > q + 1e-12 else True  # in a tie there is no likeliest class
    return int(((label >= 0) & (wrong | (radius > truth))).sum())


@levels
@pytest.mark.parametrize("always", [True, False], ids=["always", "by the selection votes"])
@pytest.mark.parametrize("name", cases(0.05))
def test_false_claims_stay_within_alpha(name, alpha, runs, always):
    assert within(false_claims(cases(alpha)[name], runs, alpha, always), runs, alpha)


def test_the_check_is_sharp():
    """With two classes both bounds fail together, with probability α/2."""
    false = false_claims(cases(0.05)["two classes, where the runner-up bound is tight"], RUNS, 0.05, True)
    assert within(RUNS - false, RUNS, 1 - 0.8 * 0.025)


def _selected(guess, counts, n, selection):
    """The votes of the class with the second most selection votes, which need not be the runner-up."""
    votes, _ = _real(guess, counts, n)
    second = np.argsort(-selection, axis=-1, kind="stable")[..., 1]
    return votes, np.take_along_axis(counts, second[..., None], -1)[..., 0]


_real = decisions._votes_of


def _without_invalid(guess, counts, n):
    return _real(guess, counts, np.asarray(counts).sum(axis=-1))


@pytest.mark.parametrize(
    ("name", "weakened"),
    [
        ("two classes, where the runner-up bound is tight", {"lower_bound": lambda k, n, a: lower_bound(k, n, 4 * a)}),
        ("hardly ahead", {"lower_bound": lambda k, n, a: k / n, "upper_bound": lambda k, n, a: k / n}),
        ("an invalid copy may be the runner-up's", {"_votes_of": _without_invalid}),
    ],
    ids=["alpha times four", "no bounds", "invalid copies count for no class"],
)
def test_the_check_fails_when_the_bound_is_weakened(monkeypatch, name, weakened):
    for function, other in weakened.items():
        monkeypatch.setattr(decisions, function, other)
    assert not within(false_claims(cases(0.05)[name], RUNS, 0.05, True), RUNS, 0.05)


def test_the_check_fails_for_the_class_that_the_selection_votes_put_second(monkeypatch):
    kept = []
    real = decisions.guess_and_bounds

    def remembering(selection, *arguments):
        kept.append(np.asarray(selection))
        return real(selection, *arguments)

    monkeypatch.setitem(globals(), "guess_and_bounds", remembering)
    monkeypatch.setattr(decisions, "_votes_of", lambda guess, counts, n: _selected(guess, counts, n, kept[-1]))
    assert not within(false_claims((0.4, 0.33, 0.27), RUNS, 0.05, True), RUNS, 0.05)


def staged_claims(shares: tuple[float, ...], runs: int, alpha: float, shift: float) -> tuple[int, int]:
    """Certify a target ``shift`` above the true radius; count false certificates and refutations of the right class."""
    truth = float(NOISE.radius(shares[0], p_upper=max(shares[1:])))
    procedure = Staged(truth + shift, stages=(60, 200, 400), alpha=alpha, beta=alpha, n0=N0, bound="runner-up")
    rng, false, refuted = np.random.default_rng(3), 0, 0
    for index in range(runs):
        task = Task(NOISE, len(shares), 1, seed=0, index=index)
        found = answer(procedure.certify(task), Simulated(shares, rng).draw)
        false += not found.abstained and (found.label != 0 or found.radius > truth + 1e-9)
        refuted += found.outcome.value == "refuted" and int(np.argmax(found.selection)) == 0
    return false, refuted


@pytest.mark.parametrize("runs", [400, pytest.param(RUNS, marks=pytest.mark.soundness)])
@pytest.mark.parametrize("shares", [(0.45, 0.4, 0.05, 0.05, 0.05), (0.6, 0.2, 0.2), (0.7, 0.29, 0.01)], ids=str)
def test_stages_keep_alpha_and_beta(shares, runs):
    false, _ = staged_claims(shares, runs, 0.05, 1e-6)
    assert within(false, runs, 0.05)
    false, refuted = staged_claims(shares, runs, 0.05, -1e-6)
    assert within(false, runs, 0.05)
    assert within(refuted, runs, 0.05)


def test_the_check_of_stages_fails_when_the_bound_is_weakened(monkeypatch):
    monkeypatch.setattr(decisions, "lower_bound", lambda k, n, a: np.maximum(np.asarray(k) / n - 0.01, 0))
    monkeypatch.setattr(decisions, "upper_bound", lambda k, n, a: np.asarray(k) / n)
    assert not within(staged_claims((0.6, 0.2, 0.2), 400, 0.05, 1e-6)[0], 400, 0.05)
