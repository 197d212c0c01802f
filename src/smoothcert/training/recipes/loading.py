"""Load a recipe by its name or from its file, and change settings of it."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from smoothcert.training.recipes import text
from smoothcert.training.recipes.checking import GROUPS, NAMED, build, unknown_setting, with_name
from smoothcert.training.settings import Recipe
from smoothcert.types import UsageError

_TEXTS = ("name", "source", "dataset", "model", "soft_labels.recipe", "start")
"""Settings that are text, even text that looks like a number."""

_NOT_OF_THE_METHOD = ("method", "noise", "sigma")
"""What a row of a table holds besides settings of its method."""


def recipe_names() -> list[str]:
    """The names of the recipes that come with the package, in alphabetical order.

    Example:
        >>> "mnist-catrs-0.50" in recipe_names()
        True
    """
    return sorted(_packaged())


def load_recipe(name_or_path: str | os.PathLike[str], overrides: Mapping[str, Any] | Sequence[str] = ()) -> Recipe:
    """Load a recipe and change settings of it.

    ``method=NAME`` switches to another method with its default settings; ``method.lam=2`` changes one setting. The
    order of the changes does not matter.

    Args:
        name_or_path: One of :func:`recipe_names`, or the path of a YAML file with a whole recipe.
        overrides: What to change, as a mapping such as ``{"epochs": 10, "method.lam": 2.0}``, or as texts such as
            ``epochs=10`` or ``milestones=[30, 60]``, with values in YAML.

    Returns:
        The recipe; it keeps its name unless ``name`` is changed.

    Raises:
        UsageError: If there is no such recipe or file, the file is not valid, a setting is unknown or missing, or a
            value is of the wrong kind or out of range.

    Example:
        >>> load_recipe("mnist-catrs-0.50", ["epochs=10", "method.lam=2"]).method["lam"]
        2.0
    """
    name = os.fspath(name_or_path)
    if name in _packaged():
        values = copy.deepcopy(_packaged()[name])
    elif _is_path(name):
        values = _from_file(Path(os.path.expanduser(name)))
    else:
        raise _unknown_recipe(name)
    recipe = build(_changed(values, overrides))
    for other in (recipe.start, None if recipe.soft_labels is None else recipe.soft_labels.recipe):
        if other is not None and other not in _packaged() and not _is_path(other):
            raise _unknown_recipe(other)
    return recipe


def recipe_to_yaml(recipe: Recipe) -> str:
    """A recipe as the text of a YAML file that :func:`load_recipe` reads."""
    return text.write(recipe.model_dump(mode="json"))


@cache
def _packaged() -> dict[str, dict[str, Any]]:
    """The settings of our recipes, by name."""
    files = [file for file in resources.files("smoothcert.training.recipes").iterdir() if file.name.endswith(".yaml")]
    tables = [text.read(file.read_text(encoding="utf-8"), file.name) for file in files]
    return {values["name"]: values for table in tables for values in _expanded(table)}


def _expanded(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The settings of each recipe of a table; ``mnist.yaml`` explains the layout."""
    for variant, changes in table["variants"].items():
        for title, row in table["methods"].items():
            noise = row.get("noise") or {"name": "gaussian", "sigma": row["sigma"]}
            settings = {f"method.{key}": value for key, value in row.items() if key not in _NOT_OF_THE_METHOD}
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


def _from_file(path: Path) -> dict[str, Any]:
    values = text.read_file(path)
    if not isinstance(values, dict):
        raise UsageError(f"{path} holds no recipe; write a setting on each line, such as 'epochs: 10'.")
    try:
        build(values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return values


def _changed(values: dict[str, Any], overrides: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """The settings, some of them changed: whole groups before the settings in them."""
    if isinstance(overrides, str):
        overrides = [overrides]
    changes = dict(overrides) if isinstance(overrides, Mapping) else dict(map(_parsed, overrides))
    for group in NAMED:
        if f"{group}.name" in changes:  # to give another name is to switch
            changes[group] = changes.pop(f"{group}.name")
    before = with_name("method", values["method"])["name"]
    for key in sorted(changes, key=lambda key: (str(key).count("."), key != "method")):
        _set(values, key, changes[key])
        if key == "method" and with_name("method", values["method"])["name"] != before:
            values.pop("soft_labels", None)  # the old method's
    return values


def _parsed(change: str) -> tuple[str, Any]:
    """The key and the value of a text such as ``epochs=10``."""
    key, equals, value = str(change).partition("=")
    key, value = key.strip(), value.strip()
    if not equals or not key:
        raise UsageError(f"{change!r} changes no setting; write it as setting=value, for example epochs=10.")
    parsed = text.read(value, f"the value of {key}")
    return key, value if key in _TEXTS and not isinstance(parsed, str) else parsed


def _set(values: dict[str, Any], key: Any, value: Any) -> None:
    """Set a setting, ``group.setting`` for one in a group."""
    group, dot, setting = str(key).partition(".")
    if not dot:
        values[group] = value
    elif group in GROUPS:
        old = values.get(group)
        if isinstance(old, str) and group in NAMED:
            old = {"name": old}
        if old is None or isinstance(old, Mapping):  # anything else is refused later
            values[group] = {**(old or {}), setting: value}
    else:
        raise unknown_setting(str(key), Recipe.model_fields)


def _is_path(name: str) -> bool:
    """Whether this means a file and no recipe of ours."""
    return name.endswith((".yaml", ".yml")) or "/" in name or os.sep in name or os.path.isfile(name)


def _unknown_recipe(name: str) -> UsageError:
    close = get_close_matches(name, recipe_names(), n=3)
    hint = f" did you mean {' or '.join(map(repr, close))}?" if close else ""
    return UsageError(f"unknown recipe {name!r};{hint} Use one that 'smoothcert recipes list' shows, or a file's path.")
