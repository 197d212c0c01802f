"""Metrics of certified robustness over a set of inputs: pure NumPy, no tolerance that could overstate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothcert.store.outcomes import Outcomes
from smoothcert.types import Norm, UsageError

NORM_TEXT: dict[Norm | None, str] = {
    Norm.L0: "ℓ0",
    Norm.L1: "ℓ1",
    Norm.L2: "ℓ2",
    Norm.LINF: "ℓ∞",
    None: "unknown-norm",
}
"""How a norm is written before the word radius, in headings and sentences."""

_MOST_RADII = 1000


def axis_norm(norm: Norm | None) -> str:
    """How a norm is written in brackets, as in the labels of axes."""
    return "norm unknown" if norm is None else NORM_TEXT[norm]


def certified_counts(outcomes: Outcomes, radii: ArrayLike) -> NDArray[np.int64]:
    """Count the inputs whose certified class is right and whose radius is at least r, for every r in ``radii``."""
    wanted = np.atleast_1d(np.asarray(radii, dtype=np.float64))
    if not (wanted >= 0).all():
        raise UsageError("the radii of certified accuracy must be numbers, 0 or larger.")
    proved = np.sort(outcomes.radius[outcomes.correct])
    return np.asarray(len(proved) - np.searchsorted(proved, wanted, side="left"), dtype=np.int64)


def certified_accuracy(outcomes: Outcomes, radii: ArrayLike) -> NDArray[np.float64]:
    """The share of inputs whose certified class is right and whose radius is at least r, for every r in ``radii``.

    Args:
        outcomes: The run.
        radii: The radii r; at 0 every right answer counts, and an abstention is not one.

    Returns:
        One share in [0, 1] per radius.

    Example:
        >>> run = Outcomes("run", [0, 1, 2, 3], [5, 5, 5, 5], [5, 5, 7, -1], [0.5, 0.2, 0.9, 0.0])
        >>> certified_accuracy(run, [0, 0.25, 0.5, 0.75]).tolist()
        [0.5, 0.25, 0.25, 0.0]
    """
    return certified_counts(outcomes, radii) / len(outcomes)


def clean_accuracy(outcomes: Outcomes) -> float:
    """The certified accuracy at radius 0."""
    return float(outcomes.correct.mean())


def average_certified_radius(outcomes: Outcomes) -> float:
    """ACR: the mean over **all** inputs of the radius where the answer is right, and of 0 where it is not."""
    return math.fsum(outcomes.radius[outcomes.correct]) / len(outcomes)


def acr_text(value: float) -> str:
    """An ACR with three decimals: an average, not a certificate, so rounded to the nearest as the papers print it.

    Example:
        >>> acr_text(0.53753288)
        '0.538'
    """
    return str(Decimal(repr(float(value))).quantize(Decimal("0.001"), rounding=ROUND_HALF_EVEN))


def abstention_rate(outcomes: Outcomes) -> float:
    """The share of inputs without a certified class."""
    return float(outcomes.abstained.mean())


def curve(outcomes: Outcomes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Certified accuracy as an exact step function.

    Returns:
        ``(radii, accuracy)``: radii are 0 and every distinct radius of a right answer, ascending. ``accuracy[i]`` holds
        for r in (``radii[i - 1]``, ``radii[i]``], and beyond the last radius the accuracy is 0.

    Example:
        >>> run = Outcomes("run", [0, 1, 2, 3], [5, 5, 5, 5], [5, 5, 7, -1], [0.5, 0.2, 0.9, 0.0])
        >>> [values.tolist() for values in curve(run)]
        [[0.0, 0.2, 0.5], [0.5, 0.5, 0.25]]
    """
    radii = np.union1d(0.0, outcomes.radius[outcomes.correct])
    return radii, certified_accuracy(outcomes, radii)


def envelope(runs: Sequence[Outcomes]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The best certified accuracy of several runs at every radius, as the exact step function of :func:`curve`.

    It is what the runs could reach if the best one were known for each radius beforehand, not what any one of them
    reaches (Alfarra et al., 2022, Figs. 2 to 6, over noise scales and numbers of steps).

    Args:
        runs: The outcomes of runs over the same inputs, in one norm.

    Returns:
        ``(radii, accuracy)`` as in :func:`curve`.

    Example:
        >>> a = Outcomes("a", [0, 1], [5, 5], [5, 7], [0.9, 0.9])
        >>> b = Outcomes("b", [0, 1], [5, 5], [5, 5], [0.2, 0.3])
        >>> [values.tolist() for values in envelope([a, b])]
        [[0.0, 0.2, 0.3, 0.9], [1.0, 1.0, 0.5, 0.5]]
    """
    common_norm(runs)
    for run in runs[1:]:
        if not np.array_equal(np.sort(run.index), np.sort(runs[0].index)):
            raise UsageError(
                f"{run.name} is about other inputs than {runs[0].name}; an envelope is over the same ones."
            )
    radii = np.unique(np.concatenate([curve(run)[0] for run in runs]))
    return radii, np.max([certified_accuracy(run, radii) for run in runs], axis=0)


def parse_radii(text: str) -> tuple[float, ...]:
    """Radii from text: ``start:stop:step`` with the stop included, or a comma-separated list.

    Args:
        text: For example ``0:2:0.25`` or ``0,0.5,1``.

    Returns:
        The radii; a grid is laid in decimal arithmetic, so no error builds up.

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
            raise UsageError(f"radii {text!r} must go up in steps above 0, at most {_MOST_RADII} of them.")
        values = [start + i * step for i in range(int((stop - start) // step) + 1)]
    radii = tuple(float(value) for value in values)
    if len(set(radii)) < len(radii) or not all(math.isfinite(radius) for radius in radii):
        raise UsageError(f"radii {text!r} must be finite and each given once.")
    return radii


def common_norm(runs: Sequence[Outcomes]) -> Norm | None:
    """The norm that all runs share as far as it is known, so that their radii can stand side by side.

    Returns:
        The norm; None where no run tells it. A run that does not tell it may be shown with others of one norm, but must
        be marked: see ``notes``.
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
