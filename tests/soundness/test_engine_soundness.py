"""Answers of an engine are wrong with probability at most alpha, whenever deadlines and callers end them.

The callers here are as hostile as the engine allows: they watch the votes and stop when the answer would be wrong. The
last test gives them a bound that holds at a fixed number of votes only, and shows that the check notices.
"""

from __future__ import annotations

import random
import threading
from itertools import count

import pytest
import torch
from scipy import stats
from torch import nn

from smoothcert import Anytime, Cohen, Engine, Gaussian, Smoothed
from smoothcert.stats import lower_bound, sequential
from smoothcert.types import ABSTAIN

SIGMA, ALPHA, N_MAX = 0.5, 0.05, 400
RUNS = [600, pytest.param(20_000, marks=pytest.mark.soundness)]
NUMBERS = count()  # of inputs: no two requests have the same noise


class HalfSpace(nn.Module):
    """Class 1 where the first coordinate exceeds ½; at distance m from there, p = Φ(m/σ) and the radius is m."""

    def forward(self, x):
        score = x.flatten(1)[:, 0] - 0.5
        return torch.stack([-score, score], dim=1)


def fixed_bound(k, n, alpha, n_max, tests=(), *, last_look):
    """Bound p as if the number of votes had been fixed."""
    return lower_bound(k, n, alpha)


class Caller:
    """Stops a request as soon as its answer would be wrong."""

    def __init__(self, procedure: Anytime, distance: float) -> None:
        self.procedure, self.true = procedure, stats.norm.cdf(distance / SIGMA)
        self.request, self.ready = None, threading.Event()

    def progress(self, votes) -> None:
        self.ready.wait()
        for label, p in ((1, self.true), (0, 1 - self.true)):
            bound = sequential.anytime_lower_bound(
                votes.counts[label], votes.n, ALPHA, N_MAX, last_look=self.procedure.last_look
            )
            if bound >= max(p, 0.5):
                self.request.stop()


def wrong(answer, distance: float) -> bool:
    """Whether a certificate overstates around an input at this distance inside class 1."""
    if answer.label == ABSTAIN:
        return False
    return answer.label == 0 or answer.radius > distance


def overstated(engine: Engine, procedure: Anytime, runs: int, distances: list[float]) -> int:
    """Count wrong answers among requests that deadlines, chance and hostile callers end, in the company of others."""
    rng, found, waiting = random.Random(0), 0, []
    for run in range(runs):
        distance = distances[run % len(distances)]
        x, caller = torch.tensor([0.5 + distance, 0.5]), Caller(procedure, distance)
        kind = rng.random()
        options = {"deadline": rng.choice([1e-6, 0.001, 0.01, 0.1])} if kind < 0.3 else {"deadline": 1_000.0}
        if kind >= 0.5:
            options["progress"] = caller.progress
        number = next(NUMBERS)
        caller.request = engine.submit(x, procedure, seed=number, index=number, priority=rng.randrange(2), **options)
        caller.ready.set()
        waiting.append((caller.request, distance))
        if 0.3 <= kind < 0.5:
            rng.choice(waiting)[0].stop()
        if rng.random() < 0.1:
            engine.submit(x, Cohen(rng.randrange(1, 300)))
        if rng.random() < 0.1:
            engine.submit(x, procedure, deadline=1.0).cancel()
        if len(waiting) >= 64:
            found += sum(wrong(request.result(120), d) for request, d in waiting)
            waiting.clear()
    return found + sum(wrong(request.result(120), d) for request, d in waiting)


def plausible(found: int, runs: int) -> bool:
    return stats.binomtest(found, runs, ALPHA, alternative="greater").pvalue > 1e-4


def engine(**options) -> Engine:
    return Engine(Smoothed(HalfSpace(), Gaussian(SIGMA), runtime="eager", batch_size=40, **options))


def grid_distances() -> list[float]:
    """Distances whose p is a threshold of the bound's grid, where it is tightest."""
    return [SIGMA * r for r in (0.0, 0.1, 0.3)]


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("radius", [None, 0.1, (0.05, 0.15)])
def test_no_answer_overstates_more_often_than_alpha(runs, radius):
    procedure = Anytime(radius, n_max=N_MAX, alpha=ALPHA)
    with engine() as served:
        found = overstated(served, procedure, runs, grid_distances())
    assert plausible(found, runs), f"{found} of {runs} overstate"


@pytest.mark.parametrize("runs", RUNS)
def test_no_prediction_is_wrong_more_often_than_alpha(runs):
    """Of two equally likely classes, each is wrong; the caller stops when one seems decided."""
    rng, found, procedure = random.Random(1), 0, Anytime(n_max=N_MAX, alpha=ALPHA)
    x = torch.tensor([0.5, 0.5])
    with engine() as served:
        requests = []
        for _ in range(runs):
            number = next(NUMBERS)
            options = {"deadline": rng.choice([0.001, 0.01])} if rng.random() < 0.5 else {}
            requests.append(served.submit(x, procedure, seed=number, index=number, predict=True, **options))
            if rng.random() < 0.3:
                rng.choice(requests).stop()
        found = sum(request.result(120).label != ABSTAIN for request in requests)
    assert plausible(found, runs), f"{found} of {runs} are wrong"


def test_the_check_notices_a_bound_for_a_fixed_number_of_votes(monkeypatch):
    monkeypatch.setattr(sequential, "anytime_lower_bound", fixed_bound)
    with engine() as served:
        found = overstated(served, Anytime(n_max=N_MAX, alpha=ALPHA), 600, grid_distances())
    assert not plausible(found, 600), f"only {found} of 600 overstate"
