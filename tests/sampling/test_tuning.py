"""Choices by time: right on a machine whose load changes, and without any influence on votes."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from smoothcert.classifiers.modes import intra_op_threads
from smoothcert.noise import Gaussian
from smoothcert.sampling import ESTIMATION, Draw, Job, Pool, Source, TopClass
from smoothcert.sampling.tuning import PERIOD, TURNS, Layout, Layouts, Stopwatch, benchmark, layouts_for

X = torch.linspace(0, 1, 3 * 8 * 8).reshape(3, 8, 8)
APART, TOGETHER, ALONE = Layout(1, 2), Layout(2, 1), Layout(1, 1)
ALL = (APART, TOGETHER, ALONE)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def compare(layouts: Layouts, times) -> list[float]:
    """Run a comparison in which the k-th turn of each layout takes ``times(layout, k)`` per copy; return all times."""
    numbers = {layout: itertools.count() for layout in ALL}
    taken = []
    while (layout := layouts.next()) is not None:
        taken.append(100 * times(layout, next(numbers[layout])))
        layouts.record(layout, 100, taken[-1])
    return taken


def found(times) -> Layout:
    layouts = Layouts(ALL)
    compare(layouts, times)
    return layouts.best


def test_the_fastest_layout_is_found():
    for best in ALL:
        assert found(lambda layout, k, best=best: 1.0 if layout == best else 1.6) == best


def test_layouts_take_turns():
    layouts = Layouts(ALL)
    assert [layouts.next() for _ in range(6)] == [*ALL, *ALL]


@pytest.mark.parametrize("slow", itertools.combinations(range(TURNS), TURNS // 2))
@pytest.mark.parametrize("hit", ALL)
def test_a_slow_phase_that_hits_one_layout_changes_nothing(slow, hit):
    """Half of its turns, the first ones included, take eighty times as long."""
    for best in ALL:

        def times(layout, k, best=best):
            return (1.0 if layout == best else 1.6) * (80 if layout == hit and k in slow else 1)

        assert found(times) == best or (best == hit and slow == (0, 1))  # then it drops out, until the next comparison


def test_one_lucky_turn_is_not_enough():
    assert found(lambda layout, k: 0.1 if (layout, k) == (TOGETHER, 3) else 1.0 if layout == APART else 1.2) == APART


def test_threads_that_wait_for_each_other_must_be_clearly_faster():
    assert found(lambda layout, k: 0.80 if layout == TOGETHER else 1.0) == APART
    assert found(lambda layout, k: 0.70 if layout == TOGETHER else 1.0) == TOGETHER
    assert found(lambda layout, k: 0.95 if layout == ALONE else 1.0) == APART


def test_a_long_run_compares_again_and_switches():
    layouts = Layouts(ALL)
    quiet = {APART: 1.0, TOGETHER: 0.5, ALONE: 1.9}
    busy = {APART: 3.0, TOGETHER: 20.0, ALONE: 4.0}
    spent = sum(compare(layouts, lambda layout, k: quiet[layout]))
    assert layouts.best == TOGETHER
    assert not layouts.due
    layouts.sampled((PERIOD - 1) * spent)
    assert layouts.next() is None
    layouts.sampled(1.01 * spent)
    assert layouts.due
    turns = compare(layouts, lambda layout, k: busy[layout])
    assert layouts.best == APART
    assert len(turns) < 3 * TURNS  # the layout that became bad has dropped out
    layouts.sampled(1e6)
    compare(layouts, lambda layout, k: quiet[layout])
    assert layouts.best == TOGETHER


def test_turns_that_were_not_full_decide_nothing_but_cost_time():
    layouts = Layouts(ALL)
    for _ in range(3 * TURNS):
        layouts.record(layouts.next(), 0, 1.0)
    assert layouts.best == APART
    assert layouts.next() is None
    layouts.sampled(3 * TURNS * PERIOD)
    assert layouts.next() == APART


def test_a_late_turn_of_another_thread_changes_nothing():
    layouts = Layouts(ALL)
    compare(layouts, lambda layout, k: 1.0)
    layouts.record(TOGETHER, 100, 0.001)
    assert layouts.best == APART


def test_one_layout_is_never_timed():
    assert Layouts([ALONE]).next() is None


def test_layouts_of_a_machine():
    with intra_op_threads(2):
        assert layouts_for(X, True) == [APART, TOGETHER, ALONE]
        assert layouts_for(X, False) == [TOGETHER]
    with intra_op_threads(1):
        assert layouts_for(X, True) == [ALONE]


@pytest.mark.parametrize("slow", ["first", "second"])
def test_a_slow_phase_does_not_fool_the_benchmark(slow):
    clock = Clock()
    number = {"first": 0, "second": 0}

    def candidate(name, seconds):
        def timed():
            number[name] += 1
            taken = seconds * (50 if name == slow and number[name] != 2 else 1)
            clock.now += taken
            return taken

        return timed

    times = benchmark({"first": candidate("first", 1.0), "second": candidate("second", 1.2)}, 1e9, clock)
    assert times == {"first": 1.0, "second": 1.2}


def test_the_benchmark_ends_in_time():
    clock, calls = Clock(), []

    def candidate(name):
        def timed():
            calls.append(name)
            clock.now += 1.0
            return 1.0

        return timed

    assert set(benchmark({name: candidate(name) for name in range(5)}, 1.0, clock)) == {0, 1}
    assert calls == [0, 1, 0, 1]


def test_a_candidate_that_fails_has_no_time():
    def broken():
        raise RuntimeError("out of memory")

    assert benchmark({"slow": lambda: 2.0, "broken": broken, "fast": lambda: 1.0}, 1e9) == {"slow": 2.0, "fast": 1.0}
    assert benchmark({"broken": broken}, 1e9) == {}


def test_the_stopwatch_counts_waiting():
    watch = Stopwatch()
    time.sleep(0.02)
    assert watch.seconds >= 0.02


def test_the_stopwatch_leaves_out_what_others_took(monkeypatch):
    for waits, expected in (((3, 3), 1.0), ((3, 4), 5.0), ((None, None), 5.0)):
        times = iter([(0.0, 0.0, waits[0]), (5.0, 1.0, waits[1])])  # of the clock and of the CPU
        monkeypatch.setattr(Stopwatch, "_now", staticmethod(times.__next__))
        assert Stopwatch().seconds == expected


class Scripted(Layouts):
    """Takes seconds per copy from a table that may change, instead of from the clock."""

    def __init__(self, table):
        super().__init__(ALL)
        self.table, self.timed, self.full = table, [], []

    def record(self, layout, copies, seconds):
        self.timed.append(layout)
        self.full.append(copies)
        super().record(layout, copies, copies * self.table[layout])

    def sampled(self, seconds):
        super().sampled(0.0)


def votes(model, n, layouts, jobs=1, batch_size=40):
    def steps():
        return (yield Draw(ESTIMATION, n))

    sources = [Source(model, Gaussian(0.5), 8, (TopClass(),), batch_size)]
    listed = [Job(index, X, steps(), sources, 1) for index in range(jobs)]
    return {job.index: answer[0].counts for job, answer in Pool(1, 1, layouts).run(listed)}


def test_votes_are_the_same_whatever_is_chosen(exact_logits):
    expected = votes(exact_logits, 6_000, None)
    for best in ALL:
        layouts = Scripted({layout: 1.0 if layout == best else 2.0 for layout in ALL})
        assert votes(exact_logits, 6_000, layouts) == expected
        assert layouts.best == best
        assert set(layouts.timed) == set(ALL)
        assert sum(map(bool, layouts.full)) >= 2 * len(ALL)


def test_a_long_run_switches_while_it_runs(exact_logits):
    """A second comparison is due soon; by then, the layout in use has become slow."""
    layouts = Scripted({APART: 1.0, TOGETHER: 0.5, ALONE: 2.0})
    used = []

    def model(batch):
        used.append(layouts.best)
        if layouts.best == TOGETHER and not layouts.due:
            layouts.table = {APART: 1.0, TOGETHER: 30.0, ALONE: 1.5}
            Layouts.sampled(layouts, 1e9)
        return exact_logits(batch)

    assert votes(model, 40_000, layouts) == votes(exact_logits, 40_000, None)
    assert TOGETHER in used
    assert used[-1] == layouts.best == APART


def test_small_inputs_end_no_comparison_wrongly(exact_logits):
    layouts = Scripted(dict.fromkeys(ALL, 1.0) | {TOGETHER: 0.001})
    for _ in range(20):
        assert votes(exact_logits, 60, layouts) == votes(exact_logits, 60, None)
    assert layouts.best == APART
    assert not any(layouts.full)
    expected = votes(exact_logits, 60, None, jobs=300)
    assert votes(exact_logits, 60, layouts, jobs=300) == expected  # many small inputs fill batches
    assert any(layouts.full)


def test_threads_of_pytorch_are_restored(exact_logits):
    with intra_op_threads(2):
        inside = set()

        def model(batch):
            inside.add(torch.get_num_threads())
            return exact_logits(batch)

        votes(model, 6_000, Scripted(dict.fromkeys(ALL, 1.0)))
        assert inside == {1, 2}
        assert torch.get_num_threads() == 2


def test_an_abandoned_run_leaves_the_layouts_usable(exact_logits):
    layouts = Scripted(dict.fromkeys(ALL, 1.0))

    def failing(batch):
        raise ValueError("lost")

    for _ in range(3):
        with pytest.raises(ValueError, match="lost"):
            votes(failing, 6_000, layouts)
    assert votes(exact_logits, 6_000, layouts) == votes(exact_logits, 6_000, None)


def test_inputs_with_deadlines_are_not_slowed_by_comparisons(exact_logits):
    layouts = Scripted(dict.fromkeys(ALL, 1.0))

    def steps():
        return (yield Draw(ESTIMATION, 2_000, deadline=time.monotonic() + 1e6))

    sources = [Source(exact_logits, Gaussian(0.5), 8, (TopClass(),), 40)]
    list(Pool(1, 1, layouts).run([Job(0, X, steps(), sources, 1)]))
    assert len(layouts.timed) <= 1  # the first batches, before anything is known of the input
