"""The contract: whatever ordinary user code is certified, it is refused in one sentence or certified rightly."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import nn

import smoothcert
from hostile.entry import EDGE, FAR, LOW, NEAR, SIGMA, Classifier, Entry, Expect, HalfSpace, point
from hostile.gallery import ENTRIES, GALLERY, PARTS
from hostile.judge import (
    SEED,
    Snapshot,
    attempt,
    built,
    gathered,
    judged,
    overstates,
    questions,
    right_answer,
    verdict,
)
from hostile.kinds import ALPHA, KINDS, PROCEDURES
from smoothcert import ABSTAIN, Certificate, Cohen, Gaussian, Procedure, SmoothcertError, Smoothed, classifiers
from smoothcert.certify import PROCEDURES as REGISTERED
from smoothcert.types import UsageError

NUMBERS = {entry.name: number for number, entry in enumerate(GALLERY)}
QUICK = Cohen(n0=20, n=201, alpha=ALPHA)
LONG = Cohen(n0=100, n=20_001, alpha=ALPHA)

PREPARED = (
    "batch_norm_left_in_training",
    "batch_mean_vote",
    "large_batches_differ",
    "running_mean_attribute",
    "changes_after_fifty_calls",
    "caches_by_address",
    "features_through_a_global",
    "normalises_in_place",
    "returns_the_same_memory",
    "half_precision",
    "contiguous_only",
    "channels_last_only",
    "reads_memory_in_order",
    "depends_on_strides",
    "lambda_around_batch_norm",
    "network_in_a_list",
    "holds_a_lock_in_training",
)
"""Entries of which enough samples are taken by default for the library to prepare a runtime."""

every_entry = pytest.mark.parametrize("entry", GALLERY, ids=lambda entry: entry.name)
every_kind = pytest.mark.parametrize("kind", KINDS)
every_pair = pytest.mark.parametrize(
    ("entry", "kind"),
    [
        pytest.param(
            entry,
            kind,
            id=f"{entry.name}-{kind}",
            marks=() if kind == "plain" or (number + place) % 3 == 0 else pytest.mark.soundness,
        )
        for number, entry in enumerate(GALLERY)
        for place, kind in enumerate(KINDS)
    ],
)
"""All pairs; by default every entry meets a third of the kinds, and every kind a third of the entries."""
mostly_plain = pytest.mark.parametrize(
    "kind", [kind if kind == "plain" else pytest.param(kind, marks=pytest.mark.soundness) for kind in KINDS]
)


@every_pair
def test_is_refused_or_certified_rightly(entry: Entry, kind: str):
    """Twice: by the kind's first procedure, and with another procedure, input or prediction in turn."""
    rotate = None if kind == "plain" else NUMBERS[entry.name]
    assert verdict(entry, kind, questions(kind, rotate)).problems == ()


@pytest.mark.soundness
@every_kind
@every_entry
def test_is_refused_or_certified_rightly_by_every_procedure(entry: Entry, kind: str):
    assert verdict(entry, kind, questions(kind)).problems == ()


@mostly_plain
@every_entry
def test_inputs_that_share_batches(entry: Entry, kind: str):
    """A row that is answered for its neighbour is noticed only where the neighbour is another input."""
    made, given, twin = KINDS[kind], entry.make(), entry.reference()
    procedure, right = (made.adapt(_small(made.procedures[0]), classifier) for classifier in (given, twin))
    inputs = dict(enumerate([FAR, LOW, NEAR, point(0.7), LOW, point(0.3)]))
    smoothed = built(kind, given)
    before = Snapshot(given, entry.copyable)
    run = smoothed.run(inputs.items(), procedure, procedure.certify, seed=SEED)
    answers, refusal = gathered(run)
    if refusal is not None:
        assert judged(refusal, None, FAR, entry.expect) == ""
    for index, answer in answers.items():
        alone = made.build(twin).certify(inputs[index], right, seed=SEED, index=index)
        assert judged(answer, alone, inputs[index], entry.expect) == ""
    assert before.changes() == []


def _small(name: str):
    return QUICK if name == "cohen" else replace(PROCEDURES[name], n0=20, n=201)


LONG_ENTRIES = [
    pytest.param(entry, id=entry.name, marks=() if entry.name in PREPARED else pytest.mark.soundness)
    for entry in GALLERY
]


@mostly_plain
@pytest.mark.parametrize("entry", LONG_ENTRIES)
def test_long_runs_for_which_a_runtime_is_prepared(entry: Entry, kind: str):
    made, given = KINDS[kind], entry.make()
    smoothed = built(kind, given)
    before = Snapshot(given, entry.copyable)
    answer = attempt(lambda: smoothed.certify(made.inputs[0], _long(kind, given), seed=SEED, index=3))
    assert judged(answer, _right_and_long(kind, entry.reference), made.inputs[0], entry.expect) == ""
    assert before.changes() == []


