"""Descriptions of composed classifiers, and the YAML files that hold them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, field_validator, model_validator

from smoothcert import plain_yaml
from smoothcert.files import saving
from smoothcert.noise import noise_from_config
from smoothcert.specifiers import Specifier, is_factory
from smoothcert.types import StrPath, UsageError, unknown_name

_MOST_LEVELS = 20  # of collections in a file
_SCHEME = re.compile(r"[A-Za-z][\w+.-]+:")  # hf:, timm:, http: …, but no drive of Windows
_BASES = ("ensemble", "consensus", "denoised")
_NAMING = ("members", "model", "denoiser", "selector", "core", "experts")  # the keys that name models
_HARMLESS = {"architecture", "num_classes", "normalize", "layout", "output", "level"}
"""Options that cannot make a source run code or use the network; arguments of other packages can."""


def _tag(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return "<text>" if isinstance(value, str) else f"<{kind}>"


Model = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated["EnsembleOf", Tag("<ensemble>")]
    | Annotated["ConsensusOf", Tag("<consensus>")]
    | Annotated["DenoisedOf", Tag("<denoised>")],
    Discriminator(
        _tag,
        custom_error_type="model",
        custom_error_message=f"must be a model's specifier, or a composition of the kind {', '.join(_BASES)}",
    ),
]
"""A base classifier: a specifier, or the description of a composed one."""


def _checked_noise(value: dict[str, Any] | None) -> dict[str, Any] | None:
    if value is not None:
        try:
            noise_from_config(value)
        except TypeError as error:
            raise ValueError(str(error)) from error
    return value


class Composition(BaseModel):
    """A description of a composed classifier."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    kind: str


class EnsembleOf(Composition):
    """Models that vote; see :class:`smoothcert.Ensemble`."""

    kind: Literal["ensemble"] = "ensemble"
    members: tuple[Model, ...] = Field(min_length=2)
    vote: str | None = None  # weighted with weights, soft without
    weights: tuple[float, ...] | None = None


class ConsensusOf(Composition):
    """Models of which the later ones vote only where the first do not decide; see :class:`smoothcert.Consensus`."""

    kind: Literal["consensus"] = "consensus"
    members: tuple[Model, ...] = Field(min_length=2)
    first: int
    margin: float = 0.0
    weights: tuple[float, ...] | None = None


class DenoisedOf(Composition):
    """A model behind a denoiser; see :class:`smoothcert.Denoised`. Several of them can be members of an ensemble."""

    kind: Literal["denoised"] = "denoised"
    model: Model
    denoiser: str


class ExpertOf(BaseModel):
    """An expert of a router: a model with its noise, by default that of its training, or a core without noise."""

    model_config = Composition.model_config

    model: Model | None = None
    noise: dict[str, Any] | None = None
    core: Model | None = None

    _check = field_validator("noise")(_checked_noise)

    @model_validator(mode="after")
    def _one(self) -> ExpertOf:
        if (self.model is None) == (self.core is None):
            raise ValueError("an expert is a model or a core; give one of the two")
        if self.core is not None and self.noise is not None:
            raise ValueError("a core is called without noise; leave out its noise")
        return self


class RoutedOf(Composition):
    """A smoothed selector between experts; see ``experts`` of :class:`smoothcert.Smoothed`."""

    kind: Literal["routed"] = "routed"
    selector: Model
    noise: dict[str, Any] | None = None  # of the selector; by default that of its training
    experts: tuple[ExpertOf, ...] = Field(min_length=2)

    _check = field_validator("noise")(_checked_noise)


class AcesOf(Composition):
    """A smoothed classifier, a selector and a core; see :class:`smoothcert.Aces`."""

    kind: Literal["aces"] = "aces"
    model: Model
    core: Model | None = None
    selector: Model | None = None  # by default the entropy of the model selects
    theta: float = Field(0.3, ge=0, le=1)
    steps: int = 100


KINDS: dict[str, type[Composition]] = {
    "ensemble": EnsembleOf,
    "consensus": ConsensusOf,
    "denoised": DenoisedOf,
    "routed": RoutedOf,
    "aces": AcesOf,
}
"""All kinds of compositions by name."""

ExpertOf.model_rebuild()
for _kind in KINDS.values():
    _kind.model_rebuild()


@dataclass(frozen=True)
class CompositionFile:
    """A composition and the file that it was read from."""

    path: Path
    sha256: str
    composition: Composition


def is_composition(specifier: StrPath) -> bool:
    """Return whether a specifier names a YAML file."""
    return Specifier.parse(os.fspath(specifier)).text.endswith((".yaml", ".yml"))


