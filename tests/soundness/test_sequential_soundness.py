"""False certificates stay within alpha and false refutations within beta, in simulated votes at the worst p.

The last tests weaken the boundaries on purpose and show that the check notices.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from smoothcert.stats import lower_bound
from smoothcert.stats.evalues import JEFFREYS, Prior
from smoothcert.stats.sequential import (
    Boundary,
    anytime_lower_bound,
    boundary,
    check_times,
    first_count,
    nested_boundaries,
)
from smoothcert.stats.staged import StageBoundaries, stage_boundaries

THRESHOLD, N_MAX, N0 = 0.84, 4_000, 100
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


def decide(p: float, runs: int, stop_for, seed: int) -> tuple[int, int]:
    """Certificates and refutations under the boundary ``stop_for(k0)``, k0 selection votes drawn with the same p."""
    rng = np.random.default_rng(seed)
    certified = refuted = 0
    for k0, group in zip(*np.unique(rng.binomial(N0, p, runs), return_counts=True), strict=True):
        stop = stop_for(int(k0))
        up, down = first_hits(paths(stop.n, p, int(group), rng), stop)
        certified, refuted = certified + int(up.sum()), refuted + int(down.sum())
    return certified, refuted


def prior_for(k0: int, informed: bool) -> Prior:
    return Prior.informed(k0, N0) if informed else JEFFREYS


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("informed", [False, True])
@pytest.mark.parametrize("offset", [0.0, 0.003])
def test_one_target(runs, alpha, informed, offset):
    def stop_for(k0):
        return boundary(THRESHOLD, alpha, alpha, N_MAX, prior_for(k0, informed))

    assert within(decide(THRESHOLD - offset, runs, stop_for, 1)[0], runs, alpha)
    assert within(decide(THRESHOLD + offset, runs, stop_for, 2)[1], runs, alpha)


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("p", [0.80, 0.84, 0.845])
def test_several_targets_from_one_stream(runs, alpha, p):
    """No target is split off alpha: any false certificate among all of them counts once, at any look."""
    thresholds = (0.75, 0.80, 0.82, 0.84, 0.85, 0.90)
    rng = np.random.default_rng(3)
    for informed in (False, True):
        false_up = false_down = 0
        for k0, group in zip(*np.unique(rng.binomial(N0, p, runs), return_counts=True), strict=True):
            stops = nested_boundaries(thresholds, alpha, alpha, 1_000, prior_for(int(k0), informed))
            k = paths(stops[0].n, p, int(group), rng)
            up = [(k >= stop.certify[:, None]).any(0) for stop in stops if p <= stop.threshold]
            down = [(k <= stop.refute[:, None]).any(0) for stop in stops if p >= stop.threshold]
            false_up, false_down = (
                false_up + int(np.any(up, axis=0).sum()),
                false_down + int(np.any(down, axis=0).sum()),
            )
        assert within(false_up, runs, alpha)
        assert within(false_down, runs, alpha)


def false_from(p: float, looks: np.ndarray, alpha: float, prior: Prior, n_max: int) -> np.ndarray:
    """The smallest count at each look whose anytime bound is false; p itself is in the grid, the worst case."""

    def false(k: np.ndarray, n: np.ndarray) -> np.ndarray:
        pairs = zip(k.tolist(), n.tolist(), strict=True)
        return np.array([anytime_lower_bound(i, m, alpha, prior, extra=(p,), last=m == n_max) >= p for i, m in pairs])

    return first_count(looks, false)


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_anytime_bound_at_a_budget_stop(runs, alpha):
    rng, looks, false = np.random.default_rng(4), np.array([N_MAX]), 0
    for k0, group in zip(*np.unique(rng.binomial(N0, THRESHOLD, runs), return_counts=True), strict=True):
        wrong = false_from(THRESHOLD, looks, alpha, Prior.informed(int(k0), N0), N_MAX)
        false += int(np.sum(rng.binomial(N_MAX, THRESHOLD, group) >= wrong[0]))
    assert within(false, runs, alpha)


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("prior", [JEFFREYS, Prior.informed(85, N0)], ids=["jeffreys", "informed"])
def test_anytime_bound_at_the_worst_stop(runs, alpha, prior):
    """Whoever stops does so as soon as the bound is false; a deadline or a chosen stop can do no worse."""
    n_max = 600
    looks = check_times(n_max)
    wrong = false_from(THRESHOLD, looks, alpha, prior, n_max)
    k = paths(looks, THRESHOLD, runs, np.random.default_rng(5))
    assert within(int((k >= wrong[:, None]).any(0).sum()), runs, alpha)


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
    certified, refuted = decide(THRESHOLD, runs, lambda _: broken, 7)
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
