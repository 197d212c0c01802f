"""What runs and logs hold beside their outcomes: votes, bounds, samples and settings, for pictures of them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from smoothcert.report.load import find_results, outcomes_of
from smoothcert.report.metrics import Outcomes
from smoothcert.store import Log, Run, flat_config
from smoothcert.types import UsageError, unknown_name


@dataclass(frozen=True, eq=False)
class Evidence:
    """A run or a log, with a name of its own among those it is shown with.

    Attributes:
        name: The name in pictures.
        result: The run folder or the log.
    """

    name: str
    result: Run | Log

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return self.result.path

    @property
    def run(self) -> Run | None:
        """The run folder; None for a log."""
        return self.result if isinstance(self.result, Run) else None

    @cached_property
    def table(self) -> pa.Table:
        """Its rows."""
        return self.result.table() if isinstance(self.result, Run) else self.result.table

    @cached_property
    def outcomes(self) -> Outcomes:
        """Its certified answers.

        Raises:
            UsageError, RunError: If it has none, or not in one norm.
        """
        return outcomes_of(self.name, self.result)

    def column(self, name: str) -> list[Any]:
        """One value for every input.

        Raises:
            UsageError: If there is no such column, or a value is missing.
        """
        if name not in self.table.column_names or self.table[name].null_count:
            raise UsageError(
                f"{self.path} does not hold {name} for its inputs, which this picture needs; logs of earlier systems "
                "lack it, so certify again with smoothcert."
            )
        return self.table[name].to_pylist()  # type: ignore[no-any-return]

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column of numbers; as :meth:`column`."""
        return np.array(self.column(name), dtype=np.float64)


def load_evidence(paths: Sequence[str | os.PathLike[str]]) -> list[Evidence]:
    """Read runs and certification logs, each once.

    Args:
        paths: Run folders, log files, or folders that hold some of them.

    Returns:
        One entry per run or log, in the order found; equal names are told apart by the folders above.

    Raises:
        UsageError: If there is nothing at a path, or nothing that tells certified accuracy.
        RunError, LogError: If a run or a log is damaged.
    """
    found: dict[Path, tuple[str, Run | Log]] = {}
    for name, result in find_results(paths):
        found.setdefault(result.path.resolve(), (name, result))
    names = _told_apart({path: name for path, (name, _) in found.items()})
    return [Evidence(names[path], result) for path, (_, result) in found.items()]


def setting(settings: Mapping[str, Any], key: str, name: str) -> Any:
    """A setting by its dotted key.

    Args:
        settings: Nested settings, such as the ``config`` of a run.
        key: For example ``noise.sigma``.
        name: Whose settings they are, for the error.

    Returns:
        The value.

    Raises:
        UsageError: If there is no such setting; close ones are named.

    Example:
        >>> setting({"noise": {"name": "gaussian", "sigma": 0.5}}, "noise.sigma", "run")
        0.5
    """
    flat = flat_config(settings)
    if key not in flat:
        raise unknown_name(f"setting of {name}", key, flat)
    return flat[key]


def _told_apart(names: Mapping[Path, str]) -> dict[Path, str]:
    """Names that differ, with as many of the folders above as that takes."""
    told, above = dict(names), 0
    while repeated := {name for name, times in Counter(told.values()).items() if times > 1}:
        above += 1
        for path, name in names.items():
            if told[path] in repeated:
                told[path] = "/".join([*path.parts[-1 - above : -1], name])
    return told
