"""Noise scales chosen for each input, through the whole certification, with and without a memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert import (
    ABSTAIN,
    Anytime,
    Cohen,
    Gaussian,
    Guarantee,
    Smoothed,
    Staged,
    Uniform,
    certify_dataset,
    load_run,
)
from smoothcert.certify.memory import Memory
from smoothcert.sampling.sigma import GridSigma, OptimizeSigma, sigma_generator
from smoothcert.types import Outcome, RunError, UsageError

SOLVER = OptimizeSigma(steps=20, n=2, step=0.01)
PROCEDURES = [Cohen(n=1000), Staged(radius=0.1, stages=(100, 1000)), Anytime(radius=0.1, n_max=2000)]


class Slab(nn.Module):
    """Class 1 within 0.3 of the middle of the first coordinate, class 0 beyond; under much noise class 0 everywhere."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logit = 20 * (0.3 - (x.flatten(1)[:, 0] - 0.5).abs())
        return torch.stack([-logit, logit], dim=1)


class BySecond:
    """A solver that contradicts itself on purpose: little noise below ½ of the second coordinate, much above."""

    def __call__(self, model, x, sigma, generator):
        return torch.where(x.flatten(1)[:, 1] < 0.5, 0.1, 2.0)

    def config(self):
        return {"name": "by second"}


def inputs(count: int, seed: int = 0) -> list[tuple[int, torch.Tensor]]:
    rng = np.random.default_rng(seed)
    return [(i, torch.tensor(rng.random(2), dtype=torch.float32)) for i in range(count)]


def same(a, b) -> bool:
    return (a.label, a.radius, a.counts, a.noise, a.guarantee, a.decisions) == (
        b.label,
        b.radius,
        b.counts,
        b.noise,
        b.guarantee,
        b.decisions,
    )


@pytest.mark.parametrize("procedure", PROCEDURES, ids=lambda p: p.name)
@pytest.mark.parametrize("solver", [SOLVER, GridSigma(n=20)], ids=lambda s: s.name)
def test_certifies_as_smoothed_does_at_the_sigma_chosen(procedure, solver):
    x = torch.tensor([0.6, 0.4])
    certificate = Smoothed(Slab(), Gaussian(0.25), sigma=solver).certify(x, procedure, seed=3, index=7)
    start = torch.tensor([0.25], dtype=torch.float64)
    sigma = float(solver(Slab(), x[None], start, sigma_generator(3, 7)))
    assert sigma != 0.25
    plain = Smoothed(Slab(), Gaussian(sigma)).certify(x, procedure, seed=3, index=7)
    assert certificate.guarantee is Guarantee.POINTWISE
    assert certificate.noise == f"Gaussian(sigma={sigma})"
    assert (certificate.label, certificate.radius, certificate.counts) == (plain.label, plain.radius, plain.counts)


def test_no_steps_leave_the_noise_as_it_is():
    x = torch.tensor([0.6, 0.4])
    chosen = Smoothed(Slab(), Gaussian(0.3), sigma=OptimizeSigma(steps=0)).certify(x, Cohen(n=500), seed=0, index=0)
    plain = Smoothed(Slab(), Gaussian(0.3)).certify(x, Cohen(n=500), seed=0, index=0)
    assert (chosen.noise, chosen.radius, chosen.counts) == (plain.noise, plain.radius, plain.counts)


@pytest.mark.parametrize("procedure", PROCEDURES, ids=lambda p: p.name)
@pytest.mark.parametrize("remember", [False, True])
def test_many_at_once_equals_one_by_one(procedure, remember):
    given = inputs(25)
    together = Smoothed(Slab(), Gaussian(0.2), sigma=SOLVER, memory=Memory() if remember else None, batch_size=40)
    alone = Smoothed(Slab(), Gaussian(0.2), sigma=SOLVER, memory=Memory() if remember else None)
    found = {job.index: answer for job, answer in together.run(given, procedure, procedure.certify, seed=1)}
    for index, x in given:
        assert same(found[index], alone.certify(x, procedure, seed=1, index=index))
    assert {answer.guarantee for answer in found.values()} == {Guarantee.MEMORY if remember else Guarantee.POINTWISE}
    assert len({answer.noise for answer in found.values()}) > 20


