"""Recipes: complete trainings, by name or from a YAML file, and changes of their settings.

The YAML files next to this one have the hyper-parameters of the papers as tables; ``mnist.yaml`` explains the layout.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from smoothcert import plain_yaml as text
from smoothcert.data import DATASETS
from smoothcert.models import find_model, normalization
from smoothcert.noise import NOISES
from smoothcert.plugins import Registry
from smoothcert.specifiers import Specifier, is_factory
from smoothcert.training.methods import METHODS
from smoothcert.training.settings import DataDependentSigma, Recipe, SoftLabels
from smoothcert.types import StrPath, UsageError

_NAMED: dict[str, Registry[Any]] = {"method": METHODS, "noise": NOISES}
"""The groups of settings with a name, and their registry."""

_GROUPS: dict[str, type[BaseModel]] = {"soft_labels": SoftLabels, "data_dependent_sigma": DataDependentSigma}
"""The other groups of settings."""

_TEXTS = ("name", "source", "dataset", "model", "soft_labels.recipe", "start")
"""Settings that are text, even text that looks like a number."""

M = TypeVar("M", bound=BaseModel)

__all__ = ["load_recipe", "recipe_names", "recipe_to_yaml"]


def recipe_names() -> list[str]:
    """List the recipes of the package in alphabetical order.

    Example:
        >>> "mnist-catrs-0.50" in recipe_names()
        True
    """
    return sorted(_packaged())


def load_recipe(name_or_path: StrPath, overrides: Mapping[str, Any] | Sequence[str] = ()) -> Recipe:
    """Load a recipe and change settings of it.

    ``method=NAME`` selects another method with its default settings; ``method.lam=2`` changes one setting. The order of
    the changes does not matter.

    Args:
        name_or_path: One of :func:`recipe_names`, or the path of a YAML file with a whole recipe.
        overrides: The changes, as a mapping such as ``{"epochs": 10, "method.lam": 2.0}``, or as texts such as
            ``epochs=10`` or ``milestones=[30, 60]``, with values in YAML.

    Returns:
        The recipe; it keeps its name unless ``name`` is changed.

    Raises:
        UsageError: If the recipe or file does not exist, or a setting is unknown, missing or invalid.

    Example:
        >>> load_recipe("mnist-catrs-0.50", ["epochs=10", "method.lam=2"]).method["lam"]
        2.0
    """
    name, changes = os.fspath(name_or_path), _changes(overrides)
    if name in _packaged():
        values = copy.deepcopy(_packaged()[name])
    elif _is_path(name):
        values = _from_file(Path(os.path.expanduser(name)), changes)
    else:
        raise _unknown_recipe(name)
    recipe = _build(_changed(values, changes))
    for other in (recipe.start, None if recipe.soft_labels is None else recipe.soft_labels.recipe):
        if other is not None and other not in _packaged() and not _is_path(other):
            raise _unknown_recipe(other)
    return recipe


def recipe_to_yaml(recipe: Recipe) -> str:
    """Write a recipe as YAML that :func:`load_recipe` reads."""
    return text.write(recipe.model_dump(mode="json"))


@cache
def _packaged() -> dict[str, dict[str, Any]]:
    files = [file for file in resources.files("smoothcert.training.recipes").iterdir() if file.name.endswith(".yaml")]
    tables = [text.read(file.read_text(encoding="utf-8"), file.name) for file in files]
    return {values["name"]: values for table in tables for values in _expanded(table)}


def _expanded(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings of each recipe of a table; ``mnist.yaml`` explains the layout."""
    for variant, changes in table["variants"].items():
        for title in changes.get("only", table["methods"]):
            row = table["methods"][title]
            noise = row.get("noise") or {"name": "gaussian", "sigma": row["sigma"]}
            settings = {f"method.{key}": value for key, value in row.items() if key not in ("method", "noise", "sigma")}
            settings |= changes["common"] | changes.get(title, {})
            levels = next(value for value in noise.values() if isinstance(value, list))
            for place, level in enumerate(levels):
                name = f"{table['common']['dataset']}-{title}-{level:.2f}"
                values = {
                    "name": name if variant == "full" else f"{name}-{variant}",
                    **copy.deepcopy(table["common"]),
                    "noise": {key: level if value is levels else value for key, value in noise.items()},
                    "method": {"name": row.get("method", title)},
                }
                for key, value in copy.deepcopy(settings).items():
                    several = (key.startswith("method.") or key == "start") and isinstance(value, list)
                    _set(values, key, value[place] if several else value)
                yield values


