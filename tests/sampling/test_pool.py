"""Noise and counts are functions of (seed, input, stage, sample), whatever the batches and threads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import smoothcert.sampling.batches as batches_module
import smoothcert.sampling.pool as pool_module
from smoothcert.models import build
from smoothcert.noise import Gaussian
from smoothcert.sampling import BLOCK, ESTIMATION, SELECTION, Draw, Job, Pool, Source, TopClass
from smoothcert.sampling.copies import NoisyCopies
from smoothcert.sampling.seeds import block_seed
from smoothcert.types import UsageError

TOP = (TopClass(),)
X = torch.linspace(0, 1, 3 * 8 * 8).reshape(3, 8, 8)


def copies(batch_size: int, n: int, *, seed=3, index=5, stage=ESTIMATION, start=0) -> torch.Tensor:
    maker = NoisyCopies(X)
    batches = []
    for done in range(0, n, batch_size):
        rows = torch.empty(min(batch_size, n - done), *X.shape)
        maker.fill(rows, X, Gaussian(0.5), seed=seed, index=index, stage=stage, start=start + done)
        batches.append(rows)
    return torch.cat(batches)


def votes(model, x, n, *, batch_size, statistics=TOP, classes=10, seed=1, workers=1):
    def steps():
        return (yield Draw(ESTIMATION, n))

    sources = [Source(model, Gaussian(0.5), classes, statistics, batch_size)]
    ((_, answer),) = Pool(workers).run([Job(2, x, steps(), sources, seed)])
    return answer


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_block_seeds_of_one_input_never_repeat():
    seeds = {block_seed(7, 11, stage, block) for stage in (0, 1, 2, 31) for block in range(50_000)}
    assert len(seeds) == 200_000
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_block_seeds_depend_on_every_key():
    base = [block_seed(1, 2, 3, block) for block in range(1000)]
    for seed, index, stage in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert sum(block_seed(seed, index, stage, block) == base[block] for block in range(1000)) < 5


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
@pytest.mark.parametrize("count", [1, 2])
def test_noise_is_bit_identical_for_any_batch_and_threads(batch_size, count, threads):
    threads(count)
    assert torch.equal(copies(batch_size, 1000), copies(BLOCK, 1000))


def test_noise_continues_where_it_stopped():
    assert torch.equal(copies(64, 300, start=133), copies(1000, 433)[133:])


def test_noise_differs_by_seed_input_and_stage():
    base = copies(100, 100)
    for other in ({"seed": 4}, {"index": 6}, {"stage": SELECTION}):
        assert not torch.isclose(copies(100, 100, **other), base).any(dim=0).all()


def test_all_noise_of_an_input_is_one_gaussian_sample():
    from scipy import stats

    noise = ((copies(1000, 5000) - X) / 0.5).numpy().reshape(5000, -1)
    assert stats.kstest(noise.ravel()[:200_000], "norm").pvalue > 1e-3
    block_means = noise.reshape(-1, BLOCK, noise.shape[1]).mean(axis=(1, 2)) * np.sqrt(BLOCK * noise.shape[1])
    assert stats.kstest(block_means, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(block_means[:-1], block_means[1:])[0, 1]) < 4 / np.sqrt(len(block_means))


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
@pytest.mark.parametrize("count", [1, 2])
def test_counts_are_equal_on_exact_logits(exact_logits, batch_size, count, threads):
    threads(count)
    expected = votes(exact_logits, X, 3000, batch_size=500, classes=8)
    assert votes(exact_logits, X, 3000, batch_size=batch_size, classes=8) == expected
    assert sum(expected[0].counts) == 3000


@pytest.mark.parametrize("n", [1_000, pytest.param(100_000, marks=pytest.mark.soundness)])
def test_counts_on_lenet_differ_by_at_most_one_vote_in_a_hundred_thousand(n, threads):
    torch.manual_seed(0)
    model, x = build("lenet").eval(), torch.rand(1, 28, 28)
    counts = []
    for count in (1, 2):
        threads(count)
        counts += [votes(model, x, n, batch_size=b)[0].counts for b in (7, 64, 1000)]
    moved = [sum(abs(a - b) for a, b in zip(counts[0], other, strict=True)) / 2 for other in counts]
    assert max(moved) <= max(1, n / 100_000)


def test_checkpoints_are_the_votes_of_a_smaller_n(exact_logits):
    (large,) = votes(exact_logits, X, 2345, batch_size=64, classes=8)
    assert list(large.checkpoints) == [10, 100, 1000]
    for n, counts in large.checkpoints.items():
        assert votes(exact_logits, X, n, batch_size=1000, classes=8)[0].counts == counts
    assert votes(exact_logits, X, 100, batch_size=100, classes=8)[0].checkpoints.keys() == {10}


def test_invalid_logits_vote_for_nobody():
    def sometimes(x):
        logits = x.flatten(1)[:, :3].clone()
        logits[logits[:, 0] > 0.6, 1] = float("nan")
        logits[logits[:, 0] < 0.0, 2] = float("inf")
        return logits

    (tally,) = votes(sometimes, X, 1000, batch_size=100, classes=3)
    noisy = copies(1000, 1000, seed=1, index=2).flatten(1)[:, :3]
    valid = (noisy[:, 0] <= 0.6) & (noisy[:, 0] >= 0.0)
    assert tally.n == 1000
    assert tally.counts == tuple(torch.bincount(noisy[valid].argmax(1), minlength=3).tolist())
    assert 0 < sum(tally.counts) < 1000


def test_another_statistic_plugs_into_the_same_loop():
    class Confident:
        def bins(self, num_classes):
            return 2

        def codes(self, logits):
            return (logits.softmax(1).amax(1) > 0.4).long()

    top, confident = votes(
        lambda x: x.flatten(1)[:, :3], X, 500, batch_size=64, classes=3, statistics=(TopClass(), Confident())
    )
    assert sum(top.counts) == sum(confident.counts) == 500
    assert len(confident.counts) == 2


def test_company_in_the_batch_changes_nothing(exact_logits):
    """Jobs that ask for little, much and in steps, together and alone, in one lane and in three: the same votes."""

    def steps(sizes):
        got, start = [], 0
        for size in sizes:
            (tally,) = yield Draw(ESTIMATION, size, start)
            got.append(tally.counts)
            start += size
        return got

    plans = {index: [(7 * index) % 50 + 1, 20, 133 * (index % 3) + 1] for index in range(30)}

    def run(indices, batch_size, workers):
        sources, pool = [Source(exact_logits, Gaussian(0.5), 8, TOP, batch_size)], Pool(workers)
        jobs = (Job(i, torch.roll(X, i, dims=2), steps(plans[i]), sources, seed=i % 3) for i in indices)
        return {job.index: answer for job, answer in pool.run(jobs)}, pool

    alone = {index: run([index], 64, 1)[0][index] for index in plans}
    for batch_size, workers in ((7, 1), (64, 1), (64, 3), (1000, 2)):
        together, pool = run(plans, batch_size, workers)
        assert together == alone
        assert pool.rows == sum(map(sum, plans.values()))
    _, pool = run(plans, 64, 1)
    assert pool.rows > 0.9 * pool.capacity


def test_an_error_in_finding_the_next_input_comes_after_the_answers_before_it(exact_logits):
    sources = [Source(exact_logits, Gaussian(0.5), 8, TOP, 64)]

    def jobs():
        for index in range(3):
            yield Job(index, X, iter_steps(), sources, 1)
        raise ValueError("no such file")

    def iter_steps():
        return (yield Draw(ESTIMATION, 10))

    answers = Pool().run(jobs())
    assert [next(answers)[0].index for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no such file"):
        next(answers)


def test_inputs_of_several_sizes(exact_logits):
    def steps():
        return (yield Draw(ESTIMATION, 30))

    sources = [Source(exact_logits, Gaussian(0.5), 8, TOP, 64)]
    answers = dict(Pool().run([Job(i, X[:, : 4 + i % 2], steps(), sources, 1) for i in range(6)]))
    assert len(answers) == 6


def test_a_model_that_changes_its_mind_about_its_shape_is_refused():
    with pytest.raises(UsageError, match=r"shape \(64, 5\) for a batch of 64"):
        votes(lambda x: x.flatten(1)[:, :5], X, 100, batch_size=64, classes=3)


class Clock:
    """A clock that only the model moves."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        for module in (pool_module, batches_module):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