def test_a_memory_answers_in_the_order_of_the_inputs():
    """Anytime decides clear inputs first; what is cut must not depend on that."""
    hard, clear = torch.tensor([0.5 + 0.3 - 0.101, 0.4]), torch.tensor([0.5, 0.4])
    given = list(enumerate([hard, clear, clear, hard, clear]))
    procedure = Anytime(radius=0.1, n_max=20_000)
    free = Smoothed(Slab(), Gaussian(0.1), sigma=BySecond(), batch_size=2000)
    assert [job.index for job, _ in free.run(given, procedure, procedure.certify, seed=0)] != [0, 1, 2, 3, 4]
    kept = Smoothed(Slab(), Gaussian(0.1), sigma=BySecond(), batch_size=2000, memory=Memory())
    assert [job.index for job, _ in kept.run(given, procedure, procedure.certify, seed=0)] == [0, 1, 2, 3, 4]
    bad = [*given[:2], (2, torch.tensor([float("nan"), 0.4]))]
    answered = kept.run(bad, procedure, procedure.certify, seed=0)
    assert [job.index for job, _ in itertools.islice(answered, 2)] == [0, 1]
    with pytest.raises(UsageError, match=r"input 2: .*NaN"):
        next(answered)


def test_contradictions_are_certified_without_a_memory_and_never_with_one():
    given = [(i, torch.tensor([0.5 + dx, 0.5 + dy])) for i, (dx, dy) in enumerate([(0, -0.05), (0, 0.05), (0.1, 0.3)])]
    procedure = Cohen(n=2000)
    free = [
        c for _, c in Smoothed(Slab(), Gaussian(0.1), sigma=BySecond()).run(given, procedure, procedure.certify, seed=0)
    ]
    assert [c.label for c in free] == [1, 0, 0]
    assert free[0].radius + free[1].radius > 0.1  # the balls meet: this is what pointwise means
    memory = Memory()
    kept = Smoothed(Slab(), Gaussian(0.1), sigma=BySecond(), memory=memory)
    first, second, third = (c for _, c in kept.run(given, procedure, procedure.certify, seed=0))
    assert (first.label, first.radius, first.guarantee) == (1, free[0].radius, Guarantee.MEMORY)
    assert second.label == 1  # inside the first ball
    assert second.radius == pytest.approx(first.radius - 0.1, abs=1e-6)
    assert second.counts == free[1].counts  # the votes stay what they were
    assert third.label == 0
    assert third.radius == pytest.approx((0.1**2 + 0.35**2) ** 0.5 - first.radius, abs=1e-6)
    assert third.radius < free[2].radius
    assert len(memory) == 2


def test_targets_that_are_cut_off_are_no_longer_certified():
    given = [(0, torch.tensor([0.5, 0.45])), (1, torch.tensor([0.5, 0.55])), (2, torch.tensor([0.6, 0.8]))]
    procedure = Anytime(radius=(0.05, 0.2), n_max=20_000)
    answers = [
        c
        for _, c in Smoothed(Slab(), Gaussian(0.1), sigma=BySecond(), memory=Memory()).run(
            given,
            procedure,
            procedure.certify,
            seed=0,
        )
    ]
    first, adopted, cut = answers
    assert first.decisions == {0.05: Outcome.CERTIFIED, 0.2: Outcome.CERTIFIED}
    assert adopted.label == 1
    assert 0.05 < adopted.radius < 0.2
    assert adopted.decisions == {0.05: Outcome.CERTIFIED, 0.2: Outcome.UNDECIDED}
    assert 0.05 < cut.radius < 0.2
    assert cut.decisions == {0.05: Outcome.CERTIFIED, 0.2: Outcome.UNDECIDED}
    assert {c.outcome for c in (adopted, cut)} == {Outcome.UNDECIDED}
    for c in answers:
        assert all(target <= c.radius for target, outcome in c.decisions.items() if outcome is Outcome.CERTIFIED)


def test_abstaining_inputs_inside_a_ball_adopt_its_class():
    kept = Smoothed(Slab(), Gaussian(0.1), sigma=BySecond(), memory=Memory())
    ball = kept.certify(torch.tensor([0.5, 0.4]), Cohen(n=2000), seed=0, index=0)
    few = Cohen(n=5)  # too few votes to prove anything
    assert (
        Smoothed(Slab(), Gaussian(0.1), sigma=BySecond()).certify(torch.tensor([0.55, 0.4]), few, seed=0, index=0).label
        == ABSTAIN
    )
    adopted = kept.certify(torch.tensor([0.55, 0.4]), few, seed=0, index=0)
    assert (adopted.label, adopted.outcome) == (1, Outcome.CERTIFIED)
    assert adopted.radius == pytest.approx(ball.radius - 0.05, abs=1e-6)
    far = kept.certify(torch.tensor([0.0, 0.4]), few, seed=0, index=0)
    assert (far.label, far.radius, far.guarantee) == (ABSTAIN, 0.0, Guarantee.MEMORY)


def test_predictions_agree_with_the_memory_and_stand():
    memory = Memory()
    kept = Smoothed(Slab(), Gaussian(0.1), sigma=BySecond(), memory=memory)
    contrary = torch.tensor([0.5, 0.55])
    assert kept.predict(contrary, seed=0, index=0).label == 0
    ball = kept.certify(torch.tensor([0.5, 0.45]), Cohen(n=2000), seed=0, index=0)
    assert ball.radius < 0.1 + 1e-6  # it must not reach the input that was predicted otherwise
    assert kept.predict(contrary, seed=0, index=0).label == 0
    assert kept.predict(torch.tensor([0.5, 0.51]), seed=0, index=0).label == 1  # alone it would be 0
    assert len(memory) == 2


