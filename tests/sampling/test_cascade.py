"""K-consensus inside the sampler: the same votes as evaluating everything, with far fewer evaluations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from smoothcert import Anytime, Cohen, Gaussian, Smoothed, Staged
from smoothcert.classifiers import Consensus
from smoothcert.sampling import ESTIMATION, Cascade, Draw, Job, Pool, Source, TopClass
from smoothcert.sampling.audit import EVERY
from smoothcert.types import UsageError

INPUTS = torch.rand(12, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
INPUTS = INPUTS * 0.6 + 0.2


class Member(nn.Module):
    """A small network."""

    def __init__(self, seed: int, classes: int = 4) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shared = torch.Generator().manual_seed(99)
        weight = torch.randn(6, classes, generator=shared) + 0.5 * torch.randn(6, classes, generator=generator)
        self.weight = nn.Parameter(weight.double())
        self.seed = seed

    def forward(self, x):
        return torch.tanh(3 * (x - 0.5)) @ self.weight


def members(count=5):
    return [Member(seed) for seed in range(count)]


def rule(classifiers, first, margin=0.0):
    """All members on every copy, then the rule."""

    def classify(x):
        each = torch.stack([member(x) for member in classifiers])
        chosen = each[:first].argmax(2)
        best, second = each[:first].mean(0).topk(2, dim=1).values.unbind(1)
        agree = (chosen == chosen[:1]).all(0) & (best - second >= margin)
        return torch.where(agree[:, None], each[:first].mean(0), each.mean(0))

    return classify


def certify(model, procedure, *, runtime="eager", batch_size=40):
    smoothed = Smoothed(model, Gaussian(0.4), runtime=runtime, batch_size=batch_size)
    answers = smoothed.run(enumerate(INPUTS), procedure, procedure.certify, seed=3)
    return {job.index: (job, certificate) for job, certificate in answers}


class Callable64(nn.Module):
    """A reference in the dtype of the members."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.like = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("first", [1, 2, 4, 5])
@pytest.mark.parametrize(
    "procedure",
    [
        Cohen(n=700, alpha=0.01),
        Staged(radius=0.1, stages=(50, 400, 900), alpha=0.01, beta=0.01),
        Anytime(radius=(0.1, 0.2), alpha=0.01, beta=0.01, n_max=2_000),
    ],
    ids=lambda p: p.name,
)
@pytest.mark.parametrize("margin", [0.0, 0.6])
def test_votes_equal_those_of_evaluating_everything(first, procedure, margin):
    everything = certify(Callable64(rule(members(), first, margin)), procedure)
    consensus = certify(Consensus(members(), first, margin=margin), procedure)
    assert consensus.keys() == everything.keys()
    for index, (_, certificate) in consensus.items():
        assert replace(certificate, model=None) == replace(everything[index][1], model=None)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("batch_size", [7, 40, 200])
def test_neither_batches_nor_workers_change_votes(workers, batch_size):
    model = Consensus(members(), 2)
    cascade = Cascade(model.rest, model.split, model.join)

    def steps(n):
        return (yield Draw(ESTIMATION, n))

    def run(workers, batch_size):
        sources, pool = [Source(model.head, Gaussian(0.4), 4, (TopClass(),), batch_size, cascade)], Pool(workers)
        jobs = [Job(i, x, steps(100 + 50 * i), sources, 1) for i, x in enumerate(INPUTS)]
        return {job.index: (answer, job.deferred, job.drawn) for job, answer in pool.run(jobs)}, pool

    reference, _ = run(1, 20)
    given, pool = run(workers, batch_size)
    assert given == reference
    assert pool.rows == sum(drawn for _, _, drawn in given.values())


def test_only_undecided_copies_reach_the_rest_in_full_batches(forwards):
    smoothed = Smoothed(Consensus(members(), 2), Gaussian(0.4), batch_size=50)
    smoothed.check(INPUTS[0])
    forwards.seen.clear()
    procedure = Cohen(n=2_000)
    jobs = [job for job, _ in smoothed.run(enumerate(INPUTS), procedure, procedure.certify, seed=3)]
    last = [size for module, size in forwards.seen if isinstance(module, Member) and module.seed == 4]
    drawn, deferred = sum(job.drawn for job in jobs), sum(job.deferred for job in jobs)
    full = [size for size in last if size == 50]
    assert drawn == 12 * 2_100
    audited = 3 * 2 * len(jobs) + 20 * (drawn // EVERY + 1)  # of these copies all members are asked
    assert deferred <= sum(last) <= deferred + audited
    assert len(full) >= deferred // 50 - 3
    assert 0.3 < 1 - deferred / drawn < 0.98
    for job in jobs:
        assert job.consensus == pytest.approx(1 - job.deferred / job.drawn)


def test_share_of_consensus_is_that_of_the_first_members():
    five = members()
    consensus = certify(Consensus(five, 3), Cohen(n0=100, n=900))
    from smoothcert.sampling import SELECTION
    from smoothcert.sampling.copies import NoisyCopies

    for index, (job, _) in consensus.items():
        rows = torch.empty(1000, 6, dtype=torch.float64)
        maker = NoisyCopies(INPUTS[index])
        maker.fill(rows[:100], INPUTS[index], Gaussian(0.4), seed=3, index=index, stage=SELECTION, start=0)
        maker.fill(rows[100:], INPUTS[index], Gaussian(0.4), seed=3, index=index, stage=ESTIMATION, start=0)
        with torch.no_grad():
            chosen = torch.stack([member(rows).argmax(1) for member in five[:3]])
        assert job.deferred == int((chosen != chosen[:1]).any(0).sum())


def test_without_a_consensus_no_share_is_told():
    ((job, _), *_) = certify(members()[0], Cohen(n=100)).values()
    assert job.deferred is None
    assert job.consensus is None


def test_one_input_is_answered_without_waiting_for_others():
    smoothed = Smoothed(Consensus(members(), 2), Gaussian(0.4), runtime="eager", batch_size=400)
    everything = Smoothed(Callable64(rule(members(), 2)), Gaussian(0.4), runtime="eager", batch_size=400)
    procedure = Anytime(radius=0.1, n_max=5_000)
    given, expected = (each.certify(INPUTS[0], procedure, seed=0, index=0) for each in (smoothed, everything))
    assert replace(given, model=None) == replace(expected, model=None)
    assert smoothed.predict(INPUTS[0], seed=0, index=0) == everything.predict(INPUTS[0], seed=0, index=0)


def test_an_error_in_the_rest_is_raised_before_sampling():
    wrong = [Member(0), Member(1), Member(2, classes=5)]
    smoothed = Smoothed(Consensus(wrong, 2), Gaussian(0.4))
    with pytest.raises(UsageError, match="same classes, but return 4, 5"):
        smoothed.certify(INPUTS[0], Cohen(n=100))


@pytest.mark.parametrize("runtime", ["eager", "compiled", "onnx"])
def test_both_parts_run_in_the_runtime(runtime):
    if runtime == "onnx":
        pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).eval() for _ in range(4)]
    model = Consensus(networks, 2)
    inputs = INPUTS.float()

    def counts(runtime):
        smoothed = Smoothed(model, Gaussian(0.4), runtime=runtime, batch_size=40)
        procedure = Cohen(n=1_000)
        answers = smoothed.run(enumerate(inputs), procedure, procedure.certify, seed=0)
        return {job.index: certificate.counts for job, certificate in answers}

    given, expected = counts(runtime), counts("eager")
    assert all(sum(map(abs, (a - b for a, b in zip(given[i], expected[i], strict=True)))) <= 2 for i in given)
