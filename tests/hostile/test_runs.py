"""Runs and memories continued by another classifier: refused, however small the difference."""

from __future__ import annotations

import functools
import os
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from hostile.changes import CHANGES
from hostile.entries.modes import Normed
from hostile.entry import EDGE, FAR, SIGMA, Classifier, Expect, HalfSpace, first, point, scores
from hostile.gallery import GALLERY
from hostile.judge import Snapshot, not_one_sentence
from hostile.kinds import ALPHA, KINDS, PROCEDURES, with_kinds
from smoothcert import Cohen, Gaussian, Memory, SmoothcertError, Smoothed, certify_dataset
from smoothcert.sampling.sigma import GridSigma

QUICK = Cohen(n0=20, n=201, alpha=ALPHA)
PAIRS = [(point(value), int(value > EDGE)) for value in (0.1, 0.9, 0.3, 0.7)]
RIGHT = [entry for entry in GALLERY if entry.expect is Expect.RIGHT]


def _certify(smoothed: Smoothed, folder: Path, stop: int | None = None, procedure: Any = QUICK) -> list[dict]:
    run = certify_dataset(smoothed, PAIRS, procedure, run=folder, seed=1, stop=stop, progress=False)
    return [{name: row[name] for name in ("index", "predict", "radius", "counts")} for row in run.rows()]


def _plain(given: Classifier) -> Smoothed:
    return Smoothed(given, Gaussian(SIGMA), input_range=None)


def _refused(ask: Callable[[], Any]) -> str:
    """The text of a refusal."""
    with pytest.raises(SmoothcertError) as refusal:
        ask()
    assert not_one_sentence(refusal.value) == ""
    return str(refusal.value)


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_is_not_continued_by_a_changed_classifier(change, tmp_path):
    given, move = CHANGES[change]()
    _certify(_plain(given), tmp_path / "run")
    move()
    _refused(lambda: _certify(_plain(given), tmp_path / "run"))


@pytest.mark.parametrize("change", CHANGES)
def test_a_memory_is_not_continued_by_a_changed_classifier(change, tmp_path):
    given, move = CHANGES[change]()
    _remember(given, tmp_path / "memory")
    move()
    _refused(lambda: _remember(given, tmp_path / "memory"))


def _remember(given: Classifier, path: Path) -> Any:
    memory = Memory(path)
    try:
        smoothed = Smoothed(given, Gaussian(SIGMA), sigma=GridSigma(grid=(0.5,), n=4), memory=memory, input_range=None)
        return smoothed.certify(FAR, QUICK, seed=1, index=0)
    finally:
        memory.close()


def test_a_memory_in_use_is_not_continued_by_a_changed_classifier():
    """Also without closing it, as a service would do after loading other weights."""
    for make in CHANGES.values():
        given, move = make()
        smoothed = Smoothed(
            given, Gaussian(SIGMA), sigma=GridSigma(grid=(0.5,), n=4), memory=Memory(), input_range=None
        )
        smoothed.certify(FAR, QUICK, seed=1, index=0)
        move()
        _refused(lambda smoothed=smoothed: smoothed.certify(FAR, QUICK, seed=1, index=1))


@pytest.mark.parametrize(
    ("change", "kind"), with_kinds(CHANGES, lambda change, kind: change in ("plain number", "closure variable"))
)
def test_a_run_of_any_kind_is_not_continued_with_a_changed_part(change, kind, tmp_path):
    made = KINDS[kind]
    given, move = CHANGES[change]()

    def certify() -> None:
        _certify(made.build(given), tmp_path / "run", procedure=made.adapt(PROCEDURES[made.procedures[0]], given))

    certify()
    certify()  # nothing has changed yet
    move()
    _refused(certify)


@pytest.mark.parametrize("number", range(len(RIGHT)), ids=lambda number: RIGHT[number].name)
def test_a_run_is_not_continued_by_the_next_entry_of_the_gallery(number, tmp_path):
    """And it is continued by a fresh one of the same entry: an identity does not depend on where objects lie."""
    entry, other = RIGHT[number], RIGHT[(number + 1) % len(RIGHT)]
    given = entry.make()
    before = Snapshot(given, entry.copyable)
    rows = _certify(_plain(given), tmp_path / "run")
    assert before.changes() == []
    assert _certify(_plain(entry.make()), tmp_path / "run") == rows
    _refused(lambda: _certify(_plain(other.make()), tmp_path / "run"))