def _long(kind: str, given: Classifier) -> Procedure:
    made = KINDS[kind]
    return made.adapt(LONG if made.procedures[0] == "cohen" else replace(PROCEDURES["aces"], n=LONG.n), given)


@functools.cache
def _right_and_long(kind: str, reference) -> Certificate:
    twin = reference()
    return KINDS[kind].build(twin).certify(KINDS[kind].inputs[0], _long(kind, twin), seed=SEED, index=3)


@every_kind
@pytest.mark.parametrize("reference", sorted({entry.reference for entry in GALLERY}, key=lambda twin: twin.__name__))
def test_well_behaved_twins_are_certified(reference, kind):
    """Otherwise a comparison with them could not fail."""
    for question in questions(kind):
        answer = right_answer(kind, reference, question)
        if kind.startswith("router") and question.procedure == "aces":
            assert isinstance(answer, UsageError)
            continue
        assert not isinstance(answer, SmoothcertError)
        assert overstates(answer, question.x) == ""
        clear = question.x is not NEAR
        assert (answer.label != ABSTAIN) == clear
        if isinstance(answer, Certificate) and clear and not kind.endswith("core"):
            assert answer.radius > (0.08 if question.procedure == "anytime" else 0.09)  # it stops at its target


def test_the_half_space_has_the_probability_of_the_closed_form():
    certificate = Smoothed(HalfSpace(), Gaussian(SIGMA), input_range=None).certify(FAR, LONG, seed=SEED, index=0)
    p = float(stats.norm.cdf((FAR[0, 0, 0].item() - EDGE) / SIGMA))
    assert stats.binomtest(certificate.counts[1], LONG.n, p).pvalue > 1e-9


def test_the_judge_notices_false_and_different_answers():
    right = Smoothed(HalfSpace(), Gaussian(SIGMA), input_range=None).certify(FAR, QUICK, seed=SEED, index=0)
    assert judged(right, right, FAR, Expect.EITHER) == ""
    assert judged(right, right, FAR, Expect.REFUSE) != ""
    for false in (replace(right, radius=0.4021), replace(right, label=0), replace(right, counts=(0, 201))):
        assert judged(false, right, FAR, Expect.EITHER) != ""
    assert judged(UsageError("the model is random; make it deterministic."), right, FAR, Expect.EITHER) == ""
    for text in ("bad.", "the model is random.", "this is bad; do that. And that.", "this is bad; do that\nnow."):
        assert judged(UsageError(text), right, FAR, Expect.EITHER) != ""


def test_the_snapshot_notices_changes():
    model = nn.Sequential(nn.BatchNorm2d(2), HalfSpace())

    def move() -> None:
        model[0].running_mean += 1

    changes = [
        model.eval,
        model[1].train,
        move,
        lambda: setattr(model[1], "edge", 0.1),
        lambda: torch.rand(1),
        lambda: model[0].weight.data.mul_(2),
    ]
    for change in changes:
        before = Snapshot(lambda x: model(x))
        change()
        assert len(before.changes()) >= 1


def test_the_gallery_is_complete():
    """Every entry is a story, every part is used, and every kind and procedure that the library has is exercised."""
    assert len(GALLERY) == len(ENTRIES) >= 100
    assert {entry.expect for entry in GALLERY} == set(Expect)
    for entry in GALLERY:
        assert entry.story.startswith("Somebody "), entry.name
    for part in PARTS:
        assert any(entry.make is not None and part.__name__ == _home(entry) for entry in GALLERY)
    assert set(PREPARED) <= set(NUMBERS)
    assert set(PROCEDURES) == set(REGISTERED)
    source = inspect.getsource(inspect.getmodule(KINDS["plain"].build))
    kinds = {name for name, kind in vars(smoothcert).items() if inspect.isclass(kind) and issubclass(kind, Smoothed)}
    parts = {name for name, part in vars(classifiers).items() if inspect.isclass(part) and issubclass(part, nn.Module)}
    for name in (kinds | parts) - {"Composite"}:
        assert f"{name}(" in source, f"no kind of the gallery uses {name}"


def _home(entry: Entry) -> str:
    maker = inspect.getclosurevars(entry.make).nonlocals["maker"]
    return maker.__module__


def test_every_kind_meets_every_procedure():
    """Also in the quick tests, where the procedures take turns."""
    met = Counter(
        (kind, question.procedure)
        for place, kind in enumerate(KINDS)
        for number in range(len(GALLERY))
        if kind == "plain" or (number + place) % 3 == 0
        for question in questions(kind, number)
    )
    for kind, made in KINDS.items():
        for name in made.procedures:
            assert met[kind, name] >= 5
    assert {name for made in KINDS.values() for name in made.procedures} == set(REGISTERED)
    marks = test_is_refused_or_certified_rightly_by_every_procedure.pytestmark
    given = {mark.args[0]: list(mark.args[1]) for mark in marks if mark.name == "parametrize"}
    assert given == {"entry": list(GALLERY), "kind": list(KINDS)}
