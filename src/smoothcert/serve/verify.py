"""Check an answer of a service: its radius from its votes, and its votes from its seed, its model and its input."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from smoothcert.certify import PROCEDURES, Aces, Procedure, Smoothed, Task
from smoothcert.certify.answering import Sampled, make_job
from smoothcert.certify.inputs import CheckedInput
from smoothcert.certify.replay import Drawn, replay
from smoothcert.classifiers.identity import identity_digest
from smoothcert.noise import Noise, noise_from_config
from smoothcert.sampling import Draw, Job, Pool, Steps
from smoothcert.sampling.copies import NoisyCopies
from smoothcert.serve.answers import Certified, Json, Predicted, answer_json, stage_of, values_digest
from smoothcert.serve.inputs import Input
from smoothcert.types import Certificate, Norm, Prediction, SmoothcertError, UsageError, Votes

_CLOSE = 1e-9  # of radii and bounds, which versions of SciPy may round differently
_TIE = 1e-3  # of the largest logit: a smaller lead may change between batches
_COMPARED = (
    *("label", "radius", "norm", "guarantee", "arithmetic", "outcome", "decisions", "p_lower", "p_upper", "p_value"),
    *("alpha", "samples", "votes", "selection", "routing", "sentence"),
)


@dataclass
class Report:
    """What was checked about an answer.

    Attributes:
        confirmed: What was found to be true.
        wrong: What was found to be false.
        unchecked: What could not be checked.
    """

    confirmed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def compare(self, what: str, stated: Any, found: Any) -> None:
        """Note whether a statement of the answer is what was found."""
        if stated == found or _close(stated, found):
            self.confirmed.append(what)
        else:
            self.wrong.append(f"{what}: the answer states {_short(stated)}, but it is {_short(found)}")


class Redrawing:
    """The model and the input of an answer, to draw its noise again.

    Args:
        smoothed: The smoothed classifier.
        given: The input, as the server decoded it.
        aces: The procedure with the models of ACES, if the answer is one of it.
    """

    def __init__(self, smoothed: Smoothed, given: Input, aces: Procedure | None = None) -> None:
        self.smoothed, self.given, self.aces = smoothed, given, aces


def verify(answer: Mapping[str, Any], model: Redrawing | None = None) -> Report:
    """Check an answer of ``/v1/certify`` or ``/v1/predict``.

    Args:
        answer: The answer, as JSON values.
        model: The model and the input; without them, votes and input are taken as the answer states them.

    Raises:
        UsageError: If it is not such an answer, or its procedure or noise cannot be made here.
    """
    stated = _checked(answer)
    report = Report()
    if stated["seed_given"]:
        report.unchecked.append("that the caller did not choose the answer by the seed, which it named")
    if model is None:
        _check_alone(stated, report)
        report.unchecked += [
            "that this model drew these votes with this seed (give the model and the input)",
            f"the input and its distance {stated['input']['offset']:g} to the grid",
            "the names of the classes, and the times",
        ]
    else:
        _check_drawn(stated, report, model)
        report.unchecked.append("the names of the classes, and the times")
    return report


def _checked(answer: Mapping[str, Any]) -> Json:
    kind = Certified if "radius" in answer else Predicted
    try:
        kind.model_validate(dict(answer), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise UsageError(f"this is not an answer of smoothcert serve: {where}: {first['msg'].lower()}.") from error
    except RecursionError:
        raise UsageError("this is not an answer of smoothcert serve: it is nested too deeply.") from None
    return dict(answer)


def _check_alone(stated: Json, report: Report) -> None:
    settings = stated["procedure"]
    if stated.get("experts") or settings.get("core") or settings.get("selector"):
        raise UsageError("this answer needs several models, so it can only be checked with them; give the model too.")
    procedure, noise = procedure_of(settings), noise_from_config(stated["noise"])
    shape = stated["input"]["shape"]
    task = _StatedTask(
        noise,
        len(stated["votes"]),
        math.prod(shape),
        _seed(stated),
        stated["index"],
        stated_offset=float(stated["input"]["offset"]),
    )
    found = _replayed(procedure, task, stated, report)
    if isinstance(found, Certificate) and stated.get("guarantee") == "pointwise":
        found = replace(found, guarantee=type(found.guarantee).POINTWISE)  # states less
    if found is not None:
        _compare(stated, found, report, procedure, noise)


def _check_drawn(stated: Json, report: Report, model: Redrawing) -> None:
    smoothed, given = model.smoothed, model.given
    report.compare("the input", stated["input_sha256"], values_digest(given.values))
    report.compare("the changes of the image", stated["input"]["changes"], list(given.changes))
    procedure = smoothed.sealed_procedure(_with_models(procedure_of(stated["procedure"]), model.aces))
    predict = "radius" not in stated
    sealed = smoothed.sealed()
    checked = CheckedInput(smoothed.checked(sealed, torch.from_numpy(given.values)), sealed)
    steps = procedure.predict if predict else procedure.certify
    seed, index, now = _seed(stated), stated["index"], time.monotonic()
    job: Job[Any] = make_job(smoothed, sealed, index, checked, steps, seed, now)
    noise = job.noise or smoothed.noise
    report.compare("the noise", stated["noise"], noise.config())
    asked = smoothed.sampled(procedure)
    bins = []
    for runner, statistics in asked:
        runner.checked(runner.sealed(), job.x)
        bins.append([each.bins(runner.num_classes or 0) for each in statistics])
    drawn = _stages(stated, bins)
    task = smoothed.task(index, checked.tensor, noise, seed, now)
    found = _replayed(procedure, task, stated, report, drawn)  # first: only votes that it requests are drawn again
    if found is None:
        return
    samples = sum(votes[0].n for _, votes in drawn)
    ready = [runner.ready(runner.sealed(), job.x, statistics, samples) for runner, statistics in asked]
    sampled = Sampled(ready, procedure.cores)
    again: list[Drawn] = []
    job.steps, job.sources = _redraw(drawn, again), sampled.sources
    job._first = None
    list(Pool(sampled.workers, sampled.threads).run([job]))
    _compare_votes(drawn, again, job, ready, noise, report)
    if isinstance(found, Certificate):
        found = sampled.stamped(smoothed, job, found)
        report.compare("the model", stated["model"]["identity"], found.model)
    else:
        report.compare("the model", stated["model"]["identity"], identity_digest(sealed.sealed_identity))
    _compare(stated, found, report, procedure, noise)


def _replayed(
    procedure: Procedure, task: Task, stated: Json, report: Report, drawn: Sequence[Drawn] | None = None
) -> Certificate | Prediction | None:
    """Return the answer that the stated votes lead to; None, and a note, if they are not those of the procedure."""
    try:
        bins = [[each.bins(task.num_classes) for each in procedure.statistics]]
        drawn = _stages(stated, bins) if drawn is None else drawn
        steps = procedure.certify(task) if "radius" in stated else procedure.predict(task)
        found: Certificate | Prediction = replay(steps, drawn)  # type: ignore[assignment]
    except (SmoothcertError, ValueError) as error:
        report.wrong.append(f"the votes are not those of the procedure: {str(error).rstrip('.')}")
        return None
    return found


def _compare(stated: Json, found: Certificate | Prediction, report: Report, procedure: Procedure, noise: Noise) -> None:
    names = None
    if stated["class_name"] is not None and stated["label"] >= 0:
        names = ["?"] * stated["label"] + [stated["class_name"]]
    right = answer_json(
        found,
        draws=(),
        values=np.zeros(1, dtype=np.float32),
        changes=stated["input"]["changes"],
        name="",
        identity=None,
        class_names=names,
        noise=noise.config(),
        procedure={"procedure": procedure.config(), "experts": stated.get("experts")},
    )
    for name in _COMPARED:
        if name in stated or name in right:
            report.compare(name.replace("_", " "), stated.get(name), right.get(name))
    if isinstance(found, Certificate):
        report.compare("offset", stated["input"]["offset"], found.offset)


def _compare_votes(
    stated: Sequence[Drawn], found: Sequence[Drawn], job: Job[Any], ready: Sequence[Any], noise: Noise, report: Report
) -> None:
    different = [(old[0], old[1], new[1]) for old, new in zip(stated, found, strict=True) if not _same(old[1], new[1])]
    if not different:
        report.confirmed.append("every vote, drawn again from the seed")
        return
    changed = sum(
        sum(abs(a - b) for a, b in zip(one.counts, two.counts, strict=True))
        for _, old, new in different
        for one, two in zip(old, new, strict=True)
    )
    ties = 0
    for request, _, _ in different:
        own = ready[request.source]
        ties += _ties(job, own.sealed, noise if request.source == 0 else own.source.noise, request)
    if changed <= 2 * ties:  # a copy leaves one class and enters another
        report.confirmed.append(
            f"the votes, drawn again from the seed, except for {-(-changed // 2)} of {ties} copies on which the two "
            "largest logits tie within rounding"
        )
    else:
        report.wrong.append(
            f"the votes: {-(-changed // 2)} copies vote for another class when they are drawn again, but the largest "
            f"logits tie within rounding on {ties} only"
        )


def _ties(job: Job[Any], sealed: Any, noise: Noise, request: Draw) -> int:
    """Count the copies of a request on which the two largest logits tie within rounding."""
    copies, found, step = NoisyCopies(job.x), 0, 200
    for start in range(request.start, request.stop, step):
        rows = torch.empty((min(step, request.stop - start), *job.x.shape), dtype=job.x.dtype, device=job.x.device)
        copies.fill(rows, job.x, noise, seed=job.seed, index=job.index, stage=request.stage, start=start)
        with torch.inference_mode():
            logits = sealed(rows).double()
        top = logits.topk(2, dim=1).values
        found += int((top[:, 0] - top[:, 1] <= _TIE * logits.abs().amax(dim=1)).sum())
    return found


def _redraw(drawn: Sequence[Drawn], again: list[Drawn]) -> Steps[None]:
    for request, votes in drawn:
        if request.n:
            votes = yield Draw(request.stage, request.n, request.start, source=request.source)
        again.append((request, votes))


def _stages(stated: Json, bins: Sequence[Sequence[int]]) -> list[Drawn]:
    found = []
    for entry in stated["stages"]:
        source = entry.get("source", 0)
        if not 0 <= source < len(bins):
            raise UsageError(f"a stage of the answer names the classifier {source}, but there are {len(bins)}.")
        found.append(stage_of(entry, bins[source]))
    return found


def procedure_of(settings: Mapping[str, Any]) -> Procedure:
    """Return the procedure that an answer describes, without models.

    Raises:
        UsageError: If there is no such procedure, or a setting is invalid.
    """
    given = dict(settings)
    name = given.pop("name", None)
    if name not in PROCEDURES:
        raise PROCEDURES.unknown(str(name))
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    if isinstance(values.get("norm"), str):
        values["norm"] = Norm(values["norm"]) if values["norm"] in list(Norm) else values["norm"]
    values.update({key: None for key in ("core", "selector") if isinstance(values.get(key), dict)})
    try:
        return PROCEDURES[name](**values)
    except TypeError as error:
        raise UsageError(f"the answer has settings that {name} does not have ({error}).") from error


def _with_models(procedure: Procedure, aces: Procedure | None) -> Procedure:
    if isinstance(procedure, Aces) and isinstance(aces, Aces):
        return replace(procedure, core=aces.core, selector=aces.selector)
    return procedure


@dataclass(frozen=True)
class _StatedTask(Task):
    """An input that is not here; its distance to the grid is as stated."""

    stated_offset: float = 0.0

    def offset(self, norm: Norm) -> float:
        return self.stated_offset


def _seed(stated: Json) -> int:
    text = stated["seed"]
    if not (text.isascii() and text.isdecimal() and int(text) < 2**63):
        raise UsageError(f"the seed of the answer is not a whole number below 2**63: {text[:40]}.")
    return int(text)


def _same(old: Sequence[Votes], new: Sequence[Votes]) -> bool:
    return [(each.n, each.counts) for each in old] == [(each.n, each.counts) for each in new]


def _close(stated: Any, found: Any) -> bool:
    """Whether two numbers, or two lists or mappings of them, are equal up to rounding of the last digits."""
    if isinstance(stated, (bool, str)) or isinstance(found, (bool, str)):
        return bool(stated == found and type(stated) is type(found))
    if isinstance(stated, (int, float)) and isinstance(found, (int, float)):
        return math.isclose(stated, found, rel_tol=_CLOSE)
    if isinstance(stated, Mapping) and isinstance(found, Mapping):
        return stated.keys() == found.keys() and all(_close(stated[key], found[key]) for key in stated)
    if isinstance(stated, list) and isinstance(found, list):
        return len(stated) == len(found) and all(map(_close, stated, found))
    return bool(stated == found)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
