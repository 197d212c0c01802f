"""What became of a hostile classifier: refused in one sentence, certified rightly, or wrong."""

from __future__ import annotations

import functools
import math
import re
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hostile.entry import EDGE, Classifier, Entry, Expect
from hostile.kinds import KINDS, PROCEDURES, Kind
from smoothcert import ABSTAIN, Certificate, Prediction, SmoothcertError, Smoothed
from smoothcert.sampling import Job

SEED, INDEX = 11, 5

Answer = Certificate | Prediction | SmoothcertError
"""What a user gets: an answer, or a refusal."""


@dataclass(frozen=True)
class Verdict:
    """What a kind of classifier did with an entry: the problems found, and whether anything was refused."""

    problems: tuple[str, ...]
    refused: bool


def attempt(ask: Callable[[], Certificate | Prediction]) -> Answer:
    """The answer or the refusal; any other exception is a crash and stays one."""
    try:
        return ask()
    except SmoothcertError as error:
        return error


def gathered(run: Iterable[tuple[Job[Any], Any]]) -> tuple[dict[int, Any], SmoothcertError | None]:
    """The answers of a run by index, and what it was refused with, if it was."""
    answers: dict[int, Any] = {}
    try:
        for job, answer in run:
            answers[job.index] = answer
    except SmoothcertError as error:
        return answers, error
    return answers, None


def facts(answer: Certificate | Prediction) -> dict[str, Any]:
    """What must be the same for a hostile classifier and its well-behaved twin."""
    known = {name: getattr(answer, name) for name in ("label", "n", "counts", "alpha", "noise", "seed", "index")}
    if isinstance(answer, Certificate):
        names = ("radius", "n0", "selection", "p_lower", "p_upper", "norm", "guarantee", "outcome", "decisions")
        known.update({name: getattr(answer, name) for name in names})
        if answer.routing is not None:
            routing = ("choice", "n", "core", "p_lower", "radius")
            known.update({f"routing.{name}": getattr(answer.routing, name) for name in routing})
    return known


def differences(given: Certificate | Prediction, right: Certificate | Prediction) -> str:
    """In which facts two answers differ, for a message; empty if in none."""
    ours, theirs = facts(given), facts(right)
    named = [f"{name} {ours[name]} instead of {theirs[name]}" for name in ours if ours[name] != theirs[name]]
    return "; ".join(named)


def overstates(answer: Certificate | Prediction, x: Tensor) -> str:
    """What an answer claims beyond the closed form, for a message; empty if nothing."""
    side = float(x.double()[0, 0, 0]) - EDGE
    if answer.label not in (ABSTAIN, int(side > 0)):
        return f"class {answer.label}, but the smoothed classifier's is {int(side > 0)}"
    if isinstance(answer, Certificate) and answer.radius > abs(side):
        return f"{answer.norm.value} radius {answer.radius}, but the true one is {abs(side)}"
    return ""


def not_one_sentence(error: SmoothcertError) -> str:
    """What is wrong with the text of a refusal, for a message; empty if nothing."""
    text = str(error)
    quoted = re.sub(r"\([^()]*\)|'[^']*'", "", text)
    if "\n" in text or not text.endswith(".") or re.search(r"[.!?]\s+[A-Z]", quoted) or not 20 < len(quoted) < 500:
        return f"a refusal must be one sentence on one line: {text!r}"
    if not re.search(r";|\bmust\b", text):
        return f"a refusal must say what to do: {text!r}"
    return ""


def judged(given: Answer, right: Answer | None, x: Tensor, expect: Expect) -> str:
    """What is wrong with an answer, given that of the well-behaved twin; empty if nothing."""
    if isinstance(given, SmoothcertError):
        needless = expect is Expect.RIGHT and not isinstance(right, SmoothcertError)
        return f"refused without need: {given}" if needless else not_one_sentence(given)
    if expect is Expect.REFUSE:
        return f"answered (class {given.label}, {given.counts}), but it is not a function of one row"
    twin = isinstance(right, (Certificate, Prediction))
    return overstates(given, x) or (differences(given, right) if twin else "")


@dataclass(frozen=True)
class Question:
    """One thing to ask a classifier: a procedure at an input, for a certificate or a prediction."""

    procedure: str
    x: Tensor
    predict: bool = False

    def __str__(self) -> str:
        return f"{self.procedure} {'predicts' if self.predict else 'certifies'} at {float(self.x[0, 0, 0]):.2f}"

    def ask(self, kind: Kind, smoothed: Smoothed, given: Classifier) -> Answer:
        """The answer of a classifier of a kind, built around the one given."""
        procedure = kind.adapt(PROCEDURES[self.procedure], given)
        method = smoothed.predict if self.predict else smoothed.certify
        return attempt(functools.partial(method, self.x, procedure, seed=SEED, index=INDEX))


