"""Group the results of a page: those in one norm over common inputs are shown together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smoothcert.report.aces import Components, load_components
from smoothcert.report.metrics import axis_norm
from smoothcert.store import Result
from smoothcert.types import Norm, UsageError


@dataclass(eq=False)
class Group:
    """Results in one norm over common inputs.

    Attributes:
        norm: The norm of all radii, as far as it is known.
        results: The results; after :func:`groups`, restricted to the common inputs.
        index: The common inputs.
        label: Their true classes.
        components: The parts of ACES by path, for the results that have them.
        notes: What was left out, in sentences.
    """

    norm: Norm | None
    results: list[Result]
    index: NDArray[np.int64]
    label: NDArray[np.int64]
    components: dict[Path, Components] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def dataset(self) -> tuple[str, str] | None:
        """Name and split of the dataset, where a run tells them."""
        known = [found for result in self.results if (found := dataset_identity(result)) is not None]
        return (known[0][0], known[0][1]) if known else None

    @property
    def title(self) -> str:
        where = f", {' '.join(self.dataset).strip()}" if self.dataset else ""
        runs = self.results[0].name if len(self.results) == 1 else f"{len(self.results)} runs"
        return f"{axis_norm(self.norm)}{where}: {runs}"


def dataset_identity(result: Result) -> tuple[str, str, str] | None:
    """Return name, split and size of the dataset of a run as text; None where it is not known."""
    data = result.settings.data
    return None if data is None or data.name is None else (data.name, data.split or "", str(data.size or ""))


def groups(results: Sequence[Result], core: str | os.PathLike[str] | None = None) -> list[Group]:
    """Put results together that share a norm, a dataset and inputs of the same labels.

    Each result joins the first group it fits. A group is about the inputs that all its results share; its notes say
    what is left out. A result whose norm is unknown is shown with others only if all that tell their norm have the same
    one.

    Args:
        results: The results.
        core: Predictions of the core of ACES, for results that do not hold them.

    Returns:
        The groups, by the order of their first result.
    """
    found: list[Group] = []
    known = {result.outcomes.norm for result in results} - {None}
    for result in results:
        norm = result.outcomes.norm or (next(iter(known)) if len(known) == 1 else None)
        for group in found:
            if group.norm is norm and (common := _common(group, result)) is not None:
                group.results.append(result)
                group.index, group.label = common
                break
        else:
            found.append(Group(norm, [result], result.outcomes.index, result.outcomes.label))
    for group in found:
        if all(result.outcomes.norm is None for result in group.results):
            group.norm = None
        _restrict(group, core)
    return found


def _common(group: Group, result: Result) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Find the inputs that a result shares with a group, and their labels; None where they do not fit together."""
    mine = dataset_identity(result)
    for other in group.results:
        if None not in (mine, theirs := dataset_identity(other)) and mine != theirs:
            return None
    outcomes = result.outcomes
    index, here, there = np.intersect1d(group.index, outcomes.index, assume_unique=True, return_indices=True)
    if not len(index) or not np.array_equal(group.label[here], outcomes.label[there]):
        return None
    return index, group.label[here]


def _restrict(group: Group, core: str | os.PathLike[str] | None) -> None:
    restricted = []
    for result in group.results:
        left_out = len(result.outcomes) - len(group.index)
        if result.prefix is not None or result.settings.composed:
            _add_components(group, result, core)
        if left_out:
            group.notes.append(
                f"{result.name} is compared over {len(group.index)} of its {len(result.outcomes)} inputs, those that "
                f"all runs here share; the other {left_out} are left out."
            )
        restricted.append(result.restrict(group.index) if left_out else result)
    group.results = restricted


def _add_components(group: Group, result: Result, core: str | os.PathLike[str] | None) -> None:
    if result.prefix is not None:
        group.components[result.path] = load_components(result, core).restrict(group.index)
        return
    note = ""
    for asked in (None, core):  # the core that the run asked comes first: its stored answers are about that one
        try:
            group.components[result.path] = load_components(result, asked).restrict(group.index)
            return
        except UsageError as error:
            note = str(error)
    group.notes.append(f"{result.name}: the thresholds of ACES cannot be shown. {note}")
