"""Specifiers: the text by which commands, files and functions name a model or a dataset."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from smoothcert.types import UsageError

_OPTION = re.compile(r",\s*([A-Za-z_]\w*)=")
_FILES: dict[str, ModuleType] = {}
_NAMED = re.compile(r"(?:[A-Za-z_][\w.]*|.*\.py):[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Specifier:
    """A model by name, with options.

    Attributes:
        text: The model without options, such as ``net.onnx``, ``package.module:factory`` or ``hf:organisation/name``.
        options: Values by name, such as ``{"normalize": "imagenet"}``.
    """

    text: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Specifier:
        """Split ``text,name=value,…`` into the model and its options; values are read as in YAML.

        Raises:
            UsageError: An option is given twice, or the text names no model.

        Example:
            >>> Specifier.parse("nets.py:resnet,depth=20,weights=r20.th")
            Specifier(text='nets.py:resnet', options={'depth': 20, 'weights': 'r20.th'})
        """
        model, *parts = _OPTION.split(text)
        options: dict[str, Any] = {}
        for name, value in zip(parts[::2], parts[1::2], strict=True):
            if name in options:
                raise UsageError(f"'{text}' gives {name} twice; give it once.")
            options[name] = _value(value)
        if not model:
            raise UsageError(f"'{text}' names nothing; begin with a name, a file or package.module:factory.")
        return cls(model, options)

    def __str__(self) -> str:
        return self.text + "".join(f",{name}={value}" for name, value in self.options.items())


def _value(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # such as a date in month 13
        return text
    return value if isinstance(value, str | int | float | bool) else text


def short_name(text: str) -> str:
    """Return a name for files about the model that a specifier names.

    Example:
        >>> [short_name(text) for text in ("models/lenet.safetensors", "nets.py:resnet,depth=20", "hf:google/vit")]
        ['lenet', 'resnet', 'vit']
    """
    given = Specifier.parse(text)
    chosen = str(given.options.get("weights", given.text))
    name = chosen.rstrip("/").rpartition("/")[2]
    if "weights" not in given.options:
        name = name.rpartition(":")[2]
    for suffix in (".safetensors", ".tar", ".pth", ".pt", ".th", ".onnx", ".pt2", ".yaml", ".yml"):
        name = name.removesuffix(suffix)
    return name or "model"


def is_factory(text: str) -> bool:
    """Return whether a text names an object in a module or in a Python file."""
    return _NAMED.fullmatch(text) is not None


def load_object(text: str) -> Any:
    """Import ``package.module:name`` or ``path/to/file.py:name``; the current folder is searched too.

    Raises:
        UsageError: The module cannot be imported, or has no such name.
    """
    place, _, name = text.rpartition(":")
    module = import_code(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = ", ".join(each for each in vars(module) if not each.startswith("_")) or "nothing"
            raise UsageError(f"{place} has no {name}; it has {public}.")
        found = getattr(found, part)
    return found


def import_code(place: str) -> ModuleType:
    """Import ``package.module`` or ``path/to/file.py``; the current folder is searched too.

    Raises:
        UsageError: It does not exist, or raises an error when it is imported.
    """
    try:
        return _from_file(Path(place)) if place.endswith(".py") else _from_package(place)
    except UsageError:
        raise
    except Exception as error:  # the user's code may raise anything when it is imported
        raise UsageError(f"{place} cannot be imported: {type(error).__name__}: {error}.") from error


def imported_files() -> tuple[ModuleType, ...]:
    """Return the modules that were imported from files which the user named."""
    return tuple(_FILES.values())


def call_object(factory: Any, arguments: Mapping[str, Any], text: str) -> Any:
    """Call the function or class that a specifier names, and return what it makes.

    Raises:
        UsageError: It is not callable, does not accept the arguments, or raises an error; ``text`` names it.
    """
    if not callable(factory):
        raise UsageError(f"{text} has the type {type(factory).__name__}; name a function or class.")
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise UsageError(f"{text} cannot be called with these options: {error}.") from error
    except ValueError:  # a built-in without a signature
        pass
    try:
        return factory(**arguments)
    except Exception as error:  # the user's code may raise anything
        raise UsageError(f"{text} raised {type(error).__name__}: {error}.") from error


def accepted(factory: Any, offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the offered arguments that a function or class has a parameter for."""
    try:
        return {name: value for name, value in offered.items() if name in inspect.signature(factory).parameters}
    except (TypeError, ValueError):  # not callable, or a built-in without a signature
        return {}


def _from_package(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:  # as `python -m` does
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _from_file(path: Path) -> ModuleType:
    """Import a file as the module of its name, so that a model is the same wherever the file lies."""
    if not path.is_file():
        raise UsageError(f"{path} does not exist; give the path of a Python file, such as nets.py.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.import_module(path.stem)
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise UsageError(f"another module {path.stem} is loaded from {module.__file__}; rename {path.name}.")
    _FILES[path.stem] = module
    return module