class Watched:
    """A classifier that notes the sizes of its batches and takes a millisecond for each copy."""

    def __init__(self, model, clock=None):
        self.model, self.clock, self.sizes = model, clock, []

    def __call__(self, x):
        self.sizes.append(len(x))
        if self.clock is not None:
            self.clock.now += 0.001 * len(x)
        return self.model(x)


def looking(until, deadline=None):
    """Request a block at a time; return all votes after ``until`` copies, or at a deadline."""
    total, n = np.zeros(8, dtype=np.int64), 0
    while n < until:
        (tally,) = yield Draw(ESTIMATION, BLOCK, n, most=2_000, deadline=deadline)
        total, n = total + tally.counts, n + tally.n
        if tally.n < BLOCK:
            break
    return n, total.tolist()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_single_job_draws_ahead_in_growing_batches(exact_logits, workers):
    """A procedure that stops soon wastes little, one that does not soon has full batches, and votes are the same."""
    expected = votes(exact_logits, X, 2000, batch_size=320, classes=8)[0].counts
    for until in (20, 60, 2000):
        model = Watched(exact_logits)
        sources = [Source(model, Gaussian(0.5), 8, TOP, 320)]
        ((_, (n, found)),) = Pool(workers).run([Job(2, X, looking(until), sources, 1)])
        assert n == until
        assert found == list(votes(exact_logits, X, until, batch_size=320, classes=8)[0].counts)
        assert model.sizes[0] == BLOCK
        assert sum(model.sizes) <= 4 * until
    assert found == list(expected)
    if workers == 1:
        assert model.sizes == [20, 20, 40, 80, 160, 320, 320, 320, 320, 320, 80]


