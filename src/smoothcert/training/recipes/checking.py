"""From plain values to a recipe: unknown settings are refused with the close ones named, wrong values in a sentence."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from smoothcert.data import DATASETS
from smoothcert.models import find_model
from smoothcert.models.normalize import PRESETS, normalization
from smoothcert.noise import NOISES
from smoothcert.training.methods import METHODS
from smoothcert.training.settings import DataDependentSigma, Recipe, SoftLabels
from smoothcert.types import UsageError, unknown_name

NAMED: dict[str, tuple[str, Mapping[str, type]]] = {"method": ("training method", METHODS), "noise": ("noise", NOISES)}
"""The settings that hold a name and settings of their own: what they name, and the registry."""

PARTS: dict[str, type[BaseModel]] = {"soft_labels": SoftLabels, "data_dependent_sigma": DataDependentSigma}
"""The settings that are groups of settings without a name."""

GROUPS = (*NAMED, *PARTS)
"""The settings that have settings, written ``group.setting``."""

_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
_ALLOWED = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "tuple_type": "a list",
    "model_type": "a mapping of settings",
    "finite_number": "a finite number",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
}
"""What a value must be, for each kind of pydantic's errors."""


def build(values: Mapping[str, Any]) -> Recipe:
    """The recipe with these settings.

    Args:
        values: Settings as YAML has them; ``method`` and ``noise`` may be a plain name.

    Raises:
        UsageError: If a setting is unknown, missing, of the wrong kind or out of range.
    """
    values = dict(values)
    known = {
        *Recipe.model_fields,
        *(f"{part}.{name}" for part, settings in PARTS.items() for name in settings.model_fields),
    }
    kinds: dict[str, Any] = {}
    for group in NAMED:
        if group in values:
            values[group] = with_name(group, values[group])
            hints = _settings_of(group, values[group]["name"])
            kinds |= {f"{group}.{name}": hint for name, hint in hints.items()}
    known |= kinds.keys() | {f"{group}.name" for group in NAMED}
    for key in _keys(values):
        if key not in known:
            raise unknown_setting(key, known)
        if "." in key and key in values:
            group, _, name = key.partition(".")
            raise UsageError(f"{key} must be written inside {group}, as {group}: {{{name}: …}}.")
    for group in NAMED:
        for name, value in values.get(group, {}).items():
            if name != "name":
                values[group][name] = _checked(f"{group}.{name}", value, kinds[f"{group}.{name}"])
        _refuse_gaps(group, values)
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{key} must be a finite number, got {value}.")
    if isinstance(values.get("milestones"), list):
        values["milestones"] = tuple(values["milestones"])
    try:
        recipe = Recipe.model_validate(values, strict=True)
    except ValidationError as error:
        raise _refusal(error, values) from error
    _refuse_unknown_names(recipe)
    return recipe


def with_name(group: str, value: Any) -> dict[str, Any]:
    """A method or noise as a mapping with its name and its settings.

    Raises:
        UsageError: If it has no name, or one that is in no registry.
    """
    what, registry = NAMED[group]
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise UsageError(f"{group} must be the name of a {what}, alone or with its settings, got {_shown(value)}.")
    if value["name"] not in registry:
        raise unknown_name(what, value["name"], registry)
    return dict(value)


def unknown_setting(key: str, known: Iterable[str]) -> UsageError:
    """The error for a setting that a recipe does not have, with the close ones named."""
    names = sorted(known)
    group, dot, last = key.rpartition(".")
    siblings = [name for name in names if name.rpartition(".")[0] == group]
    namesakes = [name for name in names if name.rpartition(".")[2] == last]
    similar = [group + dot + name for name in get_close_matches(last, [name.rpartition(".")[2] for name in siblings])]
    close = namesakes or similar or ([group] if group in names and not siblings else [])
    hint = f" did you mean {' or '.join(map(repr, close))}?" if close else ""
    shown = siblings or [name for name in names if "." not in name]
    return UsageError(f"unknown setting {_shown(key)};{hint} Known: {', '.join(shown)}.")


def _keys(values: Mapping[str, Any]) -> Iterable[str]:
    for key, value in values.items():
        yield key
        if key in GROUPS and isinstance(value, Mapping):
            yield from (f"{key}.{name}" for name in value)


def _settings_of(group: str, name: str) -> dict[str, Any]:
    """The settings of a method or noise and their types; not the grid of a noise, as training is in floating point."""
    cls = NAMED[group][1][name]
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.name != "grid"}


def _checked(key: str, value: Any, kind: Any) -> Any:
    try:
        return TypeAdapter(kind, config=_STRICT).validate_python(value)
    except ValidationError as error:
        raise _refusal(error, {}, key) from error


def _refuse_gaps(group: str, values: Mapping[str, Any]) -> None:
    if group not in values:
        raise UsageError(f"{group} is missing; set it to one of {', '.join(NAMED[group][1])}.")
    given = values[group]
    for field in dataclasses.fields(NAMED[group][1][given["name"]]):
        if field.default is dataclasses.MISSING and field.name not in given:
            raise UsageError(f"{group}.{field.name} is missing; {given['name']} needs it.")


def _refuse_unknown_names(recipe: Recipe) -> None:
    find_model(recipe.model)
    if recipe.normalize is not None and recipe.normalize not in (*PRESETS, "none"):
        raise unknown_name("normalization", recipe.normalize, [*PRESETS, "none"])
    if recipe.dataset in DATASETS:
        normalization(recipe.normalize, DATASETS[recipe.dataset].shape[0])


def _refusal(error: ValidationError, values: Mapping[str, Any], key: str = "") -> UsageError:
    """The first of pydantic's complaints as a sentence."""
    first = error.errors(include_url=False)[0]
    for part in first["loc"]:
        key += f"[{part + 1}]" if isinstance(part, int) else f"{'.' if key else ''}{part}"
    if first["type"] == "missing":
        return UsageError(f"{key} is missing.")
    if first["type"] == "value_error":  # a sentence of ours
        where = f"{key} {values[key]['name']}: " if key in NAMED else ""
        return UsageError(f"{where}{first['msg'].removeprefix('Value error, ').rstrip('.')}.")
    if first["type"] in _ALLOWED:
        must = f"must be {_ALLOWED[first['type']].format(**first.get('ctx', {}))}"
    else:
        must = re.sub(r"^\w+ should ", "must ", first["msg"])
    return UsageError(f"{key} {must}, got {_shown(first['input'])}.")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
