"""False certificates of any class stay within alpha and false refutations within beta, at the worst probabilities.

The last tests weaken the boundaries on purpose and show that the check notices.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from smoothcert import Anytime, Gaussian
from smoothcert.certify import Task, answer
from smoothcert.stats import lower_bound, sequential
from smoothcert.stats.sequential import (
    Boundary,
    anytime_lower_bound,
    boundary,
    check_times,
    first_count,
    nested_boundaries,
    operating_characteristics,
)
from smoothcert.stats.staged import StageBoundaries, stage_boundaries
from smoothcert.testing.procedures import Simulated

THRESHOLD, N_MAX = 0.84, 4_000
QUICK, FULL = 4_000, 100_000
RUNS = [QUICK, pytest.param(FULL, marks=pytest.mark.soundness)]
ALPHAS = [0.05, 0.001]


def within(false: int, runs: int, level: float) -> bool:
    """Whether so many false claims are plausible when each happens with probability at most ``level``."""
    return stats.binomtest(false, runs, level, alternative="greater").pvalue > 1e-4


def paths(looks: np.ndarray, p: float, runs: int, rng: np.random.Generator) -> np.ndarray:
    """Cumulative votes at each look, one row for each look."""
    return np.cumsum([rng.binomial(n, p, runs) for n in np.diff(looks, prepend=0).tolist()], axis=0)


def first_hits(k: np.ndarray, stop: Boundary) -> tuple[np.ndarray, np.ndarray]:
    """Which runs are certified and which refuted, when the first decision stands."""
    certified, refuted = k >= stop.certify[:, None], k <= stop.refute[:, None]
    looks = len(stop.n)
    up = np.where(certified.any(0), certified.argmax(0), looks)
    down = np.where(refuted.any(0), refuted.argmax(0), looks)
    return up < down, down < up


def decide(p: float, runs: int, stop: Boundary, seed: int) -> tuple[int, int]:
    """Certificates and refutations in simulated votes."""
    up, down = first_hits(paths(stop.n, p, runs, np.random.default_rng(seed)), stop)
    return int(up.sum()), int(down.sum())


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("offset", [0.0, 0.003])
def test_one_target(runs, alpha, offset):
    stop = boundary(THRESHOLD, alpha, alpha, N_MAX)
    assert within(decide(THRESHOLD - offset, runs, stop, 1)[0], runs, alpha)
    assert within(decide(THRESHOLD + offset, runs, stop, 2)[1], runs, alpha)


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("p", [0.80, 0.84, 0.845])
def test_several_targets_from_one_stream(runs, alpha, p):
    """No target is split off alpha: any false certificate among all of them counts once, at any look."""
    stops = nested_boundaries((0.75, 0.80, 0.82, 0.84, 0.85, 0.90), alpha, alpha, 1_000)
    k = paths(stops[0].n, p, runs, np.random.default_rng(3))
    up = [(k >= stop.certify[:, None]).any(0) for stop in stops if p <= stop.threshold]
    down = [(k <= stop.refute[:, None]).any(0) for stop in stops if p >= stop.threshold]
    assert within(int(np.any(up, axis=0).sum()), runs, alpha)
    assert within(int(np.any(down, axis=0).sum()), runs, alpha)


def either_certified(threshold: float, p: float, alpha: float, n_max: int) -> float:
    """The exact probability that one of two classes is certified, whose probabilities are p and 1 − p."""
    stop = boundary(threshold, alpha, None, n_max)
    ends = operating_characteristics(replace(stop, refute=np.maximum(stop.n - stop.certify, -1)), p)
    return ends.certify + ends.refute


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("n_max", [100, 2_000])
def test_two_classes_exactly(alpha, n_max):
    for threshold in (0.5, 0.505, 0.55, 0.65, 0.84):
        for p in np.linspace(0.5, threshold, 4):
            assert either_certified(threshold, p, alpha, n_max) <= alpha


def test_the_check_of_two_classes_fails_without_a_lower_level(monkeypatch):
    """Alpha for each class: the error of a test that counts the votes from which it guessed the class."""
    monkeypatch.setattr(sequential, "level_for", lambda threshold, alpha: np.full(np.shape(threshold), alpha))
    boundary.cache_clear()
    assert either_certified(0.5, 0.5, 0.05, 2_000) > 1.5 * 0.05
    boundary.cache_clear()


@pytest.mark.parametrize("alpha", [0.5, *ALPHAS])
def test_an_unlikely_class_is_certified_much_less_often(alpha):
    """The inequality of the proof, exactly: (p/t)^m times the probability at the threshold t."""
    for threshold in (0.5, 0.6, 0.84):
        stop = boundary(threshold, alpha, None, 500)
        worst = operating_characteristics(stop, threshold).certify
        assert worst <= sequential.level_for(threshold, alpha)
        for ratio in (0.5, 0.9, 0.99):
            found = operating_characteristics(stop, ratio * threshold).certify
            assert found <= ratio**sequential.AGREEING * worst + 1e-12


SHARES = {
    "two equal classes": (0.5, 0.5),
    "three near a tie": (0.334, 0.333, 0.333),
    "at the threshold, and one other": (THRESHOLD, 1 - THRESHOLD),
    "just above a half, and one other": (0.52, 0.48),
    "at the threshold, and many others": (0.55, *[0.45 / 99] * 99),
    "many classes and invalid votes": (0.5, *[0.3 / 20] * 20),
}


def false_from(p: float, looks: np.ndarray, alpha: float, n_max: int, last_look: float) -> np.ndarray:
    """The smallest count at each look whose anytime bound is false; p itself is a target, the worst case."""
    tests = (boundary(p, alpha, None, n_max),) if p >= 0.5 and last_look < 1 else ()

    def false(k: np.ndarray, n: np.ndarray) -> np.ndarray:
        pairs = zip(k.tolist(), n.tolist(), strict=True)
        bounds = np.array([anytime_lower_bound(i, m, alpha, n_max, tests, last_look=last_look) for i, m in pairs])
        return bounds >= max(p, 0.5)

    return first_count(looks, false)


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("name", SHARES)
def test_anytime_bounds_of_all_classes_at_the_worst_stop(runs, alpha, name):
    """Whoever stops does so as soon as the bound of any class is false; a deadline or a chosen stop can do no worse."""
    shares, n_max, false = SHARES[name], 600, 0
    looks, rng = check_times(n_max), np.random.default_rng(5)
    wrong = {p: false_from(p, looks, alpha, n_max, sequential.LAST_LOOK) for p in set(shares)}
    cuts = np.array([wrong[p] for p in shares])
    classes = np.array([*shares, max(1 - sum(shares), 0.0)])
    for _ in range(runs // QUICK):
        draws = rng.multinomial(np.diff(looks, prepend=0)[:, None], classes, size=(len(looks), QUICK))
        k = np.cumsum(draws[..., :-1], axis=0)
        false += int(np.any(k >= cuts.T[:, None, :], axis=(0, 2)).sum())
    assert within(false, runs, alpha)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_bound_of_a_budget_for_all_classes(alpha):
    """With a budget alone, all of alpha is for the votes at n_max: exact for two classes."""
    for p in (0.5, 0.52, 0.6, THRESHOLD):
        looks = np.array([N_MAX])
        cuts = [int(false_from(each, looks, alpha, N_MAX, 1.0)[0]) for each in (p, 1 - p)]
        false = stats.binom.sf(cuts[0] - 1, N_MAX, p) + stats.binom.sf(cuts[1] - 1, N_MAX, 1 - p)
        assert false <= alpha


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.soundness) for name in SHARES])
def test_certificates_of_many_classes(name):
    """The procedure itself on simulated votes: no class is certified beyond its radius, and no true radius refuted."""
    shares, runs, alpha = SHARES[name], 20_000, 0.05
    radii = (0.1, 0.3, float(stats.norm.ppf(THRESHOLD)))
    procedure, rng = Anytime(radius=radii, n_max=200, alpha=alpha, beta=alpha), np.random.default_rng(8)
    truth = [float(stats.norm.ppf(p)) if p > 0.5 else 0.0 for p in shares]
    false = refuted = 0
    for index in range(runs):
        task = Task(Gaussian(1.0), len(shares), 1, seed=0, index=index)
        found = answer(procedure.certify(task), Simulated(shares, rng).draw)
        false += not found.abstained and (found.radius >= truth[found.label] or truth[found.label] == 0)
        refuted += any(each <= max(truth) and found.decisions[each].value == "refuted" for each in found.decisions)
    assert within(false, runs, alpha)
    assert within(refuted, runs, alpha)


def staged_decisions(bounds: StageBoundaries, p: float, runs: int) -> tuple[int, int]:
    rng = np.random.default_rng(6)
    going, certified, aborted = np.ones(runs, dtype=bool), 0, 0
    for n, certify, abort in zip(bounds.stages.tolist(), bounds.certify, bounds.abort, strict=True):
        k = rng.binomial(n, p, runs)
        certified += int(np.sum(going & (k >= certify)))
        aborted += int(np.sum(going & (k <= abort)))
        going &= (k < certify) & (k > abort)
    return certified, aborted


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("offset", [0.0, 0.003])
def test_staged(runs, alpha, offset):
    bounds = stage_boundaries(THRESHOLD, (100, 1_000, 10_000, 120_000), alpha, alpha)
    assert within(staged_decisions(bounds, THRESHOLD - offset, runs)[0], runs, alpha)
    assert within(staged_decisions(bounds, THRESHOLD + offset, runs)[1], runs, alpha)


def weaker_level(stop: Boundary) -> Boundary:
    """0.3/alpha in place of 1/alpha."""
    weak = boundary(THRESHOLD, stop.alpha / 0.3, stop.alpha / 0.3, N_MAX)
    return replace(stop, certify=weak.certify, refute=weak.refute)


def shifted_counts(stop: Boundary) -> Boundary:
    shift = np.ceil(0.3 * np.sqrt(stop.n)).astype(np.int64)
    return replace(stop, certify=stop.certify - shift, refute=stop.refute + shift)


def fixed_bound_at_every_look(stop: Boundary) -> Boundary:
    certify = first_count(stop.n, lambda k, n: lower_bound(k, n, stop.alpha) > THRESHOLD)
    refute = stop.n - first_count(stop.n, lambda m, n: lower_bound(m, n, stop.alpha) > 1 - THRESHOLD)
    return replace(stop, certify=certify, refute=refute)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("breaking", [weaker_level, shifted_counts, fixed_bound_at_every_look])
def test_the_check_notices_a_broken_boundary(alpha, breaking):
    runs = 20_000 if alpha == 0.05 else FULL
    broken = breaking(boundary(THRESHOLD, alpha, alpha, N_MAX))
    certified, refuted = decide(THRESHOLD, runs, broken, 7)
    assert not within(certified, runs, alpha)
    if breaking is not weaker_level:
        assert not within(refuted, runs, alpha)


def test_the_check_notices_stages_without_a_split():
    stages = (100, 1_000, 10_000, 120_000)
    alone = [stage_boundaries(THRESHOLD, (n,), 0.05, 0.05) for n in stages]
    broken = StageBoundaries(
        THRESHOLD, np.array(stages), np.array([int(one.certify[0]) for one in alone]), np.full(4, -1)
    )
    assert not within(staged_decisions(broken, THRESHOLD, 20_000)[0], 20_000, 0.05)
