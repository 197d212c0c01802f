"""The settings of a run that others read, made sure to be of the kinds that a run is written with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from smoothcert.types import RunError


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _count(value: Any) -> bool:
    return value is None or (_whole(value) and value > 0)


def _place(value: Any) -> bool:
    return value is None or (_whole(value) and value >= 0)


def _number(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else _whole(value)


def _share(value: Any) -> bool:
    return value is None or (_number(value) and 0 < value < 1)


def _group(value: Any) -> bool:
    return isinstance(value, Mapping)


def _groups(value: Any) -> bool:
    return isinstance(value, list) and all(map(_group, value))


def _shard(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_count, value)) and None not in value


_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "kind": (lambda value: isinstance(value, str), "text"),
    "procedure": (_group, "a group of settings"),
    "procedure.name": (_text, "text"),
    "procedure.norm": (_text, "text"),
    "procedure.n": (_count, "a number of samples"),
    "procedure.n0": (_count, "a number of samples"),
    "procedure.alpha": (_share, "a probability"),
    "noise": (_group, "a group of settings"),
    "noise.name": (_text, "text"),
    "noise.sigma": (_number, "a number"),
    "noise.lam": (_number, "a number"),
    "noise.grid": (_whole, "a whole number"),
    "noise.keep": (_number, "a number"),
    "noise.levels": (_whole, "a whole number"),
    "experts": (_groups, "a list of groups of settings"),
    "sigma": (_group, "a group of settings"),
    "stream": (_group, "a group of settings"),
    "stream.device": (_text, "text"),
    "seed": (_place, "a whole number from 0 up"),
    "num_classes": (_count, "a number of classes"),
    "data": (_group, "a group of settings"),
    "data.name": (_text, "text"),
    "data.split": (_text, "text"),
    "data.sha256": (_text, "text"),
    "data.size": (_count, "a number of inputs"),
    "inputs": (_group, "a group of settings"),
    "inputs.every": (_count, "a number of inputs"),
    "inputs.start": (_place, "an input"),
    "inputs.stop": (_place, "an input"),
    "inputs.shard": (_shard, "two whole numbers"),
}
"""The settings that some reader uses, whether a value may be theirs, and what it must be."""


def checked_settings(config: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """The configuration of a run, once every setting that is there is of its kind.

    Args:
        config: The configuration as ``run.json`` has it.
        folder: The run folder, for the error.

    Returns:
        The configuration itself.

    Raises:
        RunError: If a setting is of another kind than any version writes.
    """
    for name, (fits, what) in _KINDS.items():
        group, _, setting = name.rpartition(".")
        holder = config.get(group, {}) if group else config
        if setting in holder and not fits(holder[setting]):
            raise RunError(
                f"{folder / 'run.json'} is damaged: {name} must be {what}; restore it, or certify into another folder."
            )
    return config
