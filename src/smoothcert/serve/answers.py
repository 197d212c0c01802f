"""The answers of a service as JSON: what was proved, the evidence for it, and one sentence."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from smoothcert.certify.replay import Drawn
from smoothcert.sampling import Draw
from smoothcert.types import ABSTAIN, Certificate, Prediction, UsageError, Votes

Json: TypeAlias = dict[str, Any]


class Model(BaseModel):
    """The model that answered."""

    name: str
    identity: str | None = Field(description="SHA-256 of weights and code, in hexadecimal.")


class Decision(BaseModel):
    """What was decided about a target radius."""

    radius: float
    outcome: str = Field(description="certified, refuted or undecided")


class Stage(BaseModel):
    """Some consecutive noisy copies, and their votes."""

    stage: int
    source: int
    start: int
    n: int
    votes: list[dict[str, int]] = Field(description="Copies by value, for each statistic; for votes: by class.")


class Given(BaseModel):
    """The input in the space of the model's inputs, around which the answer holds."""

    shape: list[int]
    changes: list[str] = Field(description="How an image file was changed into these values.")
    offset: float = Field(description="Distance to the nearest grid point, which the radius has lost.")


class Seconds(BaseModel):
    queue: float
    total: float


class Predicted(BaseModel):
    """The answer of ``/v1/predict``."""

    model_config = ConfigDict(extra="forbid")

    label: int = Field(description="The class, or -1: abstain.")
    class_name: str | None
    alpha: float = Field(description="The probability of a wrong answer.")
    samples: int
    votes: list[int] = Field(description="Copies by class.")
    p_value: float
    stages: list[Stage]
    seed: str
    seed_given: bool = Field(description="Whether the caller chose the seed, and so may have chosen the answer by it.")
    index: int
    input_sha256: str = Field(description="SHA-256 of the input's values as little-endian float32 in C order.")
    input: Given
    model: Model
    noise: dict[str, Any]
    procedure: dict[str, Any]
    runtime: str | None
    received: str
    seconds: Seconds
    version: str
    sentence: str
    record: int | None = Field(description="The number of the row in the record, where answers are recorded.")


class Certified(Predicted):
    """The answer of ``/v1/certify``."""

    p_value: None = Field(None, exclude=True)  # type: ignore[assignment]
    radius: float
    norm: str
    guarantee: str
    arithmetic: str
    outcome: str = Field(description="That of the largest target radius.")
    decisions: list[Decision]
    p_lower: float
    p_upper: float | None
    selection: list[int] = Field(description="Votes that only guessed the class.")
    routing: dict[str, Any] | None
    experts: list[dict[str, Any]] | None


class Failed(BaseModel):
    """An error, in one sentence."""

    error: str


class Batch(BaseModel):
    """The answers to a batch, in its order; an input that could not be answered has an error."""

    answers: list[Certified | Predicted | Failed]


def answer_json(
    answer: Certificate | Prediction,
    *,
    draws: Sequence[Drawn],
    values: NDArray[np.float32],
    changes: Sequence[str],
    name: str,
    identity: str | None,
    class_names: Sequence[str] | None,
    noise: Mapping[str, Any],
    procedure: Mapping[str, Any],
    **facts: Any,
) -> Json:
    """Return the answer to a request; ``facts`` are added as they are."""
    found: Json = {"label": answer.label, "class_name": class_name(answer.label, class_names)}
    if isinstance(answer, Certificate):
        found |= {
            "radius": answer.radius,
            "norm": answer.norm.value,
            "guarantee": answer.guarantee.value,
            "arithmetic": answer.arithmetic.value,
            "outcome": answer.outcome.value,
            "decisions": [{"radius": r, "outcome": each.value} for r, each in answer.decisions.items()],
            "p_lower": answer.p_lower,
            "p_upper": answer.p_upper,
            "selection": list(answer.selection),
            "routing": None if answer.routing is None else answer.to_dict()["routing"],
            "experts": procedure.get("experts"),
        }
    else:
        found["p_value"] = answer.p_value
    return found | {
        "alpha": answer.alpha,
        "samples": answer.samples,
        "votes": list(answer.counts),
        "stages": [stage_json(each) for each in draws],
        "seed": str(answer.seed),
        "index": answer.index,
        "input_sha256": values_digest(values),
        "input": {
            "shape": list(values.shape),
            "changes": list(changes),
            "offset": answer.offset if isinstance(answer, Certificate) else 0.0,
        },
        "model": {"name": name, "identity": answer.model if isinstance(answer, Certificate) else identity},
        "noise": dict(noise),
        "procedure": dict(procedure["procedure"]),
        "runtime": answer.runtime if isinstance(answer, Certificate) else None,
        **facts,
        "sentence": sentence(answer, class_names, changes),
    }


def class_name(label: int, names: Sequence[str] | None) -> str | None:
    """Return the name of a class, if it has one."""
    return names[label] if names is not None and 0 <= label < len(names) else None


def sentence(answer: Certificate | Prediction, names: Sequence[str] | None, changes: Sequence[str]) -> str:
    """Say what an answer means."""
    text, name = str(answer), class_name(answer.label, names)
    if name is not None and name != str(answer.label):
        text = text.replace(f"Class {answer.label} ", f"Class {answer.label} ({name}) ", 1)
    if changes and answer.label != ABSTAIN:
        text += f" This is about the image after these changes: {', '.join(changes)}."
    return text


def values_digest(values: NDArray[np.float32]) -> str:
    """Hash the values of an input: SHA-256 of little-endian float32 in C order."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f4").tobytes()).hexdigest()


def stage_json(drawn: Drawn) -> Json:
    """Return a part of the votes as JSON values."""
    request, votes = drawn
    counted = [{str(value): count for value, count in enumerate(each.counts) if count} for each in votes]
    place = {"stage": request.stage, "source": request.source, "start": request.start, "n": votes[0].n}
    return {**place, "votes": counted}


def stage_of(entry: Mapping[str, Any], bins: Sequence[int]) -> Drawn:
    """Return the votes that :func:`stage_json` wrote; ``bins`` is the number of values of each statistic.

    Raises:
        UsageError: If it is not such an entry.
    """
    try:
        stage = Stage.model_validate(entry, strict=True)
        votes = []
        for counted, size in zip(stage.votes, bins, strict=True):
            counts = [0] * size
            for value, count in counted.items():
                counts[int(value) if value.isdecimal() else size] = count
            votes.append(Votes(stage.n, tuple(counts)))
    except (ValueError, IndexError) as error:
        raise UsageError(f"a stage of the answer is invalid ({str(error).partition(chr(10))[0]}).") from error
    return Draw(stage.stage, stage.n, stage.start, source=stage.source), tuple(votes)
