"""Rows of tables: runs that differ in their seeds share a row, and rows are grouped by noise scale."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from smoothcert.report.notes import Subject
from smoothcert.store import Outcomes
from smoothcert.store.result import SCALES


@dataclass(frozen=True)
class Row(Subject):
    """A run, or several that differ in their seeds only; with the noise scale as text where known, and a group."""

    scale: str = ""
    group: str = ""


def gather_seeds(runs: Sequence[Outcomes]) -> list[Row]:
    """Put runs into one row that differ only in the seed of the noise or of the training.

    They must be about the same inputs, and no two of them may have the same seeds: two checkpoints of one training are
    not two trainings. Rows are in the order of their first runs.
    """
    by_origin: dict[object, list[Outcomes]] = {}
    for number, run in enumerate(runs):
        alike = None if run.origin is None else run.origin.alike
        key = number if alike is None else (alike, run.index.tobytes())
        by_origin.setdefault(key, []).append(run)
    rows = []
    for found in by_origin.values():
        seeds = {run.origin.seeds if run.origin is not None else () for run in found}
        if len(found) > 1 and len(seeds) == len(found):
            rows.append(Row(f"{_common_name(found)} ({len(found)} seeds)", tuple(found), scale=_scale(found[0])))
        else:
            rows += separate_rows(found)
    return rows


def separate_rows(runs: Sequence[Outcomes]) -> list[Row]:
    """Make a row of every run."""
    return [Row(run.name, (run,), scale=_scale(run)) for run in runs]


def scale_heading(rows: Sequence[Row]) -> str:
    """Return σ, λ or keep; empty where a noise scale is unknown or the noises differ."""
    noises = {run.origin.noise if run.origin is not None else None for row in rows for run in row.runs}
    if len(noises) != 1 or not all(row.scale for row in rows):
        return ""
    return SCALES[str(noises.pop())][1]


def group_by_scale(rows: Sequence[Row]) -> list[Row]:
    """Sort rows by noise scale into groups, where there are several scales and one of them has several rows."""
    sizes = Counter(row.scale for row in rows)
    if not scale_heading(rows) or len(sizes) < 2 or max(sizes.values()) < 2:
        return list(rows)
    return sorted((replace(row, group=row.scale) for row in rows), key=lambda row: float(row.scale))


def _scale(run: Outcomes) -> str:
    if run.origin is None or run.origin.scale is None:
        return ""
    text = f"{run.origin.scale:.2f}"
    return text if float(text) == run.origin.scale else f"{run.origin.scale:g}"


def _common_name(runs: Sequence[Outcomes]) -> str:
    """Name runs of several seeds by their recipe, or by the common beginning of their names."""
    recipes = {run.origin.recipe if run.origin is not None else None for run in runs}
    recipe = recipes.pop() if len(recipes) == 1 else None
    beginning = os.path.commonprefix([run.name for run in runs])  # noqa: RUF071 (of characters)
    return recipe or re.sub(r"[-_. ]*(seed|s)?[-_. ]*$", "", beginning) or runs[0].name