def test_a_padded_runtime_gets_full_batches(exact_logits):
    model = Watched(exact_logits)
    sources = [Source(model, Gaussian(0.5), 8, TOP, 320, least=320)]
    list(Pool().run([Job(2, X, looking(20), sources, 1)]))
    assert model.sizes == [320]


@pytest.mark.parametrize("seconds", [1e-9, 0.05, 0.1, 0.333])
def test_a_deadline_is_met_and_every_vote_counts(exact_logits, monkeypatch, seconds):
    """At a millisecond per copy, the answer comes at most one block after the deadline, with all copies drawn."""
    clock = Clock(monkeypatch)
    model, begin = Watched(exact_logits, clock), clock.now
    sources = [Source(model, Gaussian(0.5), 8, TOP, 320)]
    ((job, (n, found)),) = Pool().run([Job(2, X, looking(5_000, begin + seconds), sources, 1)])
    assert seconds - 1e-9 <= clock.now - begin <= seconds + 0.001 * BLOCK + 1e-9
    assert n == job.drawn == sum(model.sizes)
    assert found == list(votes(exact_logits, X, n, batch_size=320, classes=8)[0].counts)


def test_a_deadline_in_company(exact_logits, monkeypatch):
    """Each of several inputs is answered in time, and one without a deadline gets all its votes."""
    clock = Clock(monkeypatch)
    model, begin = Watched(exact_logits, clock), clock.now
    sources = [Source(model, Gaussian(0.5), 8, TOP, 320)]
    jobs = [Job(i, X, looking(1_000, begin + 0.1), sources, 1) for i in range(4)]
    jobs.append(Job(9, X, looking(1_000), sources, 1))
    ended = {}
    for job, (n, _) in Pool().run(jobs):
        ended[job.index] = n, clock.now - begin
    assert ended.pop(9)[0] == 1_000
    assert all(n >= BLOCK and seconds <= 0.1 + 0.001 * BLOCK + 1e-9 for n, seconds in ended.values())
