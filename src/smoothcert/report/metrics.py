"""Curves, envelopes and default radii; the metrics themselves are those of ``store.metrics``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

import numpy as np
from numpy.typing import NDArray

from smoothcert.store.metrics import average_certified_radius as average_certified_radius
from smoothcert.store.metrics import certified_accuracy as certified_accuracy
from smoothcert.store.metrics import certified_counts as certified_counts
from smoothcert.store.metrics import clean_accuracy as clean_accuracy
from smoothcert.store.outcomes import Outcomes
from smoothcert.types import Norm, UsageError

NORM_TEXT: dict[Norm | None, str] = {Norm.L0: "ℓ0", Norm.L1: "ℓ1", Norm.L2: "ℓ2", Norm.LINF: "ℓ∞", None: "unknown-norm"}
"""How a norm is written before the word radius, in headings and sentences."""

_MOST_RADII = 1000


def axis_norm(norm: Norm | None) -> str:
    """Write a norm for brackets, as in the labels of axes."""
    return "norm unknown" if norm is None else NORM_TEXT[norm]


def acr_text(value: float) -> str:
    """Write an ACR with three decimals: an average, not a certificate, so rounded to nearest as papers print it."""
    return str(Decimal(repr(float(value))).quantize(Decimal("0.001"), rounding=ROUND_HALF_EVEN))


def abstention_rate(outcomes: Outcomes) -> float:
    """Compute the share of inputs without a certified class."""
    return float(outcomes.abstained.mean())


def curve(outcomes: Outcomes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute certified accuracy as an exact step function.

    The radii are 0 and every distinct radius of a correct answer, ascending. ``accuracy[i]`` holds for r in
    (``radii[i - 1]``, ``radii[i]``], and beyond the last radius the accuracy is 0.

    Example:
        >>> run = Outcomes("run", [0, 1, 2, 3], [5, 5, 5, 5], [5, 5, 7, -1], [0.5, 0.2, 0.9, 0.0])
        >>> [values.tolist() for values in curve(run)]
        [[0.0, 0.2, 0.5], [0.5, 0.5, 0.25]]
    """
    radii = np.union1d(0.0, outcomes.radius[outcomes.correct])
    return radii, certified_accuracy(outcomes, radii)


def envelope(runs: Sequence[Outcomes]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute the best certified accuracy of several runs at every radius, as a step function like :func:`curve`.

    The runs could reach it if the best run for each radius were known beforehand; no single run reaches it (Alfarra et
    al., 2022, Figs. 2 to 6, over noise scales and numbers of steps).
    """
    common_norm(runs)
    check_same_inputs(runs)
    radii = np.unique(np.concatenate([curve(run)[0] for run in runs]))
    return radii, np.max([certified_accuracy(run, radii) for run in runs], axis=0)


def parse_radii(text: str) -> tuple[float, ...]:
    """Parse radii: ``start:stop:step`` with the stop included, computed in decimal arithmetic, or ``a,b,c``.

    Example:
        >>> parse_radii("0:0.9:0.3")
        (0.0, 0.3, 0.6, 0.9)
    """
    grid = ":" in text
    try:
        values = [Decimal(part.strip()) for part in text.split(":" if grid else ",")]
    except InvalidOperation:
        values = []
    if not values or (grid and len(values) != 3) or not all(v.is_finite() and v >= 0 for v in values):
        raise UsageError(f"radii {text!r} must read like 0:2:0.25 or 0,0.5,1, with numbers that are 0 or larger.")
    if grid:
        start, stop, step = values
        if not step or stop < start or stop - start >= _MOST_RADII * step:
            raise UsageError(f"radii {text!r} must increase in steps above 0, at most {_MOST_RADII} of them.")
        values = [start + i * step for i in range(int((stop - start) // step) + 1)]
    radii = tuple(float(value) for value in values)
    if len(set(radii)) < len(radii) or not all(math.isfinite(radius) for radius in radii):
        raise UsageError(f"radii {text!r} must be finite and each given once.")
    return radii


def radii_or_default(runs: Sequence[Outcomes], radii: Sequence[float] | None, most: int = 12) -> tuple[float, ...]:
    """Return the radii of a table or a figure: the given ones, or :func:`default_radii`."""
    if radii is None:
        return default_radii(runs, most)
    if not len(radii) or not all(radius >= 0 for radius in radii):
        raise UsageError("certified accuracy needs at least one radius, and radii must be numbers, 0 or larger.")
    return tuple(map(float, radii))


def default_radii(runs: Sequence[Outcomes], most: int = 12) -> tuple[float, ...]:
    """Choose at most ``most`` radii from 0 to the largest radius of a correct answer.

    The steps are 0.25, finer where all radii are below 0.75, and coarser where the radii would be too many. In ℓ0 the
    steps are whole, since a radius is a number of pixels.

    Example:
        >>> default_radii([Outcomes("run", [0], [5], [5], [1.1])])
        (0.0, 0.25, 0.5, 0.75, 1.0)
        >>> default_radii([Outcomes("run", [0], [5], [5], [0.021])])
        (0.0, 0.005, 0.01, 0.015, 0.02)
    """
    pixels = common_norm(runs) is Norm.L0
    largest = max(float(run.radius[run.correct].max(initial=0.0)) for run in runs)
    step = 1.0 if pixels else 0.25
    if not pixels and 1e-9 < largest < 0.75:
        power = 10.0 ** math.floor(math.log10(largest / 4))
        step = power * max(nice for nice in (1, 2, 2.5, 5) if nice * power <= largest / 4)
    while largest >= most * step:
        step *= 2
    return tuple(float(f"{step * i:.15g}") for i in range(int(largest / step) + 1))


def common_norm(runs: Sequence[Outcomes]) -> Norm | None:
    """Return the norm that all runs share, None where no run records it; refuse runs in different norms.

    A run whose norm is unknown may be shown with others of one norm, but must be marked: see ``notes``.
    """
    if not runs:
        raise UsageError("there are no runs to show.")
    first = next((run for run in runs if run.norm is not None), None)
    for run in runs:
        if first is not None and run.norm not in (None, first.norm):
            raise UsageError(
                f"{first.name} ({NORM_TEXT[first.norm]}) and {run.name} ({NORM_TEXT[run.norm]}) have radii in "
                "different norms and cannot be compared; show each norm by itself."
            )
    return None if first is None else first.norm


def check_same_inputs(runs: Sequence[Outcomes]) -> None:
    """Refuse runs over different inputs or labels."""
    for run in runs[1:]:
        if not np.array_equal(run.index, runs[0].index) or not np.array_equal(run.label, runs[0].label):
            raise UsageError(f"{run.name} is about other inputs than {runs[0].name}; show them separately.")