def read_composition(specifier: StrPath | Specifier) -> CompositionFile:
    """Read the file of a composition; its parts are not loaded.

    Raises:
        UsageError: The file cannot be read, or a key is unknown, missing or invalid.
    """
    given = specifier if isinstance(specifier, Specifier) else Specifier.parse(os.fspath(specifier))
    if given.options:
        raise UsageError(f"{given.text} is a composition, which has no options; write them in the file.")
    path = _path(given.text)
    values, content = plain_yaml.read_file(path, "a composition")
    try:
        composition = _parsed(values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return CompositionFile(path, hashlib.sha256(content).hexdigest(), composition)


def _parsed(values: Any) -> Composition:
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str):
        raise UsageError(f"a composition begins with 'kind: ' and one of {', '.join(KINDS)}.")
    if values["kind"] not in KINDS:
        raise unknown_name("kind", values["kind"], KINDS)
    if _levels(values) > _MOST_LEVELS:
        raise UsageError(f"values are nested more than {_MOST_LEVELS} levels deep; put inner compositions into files.")
    described = KINDS[values["kind"]]
    try:  # as JSON, where types are strict but a list can be a tuple
        return described.model_validate_json(json.dumps(values, ensure_ascii=False).encode(), strict=True)
    except ValidationError as error:
        raise plain_yaml.sentence(error, [*described.model_fields]) from error
    except (TypeError, ValueError) as error:
        raise UsageError(f"a value is not text, a number, a list or a mapping: {error}.") from error


def _levels(values: Any) -> int:
    level, count = [values], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        count += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return count


def write_composition(path: StrPath, composition: Composition, comment: str = "") -> None:
    """Write a composition as a YAML file, with paths relative to it, except absolute ones outside its folder.

    ``comment`` is its first line.

    Raises:
        UsageError: An option of a specifier cannot be written.
        SmoothcertError: The file cannot be written.
    """
    folder = Path(path).absolute().parent

    def relative(place: Path) -> Path:
        if place.is_absolute() and not place.is_relative_to(folder):
            return place
        return Path(os.path.relpath(place.absolute(), folder))

    def rewritten(text: str) -> str:
        given = with_paths(Specifier.parse(text), relative)
        if Specifier.parse(str(given)) != given:
            raise UsageError(f"'{text}' has an option that cannot be written to a file; leave it out.")
        return str(given)

    values = _with_texts(composition.model_dump(mode="json", exclude_none=True), rewritten)
    with saving(path) as temporary:
        first = f"# {' '.join(comment.split())}\n" if comment else ""
        temporary.write_text(first + plain_yaml.write(values), encoding="utf-8")


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return plain values in which all specifiers are changed."""
    if isinstance(value, dict):
        return {key: _with_texts(each, change) if key in _NAMING else each for key, each in value.items()}
    return [_with_texts(each, change) for each in value] if isinstance(value, list) else change(value)


def with_paths(given: Specifier, change: Callable[[Path], Path]) -> Specifier:
    """Return a specifier with all of its paths changed: of a model, of ``file.py:factory``, and of ``weights``."""
    options = dict(given.options)
    if "weights" in options:
        options["weights"] = str(change(_path(str(options["weights"]))))
    if "architecture" in options:
        options["architecture"] = _in_file(str(options["architecture"]), change)
    if _SCHEME.match(given.text) or is_factory(given.text):
        return replace(given, text=_in_file(given.text, change), options=options)
    return replace(given, text=str(change(_path(given.text))), options=options)


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"'{text:.80}' is in the home folder of an unknown user; write the whole path.") from error


def _in_file(text: str, change: Callable[[Path], Path]) -> str:
    file, _, name = text.rpartition(":")
    return f"{change(_path(file))}:{name}" if file.endswith(".py") and is_factory(text) else text


def names_code(composition: Composition) -> bool:
    """Return whether a composition names code, a model hub or an address, for which its file must be trusted."""
    found: list[bool] = []

    def note(text: str) -> str:
        found.append(may_run_code(Specifier.parse(text)))
        return text

    _with_texts(composition.model_dump(mode="json", exclude_none=True), note)
    return any(found)


def may_run_code(given: Specifier) -> bool:
    """Return whether a specifier names code, a model hub or an address, rather than a file of weights."""
    own = str(given.options.get("architecture", ""))
    named = any(_SCHEME.match(text) or is_factory(text) for text in (given.text, own))
    return named or not given.options.keys() <= _HARMLESS
