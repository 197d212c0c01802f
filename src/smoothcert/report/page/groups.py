"""Which runs can stand side by side on the report page, and over which inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from smoothcert.report.metrics import axis_norm
from smoothcert.report.page.sources import Source
from smoothcert.types import Norm


@dataclass(eq=False)
class Group:
    """Runs in one norm over common inputs.

    Attributes:
        norm: The norm of all radii, as far as it is known.
        sources: The runs; after :func:`groups`, restricted to the common inputs.
        index: The common inputs.
        label: Their true classes.
        notes: What was left out, in sentences.
    """

    norm: Norm | None
    sources: list[Source]
    index: NDArray[np.int64]
    label: NDArray[np.int64]
    notes: list[str] = field(default_factory=list)

    @property
    def dataset(self) -> tuple[str, str] | None:
        """Name and split of the dataset, where a run tells them."""
        known = [identity for source in self.sources if (identity := dataset_identity(source)) is not None]
        return (known[0][0], known[0][1]) if known else None

    @property
    def title(self) -> str:
        where = f", {' '.join(self.dataset).strip()}" if self.dataset else ""
        runs = self.sources[0].name if len(self.sources) == 1 else f"{len(self.sources)} runs"
        return f"{axis_norm(self.norm)}{where}: {runs}"


def dataset_identity(source: Source) -> tuple[str, str, str] | None:
    """Name, split and size of the dataset of a run, as text; None where it is not known."""
    data = source.config.get("data")
    if not isinstance(data, dict) or "name" not in data:
        return None
    return str(data["name"]), str(data.get("split") or ""), str(data.get("size", ""))


def groups(sources: Sequence[Source]) -> list[Group]:
    """Put runs together that share a norm, a dataset and inputs of the same labels.

    Each run joins the first group it fits. A group is about the inputs that all its runs share; what its runs have
    beyond them is left out, and said so in its notes. Runs in different norms are shown apart; one whose norm is
    unknown is shown with others, marked, only if all that tell their norm have the same one.

    Args:
        sources: The runs.

    Returns:
        The groups, by the order of their first run.
    """
    found: list[Group] = []
    known = {source.outcomes.norm for source in sources} - {None}
    for source in sources:
        norm = source.outcomes.norm or (next(iter(known)) if len(known) == 1 else None)
        for group in found:
            if group.norm is norm and (common := _common(group, source)) is not None:
                group.sources.append(source)
                group.index, group.label = common
                break
        else:
            found.append(Group(norm, [source], source.outcomes.index, source.outcomes.label))
    for group in found:
        if all(source.outcomes.norm is None for source in group.sources):
            group.norm = None
        _restrict(group)
    return found


def _common(group: Group, source: Source) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """The inputs that a run shares with a group, with their labels; None where they do not belong together."""
    outcomes = source.outcomes
    mine = dataset_identity(source)
    for other in group.sources:
        theirs = dataset_identity(other)
        if mine is not None and theirs is not None and mine != theirs:
            return None
    index, here, there = np.intersect1d(group.index, outcomes.index, assume_unique=True, return_indices=True)
    if not len(index) or not np.array_equal(group.label[here], outcomes.label[there]):
        return None
    return index, group.label[here]


def _restrict(group: Group) -> None:
    restricted = []
    for source in group.sources:
        if source.note:
            group.notes.append(f"{source.name}: the thresholds of ACES cannot be shown. {source.note}")
        left_out = len(source.outcomes) - len(group.index)
        if left_out:
            group.notes.append(
                f"{source.name} is compared over {len(group.index)} of its {len(source.outcomes)} inputs, those that "
                f"all runs here share; the other {left_out} are left out."
            )
        restricted.append(source.restricted(group.index) if left_out else source)
    group.sources = restricted
