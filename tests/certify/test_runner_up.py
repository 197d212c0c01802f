"""The runner-up bound in every procedure that has it, on a classifier whose true radius has a closed form."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from smoothcert import (
    ABSTAIN,
    Aces,
    Certificate,
    Cohen,
    Gaussian,
    Guarantee,
    Outcome,
    Smoothed,
    Staged,
    Uniform,
    certify_dataset,
    report,
)
from smoothcert.certify import Task, answer
from smoothcert.sampling.sigma import GridSigma
from smoothcert.testing.procedures import Simulated
from smoothcert.types import Norm, UsageError, Votes

SIGMA = 0.5
LOW, HIGH = 0.0, 0.4


class ThreeRegions(nn.Module):
    """Class 0 below ``LOW``, class 1 above ``HIGH``, and narrow stripes of the classes 2 to 7 between.

    No stripe class is ever near the most likely one, so the true radius around x < (LOW + HIGH)/2 is the distance to
    that point. It is also σ/2 (Φ⁻¹(p₀) − Φ⁻¹(p₁)): the theorem is tight here.
    """

    def forward(self, x):
        x = x.flatten(1)[:, 0]
        stripe = 2 + (x * 30).floor().long() % 6
        label = torch.where(x < LOW, 0, torch.where(x > HIGH, 1, stripe))
        return torch.eye(8)[label]


def at(value: float) -> torch.Tensor:
    return torch.tensor([value, 0.5, 0.5, 0.5])


SMOOTHED = Smoothed(ThreeRegions(), Gaussian(SIGMA), runtime="eager", input_range=(-9, 9))
TRUE = (LOW + HIGH) / 2


@pytest.mark.parametrize("value", [-0.3, 0.0, 0.05, 0.12])
def test_cohen_proves_nearly_the_true_radius_and_never_more(value):
    truth = TRUE - value
    p = stats.norm.cdf((LOW - value) / SIGMA)
    plain, certificate = (SMOOTHED.certify(at(value), Cohen(n=20_000, bound=bound)) for bound in ("plain", "runner-up"))
    assert (certificate.label, certificate.p_upper is None) == (0, False)
    assert truth - 0.05 < certificate.radius < truth
    assert certificate.radius > plain.radius + 0.05
    assert certificate.p_lower < p
    assert (plain.p_upper, plain.abstained) == (None, p <= 0.5)
    assert certificate.alpha_split == {"top class": 0.0005, "runner-up": 0.0005}
    assert Certificate.from_dict(certificate.to_dict()) == certificate
    low = SMOOTHED.certify(at(value), Cohen(n=20_000, bound="runner-up", norm=Norm.LINF))
    assert truth / 2 - 0.05 < low.radius < truth / 2
    with pytest.raises(UsageError, match="does not prove the radius"):
        Certificate.from_dict({**certificate.to_dict(), "p_upper": 0.99, "p_lower": 0.45})


def test_where_one_class_takes_all_nothing_changes():
    plain, other = (SMOOTHED.certify(at(-2.0), Cohen(n=1_000, bound=b), seed=1) for b in ("plain", "runner-up"))
    assert other == plain


def test_staged_decides_by_the_runner_up():
    x, truth = at(0.0), TRUE
    assert SMOOTHED.certify(x, Staged(0.1, stages=(100, 2_000))).outcome is not Outcome.CERTIFIED
    procedure = Staged(0.1, stages=(100, 2_000, 20_000), bound="runner-up")
    certificate = SMOOTHED.certify(x, procedure)
    assert certificate.outcome is Outcome.CERTIFIED
    assert 0.1 <= certificate.radius < truth
    assert certificate.p_lower < 0.5
    assert len(certificate.alpha_split) == 6
    assert sum(certificate.alpha_split.values()) == pytest.approx(0.001)
    refuted = SMOOTHED.certify(x, replace(procedure, radius=truth + 0.15))
    assert refuted.outcome is Outcome.REFUTED
    assert refuted.radius < truth


def test_exact_noise_takes_the_offset_off_and_every_input_may_have_its_scale():
    exact = Smoothed(ThreeRegions(), Gaussian(SIGMA, grid=255), runtime="eager", sigma=GridSigma(grid=(0.4, 0.5), n=20))
    certificate = exact.certify(at(0.2) * 0 + 1 / 255, Cohen(n=20_000, bound="runner-up"))
    assert certificate.p_upper is not None
    assert (certificate.guarantee, certificate.offset > 0) == (Guarantee.POINTWISE, True)
    assert 0.1 < certificate.radius < TRUE - 1 / 255 + certificate.offset


def test_a_router_certifies_selector_and_expert_with_it():
    other = Smoothed(ThreeRegions(), Gaussian(0.4), runtime="eager", input_range=(-9, 9))
    router = Smoothed(ThreeRegions(), Gaussian(SIGMA), experts=[SMOOTHED, *[other] * 7], input_range=(-9, 9))
    certificate = router.certify(at(0.0), Cohen(n=20_000, bound="runner-up"))
    assert (certificate.label, certificate.guarantee) == (0, Guarantee.ROUTED)
    assert 0.1 < certificate.radius < TRUE
    assert certificate.routing.p_lower < 0.5
    assert certificate.routing.p_upper < certificate.routing.p_lower
    assert sum(certificate.alpha_split.values()) == pytest.approx(0.001)
    assert Certificate.from_dict(certificate.to_dict()) == certificate


def test_aces_splits_the_half_of_the_class():
    aces = Aces(core=lambda x: torch.zeros(len(x), 8), theta=1.0, n=20_000, bound="runner-up")
    certificate = SMOOTHED.certify(at(0.0), aces)
    assert certificate.alpha_split == {"selector": 0.0005, "top class": 0.00025, "runner-up": 0.00025}
    assert 0.1 < certificate.radius < TRUE


def test_invalid_copies_count_for_the_runner_up():
    """Under exact noise an invalid copy may be one that the runner-up would have got."""
    for valid in (True, False):
        shares = (0.45, 0.2, 0.2, 0.15) if valid else (0.45, 0.2, 0.2)
        found = answer(Cohen(n=10_000, bound="runner-up").certify(_task()), Simulated(shares, _rng()).draw)
        assert 0.2 < (found.p_upper or 1.0) < (0.25 if valid else 0.4)
    votes = Simulated((0.45, 0.0), _rng())
    assert answer(Cohen(n=10_000, bound="runner-up").certify(_task()), votes.draw).label == ABSTAIN


def _task() -> Task:
    return Task(Gaussian(1.0), 4, 1, seed=0, index=0)


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_refusals():
    with pytest.raises(UsageError, match="bound"):
        Cohen(bound="best")
    uniform = Smoothed(ThreeRegions(), Uniform(0.5), input_range=(-9, 9))
    for procedure in (Cohen(n=100, bound="runner-up"), Staged(0.1, bound="runner-up")):
        with pytest.raises(UsageError, match="uniform noise has no radius for the runner-up bound; use the plain"):
            uniform.certify(at(0.0), procedure)
    two = Votes(n=10, counts=(10, 0, 0, 0))
    about = {"guess": 0, "norm": Norm.L2, "alpha": 0.1, "alpha_split": {}, "votes": two, "selection": two}
    assert _task().certificate(p_lower=0.4, p_upper=0.4, **about).label == ABSTAIN
    assert _task().certificate(p_lower=0.4, p_upper=0.39, **about).label == 0


def test_a_stored_run_shows_it(tmp_path):
    """A row with p_lower below ½ and a positive radius is certified everywhere."""
    run = certify_dataset(
        SMOOTHED,
        [(at(0.05), 0), (at(-3.0), 0)],
        Cohen(n=5_000, bound="runner-up"),
        run=tmp_path / "run",
        progress=False,
    )
    first, second = run.rows()
    assert first["radius"] > 0.05
    assert first["p_upper"] < first["p_lower"] < 0.5
    assert second["p_upper"] is None
    assert (run.accuracy, run.certified_accuracy(0.05)) == (1.0, 1.0)
    page = tmp_path / "page.html"
    report.write_page(run, page)
    shown = re.search(r'"upper":\s*\[(\d+),\s*null\]', page.read_text(encoding="utf-8"))
    assert 0 <= int(shown[1]) / 10_000 - first["p_upper"] <= 1e-4