def _scaled(x: Tensor, edge: float) -> Tensor:
    return scores(first(x) - edge)


class _Method:
    def low(self, x: Tensor) -> Tensor:
        return scores(first(x) - 0.2)

    def middle(self, x: Tensor) -> Tensor:
        return scores(first(x) - 0.5)


def _lambda(edge: float) -> Classifier:
    return lambda x: scores(first(x) - edge)


def _module(edge: float, kind: type[nn.Module] = HalfSpace) -> nn.Module:
    class Local(kind):  # type: ignore[misc, valid-type]
        pass

    model = Local()
    model.edge = edge
    return model


def _forward(code: Callable[[Any, Tensor], Tensor]) -> nn.Module:
    return type("Model", (nn.Module,), {"forward": code})()


PAIRS_OF_CLASSIFIERS: dict[str, tuple[Classifier, Classifier]] = {
    "lambdas with other numbers": (lambda x: scores(first(x) - 0.5), lambda x: scores(first(x) - 0.2)),
    "lambdas with other names": (lambda x: scores(first(x) - 0.5), lambda x: scores(-first(x) + 0.5)),
    "lambdas that call other functions": (lambda x: scores(x.amax((1, 2, 3))), lambda x: scores(x.amin((1, 2, 3)))),
    "closures": (_lambda(0.5), _lambda(0.2)),
    "partials": (functools.partial(_scaled, edge=0.5), functools.partial(_scaled, edge=0.2)),
    "methods": (_Method().middle, _Method().low),
    "attributes of a local class": (_module(0.5), _module(0.2)),
    "code of forward": (
        _forward(lambda self, x: scores(first(x) - 0.5)),
        _forward(lambda self, x: scores(first(x) - 0.2)),
    ),
    "functions in functions": (
        lambda x: (lambda z: scores(z - 0.5))(first(x)),
        lambda x: (lambda z: scores(z - 0.2))(first(x)),
    ),
    "closed modules": (
        (lambda net: lambda x: net(x))(HalfSpace(0.5)),
        (lambda net: lambda x: net(x))(HalfSpace(0.2)),
    ),
}


@pytest.mark.parametrize("pair", PAIRS_OF_CLASSIFIERS)
def test_a_run_is_not_continued_by_a_classifier_that_differs_in_little(pair, tmp_path):
    one, other = PAIRS_OF_CLASSIFIERS[pair]
    rows = _certify(_plain(one), tmp_path / "run")
    assert _certify(_plain(one), tmp_path / "run") == rows
    _refused(lambda: _certify(_plain(other), tmp_path / "run"))


def test_the_mode_of_a_model_does_not_belong_to_its_identity(tmp_path):
    """A run that was begun in training mode goes on in evaluation mode: both are sealed in the same way."""
    rows = _certify(_plain(Normed().train()), tmp_path / "run")
    assert _certify(_plain(Normed().eval()), tmp_path / "run") == rows


PROGRAM = """
    import sys
    import torch
    from smoothcert import Cohen, Gaussian, Smoothed, certify_dataset

    torch.set_num_threads(1)
    edges = {"a": 0.5, "b": 0.25, "c": 0.125}
    names = {"x", "y", "z"}

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.names, self.edges = {"one", "two", "three"}, dict(edges)
            self.linear = torch.nn.Linear(2, 2)
            torch.nn.init.constant_(self.linear.weight, 0.25)
            torch.nn.init.zeros_(self.linear.bias)

        def forward(self, x):
            side = x[:, 0] - self.edges["a"] if "one" in self.names else x[:, 1]
            return torch.stack([-side, side], 1) + 0 * self.linear(x)

    net = Model()
    inputs = [(torch.tensor([0.9, 0.1]), 1), (torch.tensor([0.1, 0.1]), 0)]
    for form, model in {"module": net, "lambda": lambda x: net(x) * len(names) * edges["c"]}.items():
        folder = sys.argv[1] + form
        certify_dataset(Smoothed(model, Gaussian(0.5)), inputs, Cohen(n=99), run=folder, seed=1, progress=False)
"""


def test_another_process_continues_a_run(tmp_path, monkeypatch):
    """The identity depends on neither addresses nor the seed of Python's hashes."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    command, run = [str(program), str(tmp_path / "run")], {"capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *command], env={**os.environ, "PYTHONHASHSEED": "1"}, **run)
    assert done.returncode == 0, done.stderr[-500:]
    monkeypatch.setattr(sys, "argv", command)
    runpy.run_path(command[0], run_name="__main__")
