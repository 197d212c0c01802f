"""A classifier that changes between two questions: the second answer is about the new one, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import Tensor

from hostile.changes import CHANGES, MOVED, Everything, Moved
from hostile.entries.modes import Normed
from hostile.entries.tensors import Wide
from hostile.entry import EDGE, FAR, LOW, SIGMA, Classifier, HalfSpace, first, scores
from hostile.judge import SEED, Question, attempt, differences, gathered, not_one_sentence, right_answer
from hostile.kinds import ALPHA, KINDS, with_kinds
from smoothcert import Cohen, Gaussian, SmoothcertError, Smoothed


def _about(answer: Any, kind: str, reference: Callable[[], Classifier], question: Question) -> str:
    """What is wrong with an answer that must be that of a reference, or a refusal."""
    if isinstance(answer, SmoothcertError):
        return not_one_sentence(answer)
    return differences(answer, right_answer(kind, reference, question))


QUICK_CHANGES = ("weight through data", "plain number", "another forward", "global variable")


@pytest.mark.parametrize(
    ("change", "kind"), with_kinds(CHANGES, lambda change, kind: kind == "plain" or change in QUICK_CHANGES)
)
def test_the_next_answer_is_about_the_changed_classifier(change, kind):
    given, move = CHANGES[change]()
    made, question = KINDS[kind], Question(KINDS[kind].procedures[0], KINDS[kind].inputs[0])
    smoothed = made.build(given)
    for _ in range(2):
        assert differences(question.ask(made, smoothed, given), right_answer(kind, HalfSpace, question)) == ""
    move()
    assert _about(question.ask(made, smoothed, given), kind, Moved, question) == ""


LONG = Cohen(n0=100, n=20_001, alpha=ALPHA)


@pytest.mark.parametrize(
    "change", [c if c in QUICK_CHANGES else pytest.param(c, marks=pytest.mark.soundness) for c in CHANGES]
)
def test_a_prepared_runtime_does_not_outlive_the_classifier(change):
    given, move = CHANGES[change]()
    smoothed = Smoothed(given, Gaussian(SIGMA), input_range=None)
    answers = []
    for _ in range(2):
        answers.append(attempt(lambda: smoothed.certify(FAR, LONG, seed=SEED, index=0)))
        move()
    for answer, reference in zip(answers, (HalfSpace, Moved), strict=True):
        right = Smoothed(reference(), Gaussian(SIGMA), input_range=None).certify(FAR, LONG, seed=SEED, index=0)
        if isinstance(answer, SmoothcertError):
            assert reference is Moved
            assert not_one_sentence(answer) == ""
        else:
            assert differences(answer, right) == ""


def test_a_class_with_another_forward_is_another_classifier(monkeypatch):
    class Patched(HalfSpace):
        pass

    smoothed, question = Smoothed(Patched(), Gaussian(SIGMA), input_range=None), Question("cohen", FAR)
    assert differences(question.ask(KINDS["plain"], smoothed, None), right_answer("plain", HalfSpace, question)) == ""
    monkeypatch.setattr(Patched, "forward", lambda self, x: scores(first(x) - MOVED))
    assert _about(question.ask(KINDS["plain"], smoothed, None), "plain", Moved, question) == ""


@pytest.mark.parametrize("kind", KINDS)
def test_the_mode_may_change_between_questions(kind):
    """Training goes on between two evaluations: the mode does not matter, the weights do."""
    net, question = Normed().eval(), Question(KINDS[kind].procedures[0], KINDS[kind].inputs[0])
    smoothed = KINDS[kind].build(net)
    for mode in (False, True, False):
        net.train(mode)
        assert differences(question.ask(KINDS[kind], smoothed, net), right_answer(kind, HalfSpace, question)) == ""
        assert net.training is mode
        assert net.norm.training is mode


@pytest.mark.parametrize("kind", ["plain", "ensemble-first", "denoised", "router-experts", "aces-selector"])
def test_the_precision_may_change_between_questions(kind):
    model, question = Everything(), Question(KINDS[kind].procedures[0], KINDS[kind].inputs[0])
    smoothed = KINDS[kind].build(model)
    assert differences(question.ask(KINDS[kind], smoothed, model), right_answer(kind, HalfSpace, question)) == ""
    model.double()
    assert _about(question.ask(KINDS[kind], smoothed, model), kind, Wide, question) == ""


INPUTS = {0: FAR, 1: LOW, 2: FAR, 3: LOW}
SHORT = Cohen(n0=20, n=401, alpha=ALPHA)


def _alone(reference: Callable[[], Classifier], index: int) -> Any:
    smoothed = Smoothed(reference(), Gaussian(SIGMA), input_range=None)
    return smoothed.certify(INPUTS[index], SHORT, seed=SEED, index=index)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_during_a_run_is_never_half_in_an_answer(change):
    """Each answer is about the classifier before or after the change, or the run is refused."""
    given, move = CHANGES[change]()
    smoothed = Smoothed(given, Gaussian(SIGMA), input_range=None, batch_size=300)

    def inputs() -> Iterator[tuple[int, Tensor]]:
        for index, x in INPUTS.items():
            if index == 2:
                move()
            yield index, x

    answers, refusal = gathered(smoothed.run(inputs(), SHORT, SHORT.certify, seed=SEED))
    assert (refusal is None) == (answers.keys() == INPUTS.keys())
    assert refusal is None or not_one_sentence(refusal) == ""
    for index, answer in answers.items():
        assert "" in [differences(answer, _alone(reference, index)) for reference in (HalfSpace, Moved)]


def test_a_function_that_another_thread_changes_while_it_is_asked():
    """The change comes at a fixed call, so that the test cannot pass by luck."""
    calls, edge = 0, EDGE

    def classify(x: Tensor) -> Tensor:
        nonlocal calls, edge
        calls += 1
        if calls == 60:  # what another thread does, at a time that does not vary
            edge = MOVED
        return scores(first(x) - edge)

    smoothed = Smoothed(classify, Gaussian(SIGMA), input_range=None, batch_size=20)
    question = Question("cohen", FAR)
    for _ in range(2):
        answer = question.ask(KINDS["small-batches"], smoothed, classify)
        if isinstance(answer, SmoothcertError):
            assert not_one_sentence(answer) == ""
        else:
            right = [right_answer("small-batches", reference, question) for reference in (HalfSpace, Moved)]
            assert "" in [differences(answer, one) for one in right]
            assert calls >= 60
