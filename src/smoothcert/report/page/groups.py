"""Group the results of a page: those in one norm over common inputs are shown together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smoothcert.report.aces import Components, load_components
from smoothcert.report.metrics import axis_norm
from smoothcert.store import Result
from smoothcert.types import Norm, StrPath, UsageError

IntArray = NDArray[np.int64]


@dataclass(eq=False)
class Group:
    """Results in one norm over common inputs."""

    norm: Norm | None
    results: list[Result]  # after groups(), restricted to the common inputs
    index: IntArray  # the common inputs
    label: IntArray
    components: dict[Path, Components] = field(default_factory=dict)  # the parts of ACES, for results that have them
    notes: list[str] = field(default_factory=list)  # sentences about what was left out

    @property
    def dataset(self) -> tuple[str, str] | None:
        """Name and split of the dataset, if known."""
        known = [found[:2] for result in self.results if (found := _dataset(result)) is not None]
        return known[0] if known else None

    @property
    def title(self) -> str:
        where = f", {' '.join(self.dataset).strip()}" if self.dataset else ""
        runs = self.results[0].name if len(self.results) == 1 else f"{len(self.results)} runs"
        return f"{axis_norm(self.norm)}{where}: {runs}"


def _dataset(result: Result) -> tuple[str, str, int | None] | None:
    data = result.settings.data
    return None if data is None or data.name is None else (data.name, data.split or "", data.size)


def groups(results: Sequence[Result], core: StrPath | None = None) -> list[Group]:
    """Put results together that share a norm, a dataset and inputs of the same labels.

    Each result joins the first group it fits, and a group is restricted to the inputs that all its results share. A
    result whose norm is unknown joins others only if all known norms are the same. ``core`` has the predictions of the
    core of ACES, for results that do not have them.
    """
    found: list[Group] = []
    known = {result.outcomes.norm for result in results} - {None}
    for result in results:
        outcomes = result.outcomes
        norm = outcomes.norm or (next(iter(known)) if len(known) == 1 else None)
        for group in found:
            if group.norm is norm and (common := _common(group, result)) is not None:
                group.results.append(result)
                group.index, group.label = common
                break
        else:
            found.append(Group(norm, [result], outcomes.index, outcomes.label))
    for group in found:
        if all(result.outcomes.norm is None for result in group.results):
            group.norm = None
        group.results = [_restricted(group, result, core) for result in group.results]
    return found


def _common(group: Group, result: Result) -> tuple[IntArray, IntArray] | None:
    """Find the inputs that a result shares with a group, and their labels; None where it does not fit."""
    if len({_dataset(each) for each in (*group.results, result)} - {None}) > 1:
        return None
    outcomes = result.outcomes
    index, here, there = np.intersect1d(group.index, outcomes.index, assume_unique=True, return_indices=True)
    if not len(index) or not np.array_equal(group.label[here], outcomes.label[there]):
        return None
    return index, group.label[here]


def _restricted(group: Group, result: Result, core: StrPath | None) -> Result:
    if result.prefix is not None:
        group.components[result.path] = load_components(result, core).restrict(group.index)
    elif result.settings.composed:
        _add_components(group, result, core)
    total, common = len(result.outcomes), len(group.index)
    if total == common:
        return result
    group.notes.append(
        f"{result.name} is compared over {common} of its {total} inputs, those that all runs here share; the other "
        f"{total - common} are left out."
    )
    return result.restrict(group.index)


def _add_components(group: Group, result: Result, core: StrPath | None) -> None:
    note = ""
    for source in (None, core):  # the stored answers of the run's core come first
        try:
            group.components[result.path] = load_components(result, source).restrict(group.index)
            return
        except UsageError as error:
            note = str(error)
    group.notes.append(f"{result.name}: the thresholds of ACES cannot be shown. {note}")
