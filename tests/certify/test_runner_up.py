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
    Anytime,
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


def test_anytime_proves_nearly_the_true_radius_of_a_budget():
    for value in (-0.3, 0.05):
        truth = TRUE - value
        plain, found = (
            SMOOTHED.certify(at(value), Anytime(n_max=20_000, bound=b), seed=3) for b in ("plain", "runner-up")
        )
        assert truth - 0.05 < found.radius < truth
        assert found.radius > plain.radius + 0.05
        assert (found.label, found.n0, sum(found.selection), found.n) == (0, 100, 100, 20_000)
        assert found.alpha_split == {"last look, top class": 0.0005, "last look, runner-up": 0.0005}
        same = SMOOTHED.certify(at(value), Cohen(n=20_000, bound="runner-up"), seed=3)
        assert found.radius == pytest.approx(same.radius, abs=1e-9)
        assert Certificate.from_dict(found.to_dict()) == found


def test_anytime_decides_targets_by_the_runner_up():
    """The plain bound refutes all of them at once: no class has half of the votes."""
    radii = (0.05, 0.1, 0.3, 0.4)  # the true radius is 0.2
    plain, found = (SMOOTHED.certify(at(0.0), Anytime(radii, bound=b), seed=2) for b in ("plain", "runner-up"))
    assert Outcome.CERTIFIED not in plain.decisions.values()
    assert list(found.decisions.values()) == [Outcome.CERTIFIED] * 2 + [Outcome.REFUTED] * 2
    assert 0.1 <= found.radius < TRUE
    assert found.p_upper < found.p_lower < 0.55
    assert found.n < 20_000
    assert set(found.checkpoints) == {e for e in (10, 100, 1_000, 10_000) if e < found.n}
    assert len(found.alpha_split) == 4
    assert sum(found.alpha_split.values()) == pytest.approx(0.001)
    low = SMOOTHED.certify(at(0.0), Anytime((0.05, 0.1), bound="runner-up", norm=Norm.LINF))
    assert list(low.decisions.values()) == [Outcome.CERTIFIED, Outcome.UNDECIDED] or low.radius < TRUE / 2


@pytest.mark.parametrize(("radius", "n0"), [(0.25, 20), (None, 100), (1.2, 100)])
def test_anytime_uses_the_plain_bound_where_one_class_takes_all(radius, n0):
    """Only the selection votes differ; they are few where the plain bound soon decides the target."""
    x = at(-2.0)
    plain, found = (SMOOTHED.certify(x, Anytime(radius, n_max=2_000, bound=b), seed=1) for b in ("plain", "runner-up"))
    assert (found.n0, len(found.selection)) == (n0, 8)
    assert replace(found, n0=0, selection=()) == plain


def test_anytime_answers_at_the_deadline():
    """Whenever the votes end, the answer is what they prove; the draws have the deadline too."""
    shares, truth = (0.45, 0.2, 0.2, 0.15), 0.5 * float(stats.norm.ppf(0.45) - stats.norm.ppf(0.2))
    for last in (1, 20, 90, 105, 400, 3_333):  # copies until the deadline
        draw, drawn, ends = Simulated(shares, _rng()).draw, [], []

        def until(request, draw=draw, drawn=drawn, ends=ends, last=last):
            ends.append(request.deadline)
            drawn.append(max(min(request.n, last - sum(drawn)), 1))
            return draw(replace(request, n=drawn[-1]))

        task = _task()
        found = answer(Anytime(0.1, deadline=3.0, bound="runner-up").certify(task), until)
        assert set(ends) == {task.began + 3.0}
        assert found.samples == sum(drawn) <= last + 1
        assert found.n0 == min(last, 20)
        assert found.radius < truth
        assert (found.outcome is Outcome.CERTIFIED) == (found.radius >= 0.1)
        assert found.abstained or found.p_upper < found.p_lower
    assert found.radius > 0.1


def test_anytime_counts_invalid_copies_for_the_runner_up():
    votes = Simulated((0.45, 0.2, 0.2), _rng())  # q = 0.35
    found = answer(Anytime((0.05, 0.7), n_max=100_000, bound="runner-up").certify(_task(3)), votes.draw)
    assert 0.35 < found.p_upper < 0.4
    assert found.decisions == {0.05: Outcome.CERTIFIED, 0.7: Outcome.REFUTED}
    votes = Simulated((0.45, 0.0), _rng())
    assert answer(Anytime(0.1, n_max=1_000, bound="runner-up").certify(_task(2)), votes.draw).label == ABSTAIN


def test_anytime_records_the_bound_only_if_it_is_not_plain():
    assert "bound" not in Anytime(0.1).config()
    assert Anytime(0.1, bound="runner-up").config()["bound"] == "runner-up"


def test_exact_noise_takes_the_offset_off_and_every_input_may_have_its_scale():
    exact = Smoothed(ThreeRegions(), Gaussian(SIGMA, grid=255), runtime="eager", sigma=GridSigma(grid=(0.4, 0.5), n=20))
    certificate = exact.certify(at(0.2) * 0 + 1 / 255, Cohen(n=20_000, bound="runner-up"))
    assert certificate.p_upper is not None
    assert (certificate.guarantee, certificate.offset > 0) == (Guarantee.POINTWISE, True)
    assert 0.1 < certificate.radius < TRUE - 1 / 255 + certificate.offset
    decided = exact.certify(at(0.2) * 0 + 1 / 255, Anytime((0.05, 0.1), bound="runner-up"))
    assert set(decided.decisions.values()) == {Outcome.CERTIFIED}
    assert decided.p_upper is not None
    assert (decided.guarantee, decided.offset > 0) == (Guarantee.POINTWISE, True)
    assert decided.radius < TRUE - 1 / 255 + decided.offset


@pytest.mark.parametrize("procedure", [Cohen(n=20_000, bound="runner-up"), Anytime(0.05, bound="runner-up")])
def test_a_router_certifies_selector_and_expert_with_it(procedure):
    other = Smoothed(ThreeRegions(), Gaussian(0.4), runtime="eager", input_range=(-9, 9))
    router = Smoothed(ThreeRegions(), Gaussian(SIGMA), experts=[SMOOTHED, *[other] * 7], input_range=(-9, 9))
    certificate = router.certify(at(0.0), procedure)
    assert (certificate.label, certificate.guarantee) == (0, Guarantee.ROUTED)
    assert (procedure.targets or (0.1,))[0] <= certificate.radius < TRUE
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


def _task(classes: int = 4) -> Task:
    return Task(Gaussian(1.0), classes, 1, seed=0, index=0)


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_refusals():
    with pytest.raises(UsageError, match="bound"):
        Cohen(bound="best")
    uniform = Smoothed(ThreeRegions(), Uniform(0.5), input_range=(-9, 9))
    with pytest.raises(UsageError, match="bound"):
        Anytime(bound="best")
    for procedure in (Cohen(n=100, bound="runner-up"), Staged(0.1, bound="runner-up"), Anytime(bound="runner-up")):
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