def questions(kind: str, rotate: int | None = None) -> list[Question]:
    """What to ask a kind: its first procedure at every input, a prediction, and the other procedures at one input.

    Args:
        kind: The kind.
        rotate: Leaves only one besides the first, this one modulo their number.
    """
    made = KINDS[kind]
    main, *others = made.procedures
    inputs = [(main, x) for x in made.inputs] + [(name, made.inputs[0]) for name in others]
    first, *rest = [*(Question(*pair) for pair in inputs), Question(main, made.inputs[0], predict=True)]
    return [first, *(rest if rotate is None else [rest[rotate % len(rest)]])]


@functools.cache
def right_answer(kind: str, reference: Callable[[], Classifier], question: Question) -> Answer:
    """What the well-behaved twin answers."""
    given = reference()
    return question.ask(KINDS[kind], KINDS[kind].build(given), given)


def built(kind: str, given: Classifier) -> Smoothed:
    """A classifier of a kind around the one given, which stays in its mode: a denoised one is frozen when built."""
    modes = {module: module.training for module in modules_in(given)}
    smoothed = KINDS[kind].build(given)
    for module, training in modes.items():
        module.training = training
    return smoothed


def verdict(entry: Entry, kind: str, asked: list[Question]) -> Verdict:
    """What a kind of classifier does with an entry."""
    given = entry.make()
    smoothed = built(kind, given)
    before, inputs = Snapshot(given, entry.copyable), [question.x.clone() for question in asked]
    problems, refused = [], False
    for question, kept in zip(asked, inputs, strict=True):
        answer = question.ask(KINDS[kind], smoothed, given)
        refused |= isinstance(answer, SmoothcertError)
        if problem := judged(answer, right_answer(kind, entry.reference, question), question.x, entry.expect):
            problems.append(f"{question}: {problem}")
        if not torch.equal(kept, question.x):
            question.x.copy_(kept)
            problems.append(f"{question}: the user's input was changed")
    return Verdict((*problems, *before.changes()), refused)


class Snapshot:
    """The user's classifier and PyTorch's global state, to be compared later.

    Args:
        given: The classifier.
        copyable: Whether not even its plain attributes may change.
    """

    def __init__(self, given: Classifier, copyable: bool = True) -> None:
        self._given, self._copyable = given, copyable
        self._before = self._state()

    def changes(self) -> list[str]:
        """What changed since, for messages."""
        after = self._state()
        changed = [name for name in self._before if not _same(self._before[name], after.get(name))]
        return [f"{name} was changed" for name in [*changed, *(after.keys() - self._before.keys())]]

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "the global random state": torch.random.get_rng_state(),
            "the number of threads": torch.get_num_threads(),
            "the gradient mode": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        }
        for number, module in enumerate(modules_in(self._given)):
            own = f"{type(module).__name__} {number}"
            state[f"training of {own}"] = module.training
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                state[f"{name} of {own}"] = type(tensor) if nn.parameter.is_lazy(tensor) else _bits(tensor)
            if self._copyable:
                plain = {name: value for name, value in vars(module).items() if isinstance(value, (int, float, Tensor))}
                state.update({f"{name} of {own}": _bits(value) for name, value in plain.items()})
        return state


def _bits(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty(value.numel(), dtype=value.dtype).copy_(value.detach().reshape(-1)).view(torch.uint8)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    return type(a) is type(b) and bool(a == b)


def modules_in(given: Any, depth: int = 4) -> list[nn.Module]:
    """The modules that a classifier uses: itself, or those in closures, attributes, lists and dictionaries."""
    found: dict[nn.Module, None] = {}
    _search(given, depth, found)
    return list(found)


def _search(given: Any, depth: int, found: dict[nn.Module, None]) -> None:
    if depth < 0 or given is None:
        return
    inside: list[Any] = []
    if isinstance(given, nn.Module):
        for module in given.modules():
            found[module] = None
            inside += [value for value in vars(module).values() if isinstance(value, (list, dict))]
    elif isinstance(given, types.FunctionType):
        inside += [cell.cell_contents for cell in given.__closure__ or ()]
        inside += [*(given.__defaults__ or ()), *vars(given).values()]
        inside += [given.__globals__[name] for name in given.__code__.co_names if name in given.__globals__]
        inside = [value for value in inside if not isinstance(value, (type, types.ModuleType))]
    elif isinstance(given, types.MethodType):
        inside.append(given.__self__)
    elif isinstance(given, functools.partial):
        inside += [given.func, *given.args, *given.keywords.values()]
    elif isinstance(given, (list, tuple)):
        inside += given
    elif isinstance(given, dict):
        inside += given.values()
    elif not isinstance(given, (str, int, float, Tensor)):
        inside += vars(given).values() if hasattr(given, "__dict__") else ()
        inside += [getattr(given, name) for name in getattr(type(given), "__slots__", ()) if hasattr(given, name)]
    for value in inside:
        _search(value, depth - 1, found)
