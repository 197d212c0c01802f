"""Models that the user's own code builds: ``package.module:factory`` or ``path/to/file.py:factory``."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from smoothcert.models.checkpoints import fit, read_weights
from smoothcert.models.loaded import LoadedModel
from smoothcert.types import UsageError

_NAMED = re.compile(r"(?:[A-Za-z_][\w.]*|.*\.py):[A-Za-z_][\w.]*")


def is_factory(text: str) -> bool:
    """Return whether a text names an object in a module or in a Python file."""
    return _NAMED.fullmatch(text) is not None


def load_object(text: str) -> Any:
    """Import ``package.module:name`` or ``path/to/file.py:name``; the current folder is searched too.

    Raises:
        UsageError: The module cannot be imported, or has no such name.
    """
    place, _, name = text.rpartition(":")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else _from_package(place)
    except UsageError:
        raise
    except Exception as error:  # the user's code may raise anything when it is imported
        raise UsageError(f"{place} cannot be imported: {type(error).__name__}: {error}.") from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = ", ".join(each for each in vars(module) if not each.startswith("_")) or "nothing"
            raise UsageError(f"{place} has no {name}; it has {public}.")
        found = getattr(found, part)
    return found


def load_factory(text: str, options: Mapping[str, Any]) -> LoadedModel:
    """Build a model by the user's own function or class, or take a module that the user's code already holds.

    Args:
        text: ``package.module:factory`` or ``path/to/file.py:factory``.
        options: ``weights``, a file whose state dict is loaded; all others are arguments of the factory.

    Raises:
        UsageError: The code cannot be imported or called, or returns no model.
        CheckpointError: The weights cannot be read or do not match the model.
    """
    arguments = dict(options)
    weights = arguments.pop("weights", None)
    made = load_object(text)
    if isinstance(made, nn.Module):
        if arguments:
            raise UsageError(f"{text} is a model, not a function, so it takes no {', '.join(arguments)}.")
    else:
        made = _called(made, text, arguments)
    source: dict[str, Any] = {"factory": text, "arguments": arguments}
    if weights is not None:
        tensors, sha256 = read_weights(Path(weights))
        made.load_state_dict(fit(made, tensors, f"'{weights}' as {text}"))
        source |= {"checkpoint": os.fspath(weights), "sha256": sha256}
    return LoadedModel(
        model=made.eval(), name=Path(weights).stem if weights else text.rpartition(":")[2], source=source
    )


def _called(factory: Any, text: str, arguments: Mapping[str, Any]) -> nn.Module:
    if not callable(factory):
        raise UsageError(f"{text} is a {type(factory).__name__}; name a function or class that returns a model.")
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise UsageError(f"{text} cannot be called with these options: {error}.") from error
    except ValueError:  # a built-in without a signature
        pass
    try:
        made = factory(**arguments)
    except Exception as error:  # the user's code may raise anything
        raise UsageError(f"{text} raised {type(error).__name__}: {error}.") from error
    if not isinstance(made, nn.Module):
        raise UsageError(f"{text} returned a {type(made).__name__}, not a torch.nn.Module; wrap it, see from_numpy.")
    return made


def _from_package(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:  # as `python -m` does
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _from_file(path: Path) -> ModuleType:
    """Import a file as the module of its name, so that a model is the same wherever the file lies."""
    if not path.is_file():
        raise UsageError(f"{path} does not exist; give the path of a Python file, as in nets.py:factory.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.import_module(path.stem)
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise UsageError(f"another module {path.stem} is loaded from {module.__file__}; rename {path.name}.")
    return module