def test_a_target_out_of_reach_of_the_sigma_chosen_is_tried_with_the_start():
    procedure = Anytime(radius=0.5, n_max=2000)
    x = torch.tensor([0.5, 0.4])
    with pytest.raises(UsageError, match="radius"):
        Smoothed(Slab(), Gaussian(0.1)).certify(x, procedure)
    chosen = Smoothed(Slab(), Gaussian(0.5), sigma=BySecond()).certify(x, procedure, seed=2)
    assert chosen.noise == "Gaussian(sigma=0.5)"
    assert chosen.counts == Smoothed(Slab(), Gaussian(0.5)).certify(x, procedure, seed=2).counts
    with pytest.raises(UsageError, match="radius"):
        Smoothed(Slab(), Gaussian(0.1), sigma=BySecond()).certify(x, procedure)


def test_refusals_come_before_sampling():
    with pytest.raises(UsageError, match="Gaussian noise only"):
        Smoothed(Slab(), Uniform(0.5), sigma=OptimizeSigma())
    batches = []

    def watched(x):
        batches.append(len(x))
        return Slab()(x)

    x = torch.tensor([0.5, 0.4])
    kept = Smoothed(watched, Gaussian(0.1), sigma=OptimizeSigma(), memory=Memory())
    for refused in (
        lambda: kept.certify(x, Cohen(norm="linf"), seed=0, index=0),
        lambda: kept.check(x, Cohen(norm="linf")),
    ):
        with pytest.raises(UsageError, match="compares l2 balls"):
            refused()
    assert batches == []
    assert (
        Smoothed(Slab(), Gaussian(0.1), sigma=SOLVER).certify(x, Cohen(n=100, norm="linf"), seed=0, index=0).norm.value
        == "linf"
    )


def test_a_memory_belongs_to_one_classifier_with_one_set_of_weights():
    model, x, memory = nn.Linear(2, 2), torch.tensor([0.5, 0.4]), Memory()
    with torch.no_grad():
        model.bias.copy_(torch.tensor([9.0, -9.0]))
    kept = Smoothed(model, Gaussian(0.25), sigma=SOLVER, memory=memory)
    assert kept.certify(x, Cohen(n=100), seed=0, index=0).label == 0
    for other in (
        Smoothed(nn.Linear(2, 2), Gaussian(0.25), sigma=OptimizeSigma(), memory=memory),
        Smoothed(model, Gaussian(0.5), sigma=OptimizeSigma(), memory=memory),
    ):
        with pytest.raises(RunError, match="another classifier"):
            other.certify(x, Cohen(n=100))
    with torch.no_grad():
        model.weight.mul_(2)
    with pytest.raises(RunError, match="another classifier"):
        kept.certify(x, Cohen(n=100))


class Interrupted:
    """A dataset that is interrupted on the way to one of its inputs."""

    name, split = "random", None

    def __init__(self, count: int, at: int | None = None) -> None:
        self.items, self.at = inputs(count, seed=6), at

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == self.at and self.asked:
            raise KeyboardInterrupt
        self.asked = index == self.at or self.asked
        return self.items[index][1], 1

    asked = False


def test_a_run_with_a_memory_goes_on_after_an_interruption(tmp_path):
    procedure = Anytime(radius=0.05, n_max=500)

    def certify(name: str, dataset: Interrupted):
        memory = Memory(tmp_path / f"{name}.safetensors")
        smoothed = Smoothed(Slab(), Gaussian(0.1), sigma=BySecond(), memory=memory, batch_size=20)
        try:
            return certify_dataset(smoothed, dataset, procedure, run=tmp_path / name, progress=False, seed=0)
        finally:
            memory.close()

    def rows(run):
        return [{key: value for key, value in row.items() if key != "seconds"} for row in run.rows()]

    unbroken = certify("unbroken", Interrupted(60))
    broken = Interrupted(60, at=30)
    with pytest.raises(KeyboardInterrupt):
        certify("broken", broken)
    assert 0 < len(load_run(tmp_path / "broken").rows()) < 60
    resumed = certify("broken", Interrupted(60))
    assert rows(resumed) == rows(unbroken)
    assert {row["guarantee"] for row in resumed.rows()} == {"memory"}
    assert {row["sigma"] for row in resumed.rows()} <= {0.10000000149011612, 2.0}
    assert resumed.config["sigma"] == {"name": "by second"}
    assert len(Memory(tmp_path / "broken.safetensors")) == len(Memory(tmp_path / "unbroken.safetensors"))
