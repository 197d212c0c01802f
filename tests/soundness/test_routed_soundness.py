"""ACES and the router: false claims stay within alpha where selector and experts are half-spaces with exact radii.

One coordinate decides the class and another who answers, so the true radius is the smaller of two distances.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from smoothcert import ABSTAIN, Aces, Cohen, Gaussian, Smoothed
from smoothcert.stats import decisions, lower_bound

SIGMA, N = 0.5, 400
QUICK, TWIN, FULL = 400, 800, 20_000
at_every_level = pytest.mark.parametrize(
    ("alpha", "runs"), [(0.05, QUICK), *(pytest.param(a, FULL, marks=pytest.mark.soundness) for a in (0.05, 0.001))]
)
FAR = 3.0


def within(false: int, runs: int, alpha: float) -> bool:
    """Whether so many false claims are plausible when each happens with probability at most alpha."""
    return stats.binomtest(false, runs, alpha, alternative="greater").pvalue > 1e-4


def tight(alpha: float, sigma: float = SIGMA) -> float:
    """A distance at which a false radius is as likely as Clopper–Pearson lets it be."""
    bounds = lower_bound(np.arange(N + 1), N, alpha)
    return float(sigma * stats.norm.ppf(bounds[int(np.argmax(bounds > 0.7))])) - 1e-6


class TwoEdges(nn.Module):
    """Class 1 where x₀ > 0; certain of it where x₁ > 0, and as uncertain as can be elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        side = x[:, 0].sign() * torch.where(x[:, 1] > 0, 100.0, 1e-4)
        return torch.stack([-side, side], dim=1)


class Chooses(nn.Module):
    """A selection network that takes the certifier where x₁ > 0."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([-100 * x[:, 1], 100 * x[:, 1]], dim=1)


class Constant(nn.Module):
    """A core that says the same of all inputs."""

    def __init__(self, label: int) -> None:
        super().__init__()
        self.label = label

    def forward(self, x: Tensor) -> Tensor:
        return torch.eye(2)[self.label].expand(len(x), 2)


def aces_certificates(x: tuple[float, float], core_class: int, runs: int, alpha: float, network: bool):
    selector = Chooses() if network else None
    procedure = Aces(core=Constant(core_class), selector=selector, theta=0.5, n0=40, n=N, alpha=alpha)
    smoothed = Smoothed(TwoEdges(), Gaussian(SIGMA), input_range=None)
    answers = smoothed.run(((i, torch.tensor(x)) for i in range(runs)), procedure, procedure.certify, seed=17)
    return [certificate for _, certificate in answers]


def false_radii(x: tuple[float, float], runs: int, alpha: float, network: bool = False) -> int:
    """At an input that the certifier answers with class 1."""
    truth = min(float(torch.tensor(value)) for value in x)
    certificates = aces_certificates(x, 0, runs, alpha, network)
    return sum(c.label == 0 or c.radius > truth for c in certificates)


@at_every_level
@pytest.mark.parametrize("network", [False, True], ids=["entropy", "network"])
def test_false_radii_of_aces_stay_within_alpha(runs, alpha, network):
    edge = tight(alpha / 2)
    for x in ((edge, FAR), (FAR, edge), (edge, edge)):
        false = false_radii(x, runs, alpha, network)
        assert within(false, runs, alpha)
        if FAR in x:  # one of the two bounds alone gives false radii about as often as it may
            assert within(runs - false, runs, 1 - 0.4 * alpha)


@at_every_level
def test_false_classes_of_aces_stay_within_alpha(runs, alpha):
    """Barely the certifier's input, barely of class 1: a sure core, or an agreement on class 0, would be false."""
    certificates = aces_certificates((1e-5, 1e-5), 0, runs, alpha, network=False)
    assert within(sum(c.label == 0 for c in certificates), runs, alpha)
    procedure = Aces(core=Constant(0), theta=0.5, n=101, alpha=alpha)
    smoothed = Smoothed(TwoEdges(), Gaussian(SIGMA), input_range=None)
    inputs = ((i, torch.tensor([1e-5, 1e-5])) for i in range(runs))
    predictions = [answer for _, answer in smoothed.run(inputs, procedure, procedure.predict, seed=23)]
    assert within(sum(p.label == 0 for p in predictions), runs, alpha)


def test_all_branches_of_aces_were_taken():
    """Certifier chosen, core chosen, neither chosen and agreed, and an abstention."""
    places = {(1.0, 1.0): (1, True), (1.0, -1.0): (0, False), (-1.0, 0.0): (0, False), (1.0, 0.0): (ABSTAIN, False)}
    for x, (label, proved) in places.items():
        certificates = aces_certificates(x, 0, 50, 0.001, network=False)
        usual = [c for c in certificates if (c.label, c.radius > 0) == (label, proved)]
        assert len(usual) >= 45


@pytest.mark.parametrize(
    "weakened",
    [lambda k, n, alpha: lower_bound(k, n, 8 * alpha), lambda k, n, alpha: k / n],
    ids=["alpha times eight", "no bound at all"],
)
def test_the_check_fails_when_the_bounds_of_aces_are_weakened(monkeypatch, weakened):
    edge = tight(0.025)
    monkeypatch.setattr(decisions, "lower_bound", weakened)
    assert not within(false_radii((edge, FAR), TWIN, 0.05), TWIN, 0.05)


class Bands(nn.Module):
    """Three experts, by x₁: below −6, between, above 0."""

    def forward(self, x: Tensor) -> Tensor:
        band = torch.bucketize(x[:, 1].contiguous(), torch.tensor([-6.0, 0.0]))
        return torch.nn.functional.one_hot(band, 3).float()


class Edge(nn.Module):
    """Class 1 where x₀ exceeds an edge."""

    def __init__(self, edge: float) -> None:
        super().__init__()
        self.edge = edge

    def forward(self, x: Tensor) -> Tensor:
        side = x[:, 0] - self.edge
        return torch.stack([-side, side], dim=1)


EDGES, SIGMAS = (0.0, 2.0, -3.0), (0.25, 0.5, 1.0)


def make_router() -> Smoothed:
    experts = [
        Smoothed(Edge(edge), Gaussian(sigma), input_range=None) for edge, sigma in zip(EDGES, SIGMAS, strict=True)
    ]
    return Smoothed(Bands(), Gaussian(SIGMA), experts=experts, input_range=None)


@at_every_level
@pytest.mark.parametrize("expert", [0, 1, 2])
@pytest.mark.parametrize("limit", ["selector", "expert"])
def test_false_radii_of_the_router_stay_within_alpha(runs, alpha, expert, limit):
    procedure = Cohen(n0=40, n=N, alpha=alpha)
    choice = tight(alpha / 2) if limit == "selector" else FAR
    margin = tight(alpha / 2, SIGMAS[expert]) if limit == "expert" else 8 * SIGMAS[expert]
    band = {0: -6.0 - choice, 1: -choice, 2: choice}[expert]
    x = torch.tensor([EDGES[expert] + margin, band])
    truth = min(float(x[0]) - EDGES[expert], float(abs(x[1]) if expert else -6.0 - x[1]))
    answers = make_router().run(((i, x) for i in range(runs)), procedure, procedure.certify, seed=31)
    certificates = [certificate for _, certificate in answers]
    false = sum(c.label != ABSTAIN and (c.label != 1 or c.radius > truth) for c in certificates)
    assert within(false, runs, alpha)
    assert within(runs - false, runs, 1 - 0.4 * alpha)
    assert sum(c.routing.choice == expert for c in certificates) > 0.9 * runs
