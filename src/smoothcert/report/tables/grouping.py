"""Which runs make one line of a table, and which lines one group: seeds together, noise scales apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from smoothcert.store import Outcomes
from smoothcert.store.result import SCALES


@dataclass(frozen=True)
class Gathered:
    """Runs that are shown as one: a single run, or several that differ in their seeds only.

    Attributes:
        name: The name of the line.
        runs: The runs.
        scale: The scale of their noise as text, where it is known.
    """

    name: str
    runs: tuple[Outcomes, ...]
    scale: str = ""


def gather_seeds(runs: Sequence[Outcomes]) -> list[Gathered]:
    """Put runs together that differ in nothing but the seed of the noise or of the training.

    They must be about the same inputs, and no two of them may have the same seeds: two checkpoints of one training are
    not two trainings.

    Args:
        runs: The outcomes of the runs.

    Returns:
        The lines in the order of their first runs; a line of several is named with the number of seeds.
    """
    by_origin: dict[object, list[Outcomes]] = {}
    for number, run in enumerate(runs):
        alike = None if run.origin is None else run.origin.alike
        key = number if alike is None else (alike, run.index.tobytes())
        by_origin.setdefault(key, []).append(run)
    lines = []
    for found in by_origin.values():
        seeds = {run.origin.seeds if run.origin is not None else () for run in found}
        if len(found) > 1 and len(seeds) == len(found):
            lines.append(Gathered(f"{_common_name(found)} ({len(found)} seeds)", tuple(found), _scale(found[0])))
        else:
            lines += apart(found)
    return lines


def apart(runs: Sequence[Outcomes]) -> list[Gathered]:
    """Every run as a line of its own."""
    return [Gathered(run.name, (run,), _scale(run)) for run in runs]


def scale_heading(lines: Sequence[Gathered]) -> str:
    """The heading of the scales of the lines' noises: σ, λ or keep; empty where a scale is not known, or noises differ.

    Example:
        >>> scale_heading([Gathered("log", ())])
        ''
    """
    noises = {run.origin.noise if run.origin is not None else None for line in lines for run in line.runs}
    if len(noises) != 1 or not all(line.scale for line in lines):
        return ""
    return SCALES[str(noises.pop())][1]


def group_by_scale(lines: Sequence[Gathered]) -> tuple[str, list[tuple[str, Gathered]]]:
    """Group lines by the scale of their noise, where there are several scales and one of them has several lines.

    Returns:
        The heading of the groups, empty without groups; and each line after the name of its group, by scale.
    """
    heading = scale_heading(lines)
    sizes = Counter(line.scale for line in lines)
    if not heading or len(sizes) < 2 or max(sizes.values()) < 2:
        return "", [("", line) for line in lines]
    return heading, sorted(((line.scale, line) for line in lines), key=lambda pair: float(pair[0]))


def _scale(run: Outcomes) -> str:
    if run.origin is None or run.origin.scale is None:
        return ""
    text = f"{run.origin.scale:.2f}"
    return text if float(text) == run.origin.scale else f"{run.origin.scale:g}"


def _common_name(runs: Sequence[Outcomes]) -> str:
    """What runs of several seeds have in common: their recipe, or the beginning of their names."""
    recipes = {run.origin.recipe if run.origin is not None else None for run in runs}
    recipe = recipes.pop() if len(recipes) == 1 else None
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*(run.name for run in runs), strict=False))
    beginning = "".join(letters[0] for letters in alike)
    return recipe or re.sub(r"[-_. ]*(seed|s)?[-_. ]*$", "", beginning) or runs[0].name
