"""Answers of a service, and the radii that it shows before, are wrong with probability at most alpha.

Requests share batches, and have random radii and deadlines. The last test gives them a bound that holds at a fixed
number of votes only, and shows that the check notices.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from smoothcert import Anytime, Gaussian, Smoothed
from smoothcert.certify.replay import replay
from smoothcert.serve.inputs import Input
from smoothcert.serve.service import Asked, Served, Service
from smoothcert.serve.settings import ServiceSettings
from smoothcert.stats import lower_bound, sequential
from smoothcert.types import ABSTAIN

SIGMA, ALPHA, N_MAX = 0.5, 0.05, 400
FEW = 300
RUNS = [FEW, pytest.param(20_000, marks=pytest.mark.soundness)]
STEPS = (0, 13, 38)  # of 1/255 from the edge: where the bound is tight, and two others


class HalfSpace(nn.Module):
    """Class 1 where the first coordinate exceeds the edge; at distance m from there, the radius is m."""

    def forward(self, x):
        score = x.flatten(1)[:, 0] - 127.5 / 255
        return torch.stack([-score, score], dim=1)


def overstated(runs: int) -> int:
    """Count requests that were ever shown a wrong statement, or got one as their answer."""
    smoothed = Smoothed(HalfSpace(), Gaussian(SIGMA, grid=255), runtime="eager", batch_size=40)
    procedure = Anytime(n_max=N_MAX, alpha=ALPHA, deadline=5.0)
    service = Service([Served("linear", smoothed, procedure, (1, 1, 2))], ServiceSettings(queue=100))
    service.warm_up()
    rng, found, waiting = random.Random(0), 0, []
    for run in range(runs):
        steps = STEPS[run % len(STEPS)]
        x = np.array([[[(128 + steps) / 255, 0.0]]], np.float32)
        radius = rng.choice([None, (0.05,), (0.05, 0.15)])
        deadline = rng.choice([0.001, 0.01, 0.1, 1.0])
        (pending,) = service.submit([Input(x)], Asked(radius=radius, deadline=deadline))
        waiting.append((pending, (steps + 0.5) / 255))
        if len(waiting) == 64:
            found += wrong(waiting)
            waiting.clear()
    found += wrong(waiting)
    service.close()
    return found


def wrong(waiting) -> int:
    """Count the requests with a false answer, or with votes so far that once proved a false radius."""
    count = 0
    for pending, distance in waiting:
        request = pending.request
        answer = pending.answer(request.result(60))
        statements = [(answer["label"], answer["radius"])]
        for looks in range(1, len(request.draws)):  # as SSE shows them, whenever it looks
            shown = replay(request.procedure.certify(request._task), request.draws[:looks], stop=True)
            statements.append((shown.label, shown.radius))
        count += any(label == 0 or radius > distance for label, radius in statements if label != ABSTAIN)
    return count


def plausible(found: int, runs: int) -> bool:
    return stats.binomtest(found, runs, ALPHA, alternative="greater").pvalue > 1e-4


@pytest.mark.parametrize("runs", RUNS)
def test_nothing_that_is_shown_overstates_more_often_than_alpha(runs):
    found = overstated(runs)
    assert plausible(found, runs), f"{found} of {runs} overstate"


def test_the_check_notices_a_bound_for_a_fixed_number_of_votes(monkeypatch):
    def fixed(k, n, alpha, n_max, tests=(), *, last_look):
        return lower_bound(k, n, alpha)

    monkeypatch.setattr(sequential, "anytime_lower_bound", fixed)
    found = overstated(FEW)
    assert not plausible(found, FEW), f"only {found} of {FEW} overstate"
