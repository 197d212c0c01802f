"""Several threads and overlapping runs on one model: every answer is that of a quiet machine."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from hostile.entries.modes import Normed
from hostile.entry import FAR, LOW, SIGMA, Expect, HalfSpace, point
from hostile.gallery import ENTRIES
from hostile.judge import SEED, Snapshot, attempt, differences, judged, not_one_sentence
from hostile.kinds import ALPHA, KINDS, PROCEDURES
from smoothcert import Cohen, Gaussian, SmoothcertError, Smoothed

COHEN = Cohen(n0=20, n=401, alpha=ALPHA)
LONG = Cohen(n0=100, n=50_001, alpha=ALPHA)
POINTS = [point(0.08 * index) for index in range(12)]

CROWDED = (
    "features_through_a_global",
    "features_through_the_module",
    "features_on_the_module",
    "returns_the_same_memory",
    "stateful_recurrent_network",
    "running_mean_buffer",
    "caches_by_address",
    "normalises_in_place",
    "holds_a_lock_in_training",
    "lambda_around_batch_norm",
    "batch_norm_left_in_training",
    "numpy_function",
)
"""Entries that threads could confuse."""


def _smoothed(given, **options) -> Smoothed:
    return Smoothed(given, Gaussian(SIGMA), input_range=None, **options)


def _sequential(kind: str = "plain") -> list:
    made, twin = KINDS[kind], HalfSpace()
    procedure = made.adapt(_procedure(kind), twin)
    return [made.build(twin).certify(x, procedure, seed=SEED, index=i) for i, x in enumerate(POINTS)]


def _procedure(kind: str):
    return COHEN if "cohen" in KINDS[kind].procedures else PROCEDURES["aces"]


@pytest.fixture
def four_threads():
    """PyTorch with four threads, so that batches run in several workers at once."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CROWDED)
def test_workers_do_not_confuse_a_model(name, four_threads):
    entry = ENTRIES[name]
    given = entry.make()
    before = Snapshot(given, entry.copyable)
    answer = attempt(lambda: _smoothed(given).certify(FAR, LONG, seed=SEED, index=0))
    right = _smoothed(entry.reference()).certify(FAR, LONG, seed=SEED, index=0)
    assert judged(answer, right, FAR, entry.expect) == ""
    assert before.changes() == []


@pytest.mark.parametrize("kind", KINDS)
def test_eight_threads_on_one_classifier(kind):
    """The model is left in training mode, and every thread would put it into another mode when done."""
    net, made = Normed().train(), KINDS[kind]
    smoothed = made.build(net)
    for module in net.modules():
        module.training = True
    before, procedure = Snapshot(net), made.adapt(_procedure(kind), net)
    with ThreadPoolExecutor(8) as pool:
        tasks = [pool.submit(smoothed.certify, x, procedure, seed=SEED, index=i) for i, x in enumerate(POINTS)]
        answers = [task.result() for task in tasks]
    assert [differences(*pair) for pair in zip(answers, _sequential(kind), strict=True)] == [""] * len(POINTS)
    assert before.changes() == []


@pytest.mark.parametrize("name", [name for name in CROWDED if name != "numpy_function"])
def test_eight_threads_on_a_model_that_threads_could_confuse(name):
    entry = ENTRIES[name]
    given = entry.make()
    smoothed, before = _smoothed(given), Snapshot(given, entry.copyable)
    with ThreadPoolExecutor(8) as pool:
        asks = [lambda i=i, x=x: smoothed.certify(x, COHEN, seed=SEED, index=i) for i, x in enumerate(POINTS)]
        answers = [task.result() for task in [pool.submit(attempt, ask) for ask in asks]]
    for answer, right, x in zip(answers, _sequential(), POINTS, strict=True):
        assert judged(answer, right, x, entry.expect) == ""
    assert before.changes() == []


def test_two_classifiers_on_one_module_in_two_threads():
    net = Normed().train()
    before, both = Snapshot(net), [_smoothed(net, batch_size=20) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        tasks = [
            pool.submit(lambda s=s: [s.certify(x, COHEN, seed=SEED, index=i) for i, x in enumerate(POINTS)])
            for s in both
        ]
        for task in tasks:
            pairs = zip(task.result(), _sequential(), strict=True)
            assert [differences(*pair) for pair in pairs] == [""] * len(POINTS)
    assert before.changes() == []


@pytest.mark.parametrize("entry", [e for e in ENTRIES.values() if e.expect is Expect.RIGHT], ids=lambda e: e.name)
@pytest.mark.parametrize("shared", [True, False], ids=["one classifier", "two classifiers"])
def test_overlapping_runs_on_one_model(entry, shared):
    """When the first run ends, the second must not go on in training mode."""
    given = entry.make()
    before = Snapshot(given, entry.copyable)
    first = _smoothed(given, batch_size=200)
    second = first if shared else _smoothed(given, batch_size=200)
    inputs = list(enumerate([FAR, LOW, FAR, LOW]))
    runs = [one.run(iter(inputs), COHEN, COHEN.certify, seed=SEED) for one in (first, second)]
    answers = [dict([_indexed(next(run))]) for run in runs]
    answers[0].update(map(_indexed, runs[0]))
    answers[1].update(map(_indexed, runs[1]))
    twin = _smoothed(entry.reference())
    for given_answers in answers:
        assert given_answers.keys() == dict(inputs).keys()
        for index, answer in given_answers.items():
            assert differences(answer, twin.certify(inputs[index][1], COHEN, seed=SEED, index=index)) == ""
    assert before.changes() == []


def _indexed(pair):
    return pair[0].index, pair[1]


def test_a_run_that_is_abandoned_leaves_the_model_as_it_was():
    net = Normed().train()
    before = Snapshot(net)
    run = _smoothed(net, batch_size=20).run(enumerate(POINTS), COHEN, COHEN.certify, seed=SEED)
    next(run)
    run.close()
    assert before.changes() == []


def test_another_thread_changes_the_model_all_the_time():
    """A user evaluates while a scheduler moves a threshold: no answer may mix two values of it."""
    edges, stop = (0.5, 0.2), threading.Event()
    model = HalfSpace(edges[0])

    def move() -> None:
        for edge in itertools.cycle(edges):
            model.edge = edge
            if stop.wait(1e-4):
                return

    thread = threading.Thread(target=move)
    thread.start()
    smoothed = _smoothed(model, batch_size=20)
    try:
        answers = [attempt(lambda i=i: smoothed.certify(FAR, COHEN, seed=SEED, index=i)) for i in range(20)]
    finally:
        stop.set()
        thread.join()
    for index, answer in enumerate(answers):
        if isinstance(answer, SmoothcertError):
            assert not_one_sentence(answer) == ""
            continue
        right = [_smoothed(HalfSpace(edge)).certify(FAR, COHEN, seed=SEED, index=index) for edge in edges]
        assert "" in [differences(answer, one) for one in right]