def _from_file(path: Path, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Read a recipe; code that it names must be among the changes, as code is imported only if the user names it."""
    values, _ = text.read_file(path, "a recipe")
    if not isinstance(values, dict):
        raise UsageError(f"{path} is not a recipe; write a setting on each line, such as 'epochs: 10'.")
    try:
        _build(values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    for key, option in (("dataset", "--data"), ("model", "--model")):
        if key not in changes and _names_code(str(values[key])):
            raise UsageError(f"{path} names code as its {key}; if you trust it, give {option} {values[key]} too.")
    return values


def _names_code(specifier: str) -> bool:
    with suppress(UsageError):  # an invalid specifier, which is refused when it is loaded
        text = Specifier.parse(specifier).text
        return is_factory(text) and not text.startswith("hf:")
    return False


def _changes(overrides: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    if isinstance(overrides, str):
        overrides = [overrides]
    changes = dict(overrides) if isinstance(overrides, Mapping) else dict(map(_parsed, overrides))
    for group in _NAMED:
        if f"{group}.name" in changes:  # another name selects the default settings
            changes[group] = changes.pop(f"{group}.name")
    return changes


def _changed(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Apply changes, whole groups before the settings in them."""
    before = _with_name("method", values["method"])["name"]
    for key in sorted(changes, key=lambda key: (str(key).count("."), key != "method")):
        _set(values, str(key), changes[key])
        if key == "method" and _with_name("method", values["method"])["name"] != before:
            values.pop("soft_labels", None)  # of the old method
    return values


def _parsed(change: str) -> tuple[str, Any]:
    key, equals, value = str(change).partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key:
        raise UsageError(f"{change!r} is not a change; write it as setting=value, for example epochs=10.")
    parsed = text.read(value, f"the value of {key}")
    return key, value if key in _TEXTS and not isinstance(parsed, str) else parsed


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a setting, ``group.setting`` for one in a group; ``_build`` refuses invalid ones."""
    group, dot, setting = key.partition(".")
    if not dot or group not in (*_NAMED, *_GROUPS):
        values[key] = value
        return
    old = values.get(group)
    if isinstance(old, str) and group in _NAMED:
        old = {"name": old}
    if old is None or isinstance(old, Mapping):
        values[group] = {**(old or {}), setting: value}


def _build(values: Mapping[str, Any]) -> Recipe:
    """Return the recipe with these settings, or raise a UsageError."""
    values = dict(values)
    known = [*Recipe.model_fields]
    for group, part in _GROUPS.items():
        known += [f"{group}.{key}" for key in part.model_fields]
    for group, registry in _NAMED.items():
        if group in values:
            settings = _with_name(group, values[group])
            model = _settings_model(registry[settings["name"]])
            known += [f"{group}.{key}" for key in ("name", *model.model_fields)]
            name = settings.pop("name")
            checked = _validated(model, settings, known, group).model_dump(exclude_unset=True)
            values[group] = {"name": name, **checked}
    recipe = _validated(Recipe, values, known)
    if not is_factory(Specifier.parse(recipe.model).text):
        find_model(recipe.model)
    if recipe.dataset in DATASETS:
        normalization(recipe.normalize, DATASETS[recipe.dataset].shape[0])
    return recipe


def _with_name(group: str, value: Any) -> dict[str, Any]:
    """Return a method or noise as a mapping with its name and its settings."""
    registry = _NAMED[group]
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise UsageError(
            f"{group} must be the name of a {registry.kind}, alone or with its settings, got {value!r:.80}."
        )
    if value["name"] not in registry:
        raise registry.unknown(value["name"])
    return dict(value)


def _settings_model(cls: type) -> type[BaseModel]:
    """Return the settings of a method or noise, without the grid of a noise, as training is in floating point."""
    hints = get_type_hints(cls)
    fields: dict[str, Any] = {
        field.name: (hints[field.name], ... if field.default is dataclasses.MISSING else field.default)
        for field in dataclasses.fields(cls)
        if field.name != "grid"
    }
    return create_model(cls.__name__, __config__=ConfigDict(extra="forbid", allow_inf_nan=False), **fields)


def _validated(model: type[M], values: Mapping[str, Any], known: Collection[str], group: str = "") -> M:
    """Validate settings as JSON, where types are strict but a list can be a tuple."""
    try:
        return model.model_validate_json(json.dumps(values, ensure_ascii=False).encode(), strict=True)
    except ValidationError as error:
        raise text.sentence(error, known, group) from error
    except (TypeError, ValueError) as error:
        raise UsageError(f"a setting is not text, a number, a list or a mapping: {error}.") from error


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) or "/" in name or os.sep in name or os.path.isfile(name)


def _unknown_recipe(name: str) -> UsageError:
    close = get_close_matches(name, recipe_names(), n=3)
    hint = f" did you mean {' or '.join(map(repr, close))}?" if close else ""
    return UsageError(f"unknown recipe {name!r};{hint} Use one that 'smoothcert recipes list' shows, or a file's path.")
