"""An engine gives the answers of ``Smoothed``, to many callers, whatever goes wrong around them."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed, wait
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from smoothcert import (
    Aces,
    Anytime,
    Cohen,
    Consensus,
    Engine,
    Ensemble,
    Gaussian,
    GridSigma,
    Memory,
    OptimizeSigma,
    Prediction,
    SmoothcertError,
    Smoothed,
    Staged,
    UsageError,
)
from smoothcert.certify.engine import _Service
from smoothcert.types import Guarantee, Outcome

SIGMA = 0.5
X = [torch.rand(6, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(24)]
POINTS = [torch.tensor([0.5 + 0.02 * i, 0.5]) for i in range(24)]
EAGER = {"runtime": "eager", "batch_size": 100}
LONG = Anytime(n_max=10_000_000, deadline=1_000.0)  # never ends in time by itself


def smoothed(model=None, **options) -> Smoothed:
    return Smoothed(model or ExactLogits(), Gaussian(SIGMA), **{**EAGER, **options})


class HalfSpace(nn.Module):
    """Class 1 where the first coordinate exceeds ½."""

    def forward(self, x):
        score = x.flatten(1)[:, 0] - 0.5
        return torch.stack([-score, score], dim=1)


class ExactLogits(nn.Module):
    """Logits that are small whole numbers (bright pixels per column), so no batch shape can change a vote."""

    def forward(self, x):
        return (x > 0.5).sum(dim=1).float()


class Constant(HalfSpace):
    """Always class 1."""

    def forward(self, x):
        return torch.tensor([[0.0, 1.0]]).expand(len(x), 2)


class Gate:
    """Holds and frees the forward passes of engines, from outside: in a model it would be state."""

    def __init__(self) -> None:
        self.free, self.entered, self.error = threading.Event(), threading.Event(), None
        self.free.set()

    def note(self, module, arguments) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.entered.set()
            assert self.free.wait(60)
            if self.error is not None:
                raise self.error

    def hold(self) -> None:
        self.free.clear()
        self.entered.clear()


@pytest.fixture
def gate():
    gate = Gate()
    handle = register_module_forward_pre_hook(gate.note)
    yield gate
    gate.free.set()
    handle.remove()


class Thrower(nn.Module):
    """A model that raises an error on bright rows."""

    def __init__(self, model: nn.Module, error: Exception) -> None:
        super().__init__()
        self.model, self.error = model, error

    def forward(self, x):
        if float(x.flatten(1)[:, -1].max()) > 50:
            raise self.error
        return self.model(x)


PROCEDURES = {
    "cohen": Cohen(500),
    "staged": Staged(0.1, stages=(100, 400, 1_000)),
    "anytime": Anytime(0.1, n_max=2_000),
    "anytime without a target": Anytime(n_max=500),
    "several targets": Anytime((0.05, 0.2), n_max=2_000),
    "runner-up": Cohen(500, bound="runner-up"),
}


@pytest.mark.parametrize("name", PROCEDURES)
def test_answers_are_those_of_the_smoothed_classifier(name):
    procedure, classifier = PROCEDURES[name], smoothed()
    with Engine(classifier) as engine:
        requests = [engine.submit(x, procedure, seed=7, index=i) for i, x in enumerate(X)]
        predictions = [engine.submit(x, procedure, seed=7, index=i, predict=True) for i, x in enumerate(X)]
        for i, (x, request, prediction) in enumerate(zip(X, requests, predictions, strict=True)):
            assert request.result(60) == classifier.certify(x, procedure, seed=7, index=i)
            assert prediction.result(60) == classifier.predict(x, procedure, seed=7, index=i)
        assert engine.submit(X[0], procedure, seed=7).result(60) == classifier.certify(X[0], procedure, seed=7)


def test_all_procedures_and_seeds_at_the_same_time():
    classifier = smoothed()
    with Engine(classifier) as engine:
        cases = [(i, p) for i in range(24) for p in PROCEDURES.values()]
        random.Random(0).shuffle(cases)
        requests = [engine.submit(X[i], p, seed=i % 5, index=i, priority=i % 3) for i, p in cases]
        for (i, p), request in zip(cases, requests, strict=True):
            assert request.result(60) == classifier.certify(X[i], p, seed=i % 5, index=i)


def classifiers():
    members = [nn.Sequential(nn.Flatten(), nn.Linear(48, 3)) for _ in range(5)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for member in members:
            member[1].reset_parameters()
    core, plain = members[0], {"runtime": "eager"}
    experts = [smoothed(members[0]), Smoothed(members[1], Gaussian(0.25), **EAGER), members[2]]
    return {
        "ensemble": (smoothed(Ensemble(members)), Cohen(300)),
        "consensus": (smoothed(Consensus(members, 2)), Cohen(300)),
        "consensus, anytime": (smoothed(Consensus(members, 2)), Anytime(0.05, n_max=1_000)),
        "router": (smoothed(members[3], experts=experts), Anytime(0.05, n_max=1_000)),
        "aces": (smoothed(members[1]), Aces(core, theta=0.3, n=300)),
        "aces with a selector": (
            smoothed(members[1]),
            Aces(core, selector=nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), theta=0.5, n=300),
        ),
        "sigma": (smoothed(members[1], sigma=OptimizeSigma(steps=2, n=4)), Cohen(300)),
        "sigma, target": (smoothed(members[1], sigma=GridSigma((0.01, 0.5), n=4)), Anytime(0.05, n_max=1_000)),
        "a function": (smoothed(lambda x: members[1](x)), Cohen(300)),
        "tuned": (smoothed(members[1], runtime="auto", batch_size=None), Cohen(300)),
        "one thread at a time": (Smoothed(members[1], Gaussian(SIGMA), **plain), Cohen(300)),
    }


@pytest.mark.parametrize("name", classifiers())
@pytest.mark.parametrize("threads", [1, 2])
def test_any_classifier_can_be_served(name, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        classifier, procedure = classifiers()[name]
        with Engine(classifier, samples=3_000) as engine:
            requests = [engine.submit(x, procedure, seed=3, index=i) for i, x in enumerate(X)]
            answers = [request.result(60) for request in requests]
        expected = classifier.certify(X, procedure, seed=3, index=range(len(X)))
        for one, other in zip(answers, expected, strict=True):
            moved = sum(abs(a - b) for a, b in zip(one.counts, other.counts, strict=True))
            assert moved <= 2  # the runtime may differ, and with it the rounding
            assert (one.guarantee, one.model, one.input) == (other.guarantee, other.model, other.input)
            assert abs(one.radius - other.radius) <= 0.02
        if "sigma" in name:
            assert answers[0].guarantee is Guarantee.POINTWISE
    finally:
        torch.set_num_threads(before)


def test_a_memory_is_refused():
    with pytest.raises(UsageError, match="depend on it; use Smoothed"):
        Engine(smoothed(HalfSpace(), sigma=OptimizeSigma(), memory=Memory()))


@pytest.mark.parametrize("procedure", [Cohen(), Staged(0.1), Aces(HalfSpace()), PROCEDURES["runner-up"]])
def test_a_deadline_is_refused_where_nothing_is_proved_before_the_end(procedure):
    with Engine(smoothed(HalfSpace())) as engine:
        with pytest.raises(UsageError, match=r"cannot answer by a deadline, .*; use anytime\.$"):
            engine.submit(POINTS[3], procedure, deadline=1.0)
        request = engine.submit(POINTS[3], procedure)
        with pytest.raises(UsageError, match="cannot be stopped, because it proves nothing before its last sample"):
            request.stop()
        request.cancel()


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (torch.zeros(2, dtype=torch.int64), {}, "int64"),
        (torch.full((2,), float("nan")), {}, "NaN"),
        (torch.full((2,), 3.0), {}, "outside the declared range"),
        (torch.zeros(0), {}, "empty"),
        (POINTS[0], {"seed": -1}, "seed must be"),
        (POINTS[0], {"index": 2**63}, "index must be"),
        (POINTS[0], {"deadline": 0.0, "procedure": Anytime(0.1)}, "deadline must be a positive"),
        (POINTS[0], {"deadline": float("nan"), "procedure": Anytime(0.1)}, "deadline must be a positive"),
        (POINTS[0], {"procedure": Anytime(4.0, n_max=100)}, "cannot be certified"),
        (POINTS[0], {"priority": float("nan")}, "priority must be a finite"),
        (POINTS[0], {"priority": "high"}, "priority must be a finite"),
    ],
)
def test_invalid_requests_are_refused_at_once(x, options, message):
    with Engine(smoothed(HalfSpace())) as engine:
        with pytest.raises(UsageError, match=message):
            engine.submit(x, **options)
        assert engine.submit(POINTS[9], Cohen(100)).result(60).n == 100
        assert engine.statistics()["submitted"] == 1


def test_an_input_that_the_caller_changes_afterwards_is_answered_as_it_was(gate):
    classifier = smoothed()
    with Engine(classifier) as engine:
        engine.submit(X[0], Cohen(100)).result(60)
        gate.hold()
        x = X[1].clone()
        request = engine.submit(x, Cohen(300), seed=1, index=1)
        x.zero_()
        gate.free.set()
        assert request.result(60).counts == classifier.certify(X[1], Cohen(300), seed=1, index=1).counts


def test_many_threads():
    classifier = smoothed()
    expected = {i: classifier.certify(X[i], Anytime(0.1, n_max=1_000), seed=9, index=i) for i in range(24)}
    with Engine(classifier) as engine:

        def ask(thread: int) -> bool:
            order = random.Random(thread).sample(range(24), 8)
            requests = {i: engine.submit(X[i], Anytime(0.1, n_max=1_000), seed=9, index=i) for i in order}
            return all(request.result(120) == expected[i] for i, request in requests.items())

        with ThreadPoolExecutor(64) as threads:
            assert all(threads.map(ask, range(64)))
        assert engine.statistics()["answered"] == 64 * 8


def test_a_deadline_is_met_and_the_answer_is_what_the_first_votes_prove():
    classifier = smoothed(HalfSpace())
    with Engine(classifier) as engine:
        engine.submit(POINTS[9], Cohen(1_000)).result(60)
        for seconds in (0.001, 0.05, 0.2):
            began = time.monotonic()
            answer = engine.submit(POINTS[9], LONG, deadline=seconds, seed=4, index=4).result(60)
            assert time.monotonic() - began < seconds + 1.0  # the machine may be busy
            assert 0 < answer.n < LONG.n_max
            assert answer.outcome is (Outcome.UNDECIDED if answer.abstained else Outcome.CERTIFIED)
            alone = classifier.certify(POINTS[9], Cohen(answer.n), seed=4, index=4)
            assert answer.counts == alone.counts


def test_the_time_in_the_queue_counts_for_the_deadline(gate):
    with Engine(smoothed(HalfSpace())) as engine:
        engine.submit(POINTS[9], Cohen(100)).result(60)
        gate.hold()
        first = engine.submit(POINTS[9], Cohen(100))
        assert gate.entered.wait(60)
        late = engine.submit(POINTS[9], LONG, deadline=0.01)
        time.sleep(0.05)
        gate.free.set()
        assert first.result(60).n == 100
        assert 0 < late.result(60).n <= 100  # one small batch


@pytest.mark.parametrize("predict", [False, True])
def test_stop_answers_with_the_votes_so_far(predict):
    some = threading.Event()
    with Engine(smoothed(HalfSpace(), batch_size=20)) as engine:
        request = engine.submit(POINTS[0], LONG, progress=lambda votes: some.set(), predict=predict)
        assert some.wait(60)
        assert not request.done()
        request.stop()
        answer = request.result(60)
        assert 0 < answer.n < LONG.n_max
        assert sum(answer.counts) == answer.n
        request.stop()  # too late, and harmless
        assert not request.cancel()
        waiting = engine.submit(POINTS[12], Anytime(0.001, n_max=1_000_000))
        waiting.stop()
        assert waiting.result(60).n > 0


def test_cancel_frees_the_place_at_once():
    with Engine(smoothed(HalfSpace())) as engine:
        requests = [engine.submit(POINTS[0], LONG, predict=i % 2 == 0) for i in range(200)]
        for request in requests[::-1]:
            assert request.cancel()
            assert request.cancel()
        assert wait(requests, 60).not_done == set()
        assert engine.submit(POINTS[12], Cohen(100)).result(60).n == 100
        with pytest.raises(CancelledError):
            requests[0].result()
        numbers = engine.statistics()
        assert (numbers["cancelled"], numbers["answered"], numbers["pending"]) == (200, 1, 0)
        assert numbers["running"] == 0


def test_a_request_may_be_cancelled_in_its_own_progress_and_submitted_in_a_callback():
    with Engine(smoothed(HalfSpace(), batch_size=20)) as engine:
        known, ready, again = {}, threading.Event(), []

        def progress(votes):
            assert ready.wait(60)
            known["request"].cancel()

        known["request"] = engine.submit(POINTS[0], LONG, progress=progress)
        known["request"].add_done_callback(lambda _: again.append(engine.submit(POINTS[9], Cohen(100))))
        ready.set()
        with pytest.raises(CancelledError):
            known["request"].result(60)
        while not again:
            time.sleep(0.01)
        assert again[0].result(60).n == 100


def test_a_higher_priority_is_served_first(gate):
    done = []
    with Engine(smoothed(HalfSpace())) as engine:
        engine.submit(POINTS[9], Cohen(100)).result(60)
        gate.hold()
        requests = [engine.submit(POINTS[9], Cohen(5_000), priority=p) for p in (0, 0, 1, 0, 2)]
        for name, request in zip("abcde", requests, strict=True):
            request.add_done_callback(lambda _, name=name: done.append(name))
        gate.free.set()
        wait(requests, 60)
    assert done.index("c") < min(map(done.index, "bd"))  # "a" may have been in the first batch
    assert done.index("e") < done.index("c")


def test_an_urgent_request_does_not_wait_for_long_ones():
    with Engine(smoothed(HalfSpace())) as engine:
        engine.submit(POINTS[9], Cohen(1_000)).result(60)
        long = [engine.submit(POINTS[9], Cohen(2_000_000)) for _ in range(4)]
        for options in ({"priority": 1, "procedure": Cohen(500)}, {"deadline": 0.5, "procedure": Anytime(0.01)}):
            assert engine.submit(POINTS[9], **options).result(60).n > 0
            assert not any(request.done() for request in long)
        for request in long:
            request.cancel()


@pytest.mark.parametrize("threads", [1, 2])
def test_a_model_that_raises_fails_only_the_requests_of_that_batch(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        classifier = smoothed(Thrower(HalfSpace(), ValueError("bright\nand more")), input_range=None, batch_size=None)
        bad = torch.tensor([0.7, 100.0])
        with Engine(classifier) as engine:
            engine.submit(POINTS[9], Cohen(100)).result(60)
            mixed = [engine.submit(bad if i % 50 == 49 else POINTS[9], Cohen(1_000)) for i in range(400)]
            for place, request in enumerate(mixed):
                if error := request.exception(60):
                    assert isinstance(error, SmoothcertError)
                    assert "bright" in str(error)
                    assert "and more" not in str(error)
                else:
                    assert place % 50 != 49
                    assert request.result().n == 1_000
            failed = sum(request.exception() is not None for request in mixed)
            assert 8 <= failed < 200
            numbers = engine.statistics()
            assert (numbers["failed"], numbers["answered"]) == (failed, 401 - failed)
            errors = [request.exception() for request in mixed if request.exception()]
            assert len({id(error) for error in errors}) == failed
            assert engine.submit(POINTS[9], Cohen(100), seed=1, index=1).result(60) == classifier.certify(
                POINTS[9], Cohen(100), seed=1, index=1
            )
    finally:
        torch.set_num_threads(before)


def test_a_rest_that_raises_fails_only_the_requests_whose_copies_it_decides():
    members = [HalfSpace(), Constant(), Thrower(HalfSpace(), RuntimeError("no rest"))]
    classifier = smoothed(Consensus(members, 2), input_range=None)
    with Engine(classifier) as engine:
        clear = torch.tensor([9.0, 0.0])  # both members agree on every copy
        engine.submit(clear, Cohen(100)).result(60)
        requests = [engine.submit(x, Cohen(400)) for x in (clear, torch.tensor([0.7, 100.0])) * 10]
        errors = [request.exception(60) for request in requests]
    assert errors[::2] == [None] * 10
    assert all("no rest" in str(error) for error in errors[1::2])


def test_later_changes_of_the_module_do_not_matter():
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    classifier = smoothed(model)
    expected = classifier.certify(X[0], Cohen(300), seed=1, index=1)
    with Engine(classifier) as engine:
        with torch.no_grad():
            model[1].weight.neg_()
        classifier.model = HalfSpace()
        for _ in range(3):
            assert engine.submit(X[0], Cohen(300), seed=1, index=1).result(60) == expected


@pytest.mark.parametrize("when", ["between", "during"])
def test_a_model_that_changes_while_it_is_served_answers_no_more(when):
    weights = [1.0]
    gate = threading.Event()

    def model(x):
        score = weights[0] * (x.flatten(1)[:, 0] - 0.5)
        return torch.stack([-score, score], dim=1)

    with Engine(smoothed(model)) as engine:
        assert engine.submit(POINTS[9], Cohen(100)).result(60).label == 1
        if when == "during":
            request = engine.submit(POINTS[9], LONG, progress=lambda votes: gate.set())
            assert gate.wait(60)
            weights[0] = -1.0
            request.stop()
        else:
            weights[0] = -1.0
            request = engine.submit(POINTS[9], Cohen(100))
        with pytest.raises(SmoothcertError, match=r"the model (changed|returned other logits)"):
            request.result(60)
        with pytest.raises(SmoothcertError, match=r"the model (changed|returned other logits)"):
            engine.submit(POINTS[9], Cohen(100)).result(60)


def test_a_changed_model_cannot_pass_by_an_input_of_another_shape():
    """An input of a new shape is checked with the model of now, which must be that of before."""
    weights, some = [1.0], threading.Event()

    def model(x):
        score = weights[0] * (x.flatten(1)[:, 0] - 0.5)
        return torch.stack([-score, score], dim=1)

    with Engine(smoothed(model)) as engine:
        engine.submit(POINTS[9], Cohen(100)).result(60)
        request = engine.submit(POINTS[9], LONG, progress=lambda votes: some.set())
        assert some.wait(60)
        weights[0] = -1.0
        with pytest.raises(SmoothcertError, match="changed"):
            engine.submit(torch.tensor([0.7, 0.5, 0.5]), Cohen(100))
        request.stop()
        with pytest.raises(SmoothcertError, match=r"the model (changed|returned other logits)"):
            request.result(60)


def test_inputs_of_several_shapes_and_types():
    classifier = smoothed(HalfSpace())
    inputs = [torch.full((n,), 0.7, dtype=dtype) for n in range(1, 8) for dtype in (torch.float32, torch.float64)]
    with Engine(classifier) as engine:
        requests = [engine.submit(x, Cohen(200), seed=2, index=i) for i, x in enumerate(inputs)]
        for i, (x, request) in enumerate(zip(inputs, requests, strict=True)):
            assert request.result(60).counts == classifier.certify(x, Cohen(200), seed=2, index=i).counts


def test_prepared_classifiers_and_finished_requests_are_released():
    with Engine(smoothed(HalfSpace())) as engine:
        service: _Service = engine._service
        for n in range(1, 41):
            engine.submit(torch.full((n,), 0.7), Cohen(20)).result(60)
        assert len(service._ready) <= 32
        gc.collect()
        alive = []
        for kind in (Cohen(50), Anytime(0.1, n_max=200), LONG):
            request = engine.submit(POINTS[9], kind)
            alive.append(weakref.ref(request._job))
            request.cancel() if kind is LONG else request.result(60)
        engine.submit(POINTS[9], Cohen(20)).result(60)
        time.sleep(0.05)
        del request
        gc.collect()
        assert [ref() for ref in alive] == [None] * 3
        assert not service._requests
        assert len(service.queue) == 0
        assert len(service.queue._heap) == 0


def test_many_cancelled_requests_leave_nothing_in_the_queue(gate):
    with Engine(smoothed(HalfSpace())) as engine:
        engine.submit(POINTS[9], Cohen(100)).result(60)
        gate.hold()
        engine.submit(POINTS[9], Cohen(100), priority=9)
        for _ in range(2_000):
            engine.submit(POINTS[9], Cohen(100)).cancel()
        assert len(engine._service.queue._heap) < 50
        gate.free.set()


def test_progress_tells_growing_votes_of_the_answer():
    seen = []
    with Engine(smoothed(HalfSpace(), batch_size=20)) as engine:
        answer = engine.submit(POINTS[3], LONG, progress=seen.append, deadline=0.3).result(60)
    assert len(seen) > 1
    assert [votes.n for votes in seen] == sorted({votes.n for votes in seen})
    assert all(sum(votes.counts) == votes.n for votes in seen)
    assert (seen[-1].n, seen[-1].counts) == (answer.n, answer.counts)


def test_progress_that_raises_is_logged_once(caplog):
    calls = []

    def progress(votes):
        calls.append(votes)
        raise RuntimeError("the page is gone")

    with Engine(smoothed(HalfSpace(), batch_size=20)) as engine:
        assert engine.submit(POINTS[9], Cohen(1_000), progress=progress).result(60).n == 1_000
    assert len(calls) == 1
    assert "the page is gone" in caplog.text


def test_close_answers_what_is_there_and_accepts_no_more():
    engine = Engine(smoothed(HalfSpace()))
    requests = [engine.submit(POINTS[9], Cohen(2_000)) for _ in range(50)]
    engine.close()
    assert all(request.result(0).n == 2_000 for request in requests)
    with pytest.raises(UsageError, match="the engine is closed"):
        engine.submit(POINTS[9])
    engine.close()
    engine.close(drain=False)
    assert engine.statistics()["answered"] == 50
    assert not engine._thread.is_alive()


def test_close_without_drain_fails_the_rest_in_one_sentence():
    engine = Engine(smoothed(HalfSpace()))
    requests = [engine.submit(POINTS[9], LONG) for _ in range(50)]
    engine.close(drain=False)
    for request in requests:
        with pytest.raises(SmoothcertError, match="the engine was closed before the answer"):
            request.result(0)
    with suppress(ZeroDivisionError), Engine(smoothed(HalfSpace())) as engine:
        request = engine.submit(POINTS[9], LONG)
        raise ZeroDivisionError
    assert isinstance(request.exception(0), SmoothcertError)


def test_close_during_work_from_several_threads_and_from_a_callback():
    engine = Engine(smoothed(HalfSpace()))
    requests = [engine.submit(POINTS[9], LONG) for _ in range(5)]
    slow = threading.Thread(target=engine.close)
    slow.start()
    time.sleep(0.05)
    assert slow.is_alive()
    engine.close(drain=False)
    slow.join(60)
    assert not slow.is_alive()
    assert all(request.done() for request in requests)
    engine = Engine(smoothed(HalfSpace()))
    request = engine.submit(POINTS[9], Cohen(100))
    request.add_done_callback(lambda _: engine.close())
    request.result(60)
    engine._thread.join(60)
    assert not engine._thread.is_alive()


def test_an_engine_that_dies_fails_its_requests_and_says_so(gate, caplog):
    engine = Engine(smoothed(HalfSpace()))
    engine.submit(POINTS[9], Cohen(100)).result(60)
    gate.hold()
    request = engine.submit(POINTS[9], Cohen(100))
    gate.error = SystemExit("stopped")
    gate.free.set()
    with pytest.raises(SmoothcertError, match="closed before the answer"):
        request.result(60)
    engine._thread.join(60)
    with pytest.raises(SmoothcertError, match="the engine has failed"):
        engine.submit(POINTS[9])
    assert "the engine has failed" in caplog.text


def test_an_engine_without_references_ends_after_its_last_request():
    engine = Engine(smoothed(HalfSpace()))
    thread, request = engine._thread, engine.submit(POINTS[9], Cohen(20_000))
    del engine
    gc.collect()
    assert request.result(60).n == 20_000
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_asyncio():
    async def main():
        with Engine(smoothed(HalfSpace())) as engine:
            one, other = await asyncio.gather(
                engine.certify(POINTS[9], Cohen(500), seed=1, index=1),
                engine.certify(POINTS[9], LONG, deadline=0.05),
            )
            assert one == smoothed(HalfSpace()).certify(POINTS[9], Cohen(500), seed=1, index=1)
            assert other.n > 0
            assert isinstance(await engine.certify(POINTS[9], predict=True), Prediction)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(engine.certify(POINTS[9], LONG), 0.05)
            assert engine.statistics()["cancelled"] == 1
            with pytest.raises(UsageError):
                await engine.certify(torch.full((2,), 9.0))

    asyncio.run(main())


def test_as_completed_and_statistics():
    with Engine(smoothed(HalfSpace())) as engine:
        requests = [engine.submit(POINTS[9], Cohen(1_000, n0=100)) for _ in range(20)]
        assert len(list(as_completed(requests, 60))) == 20
        numbers = engine.statistics()
    assert numbers["samples"] == numbers["rows"] == 20 * 1_100
    assert numbers["rows"] <= numbers["capacity"]
    assert numbers["rate"] > 0
    assert numbers["busy"] > 0


SCRIPT = """
import sys, threading, torch
import smoothcert as sc
torch.set_num_threads({threads})
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
engine = sc.Engine(sc.Smoothed(model, sc.Gaussian(0.5)))
print(engine.submit(torch.full((4,), 0.5), sc.Cohen(1_000)).result().n)
requests = [engine.submit(torch.full((4,), 0.5), sc.Cohen(10_000_000)) for _ in range(3)]
{end}
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "end", ["", "sys.exit(0)", "threading.Thread(target=engine.close).start(); engine.close(False)"]
)
def test_python_ends_at_once_and_cleanly(threads, end):
    script = SCRIPT.format(threads=threads, end=end)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "1000\n"), done.stderr
    assert "Fatal" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_is_told_to_make_its_own_engine():
    end = """
import os
child = os.fork()
if child == 0:
    try:
        engine.submit(torch.full((4,), 0.5))
    except sc.UsageError as error:
        print(error, flush=True)
    engine.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    script = SCRIPT.format(threads=1, end=end)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "the engine belongs to another process; make one in this process." in done.stdout
