"""Pictures of what a setting does: robustness of runs over the value of a hyper-parameter."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from smoothcert.report.figures.style import COLOURS, DASHES, canvas, entry, finished, plain
from smoothcert.report.metrics import NORM_TEXT, average_certified_radius, axis_norm, certified_accuracy, common_norm
from smoothcert.report.notes import markers, subjects
from smoothcert.report.tables.accuracy import default_radii
from smoothcert.store import Outcomes
from smoothcert.types import UsageError, unknown_name

BARS = ("range", "sd")
"""What the bars of values that several runs share span: lowest to highest, or a standard deviation to both sides."""

SETTING_TEXT = {
    "noise.sigma": "noise level σ (units of the input)",
    "noise.lam": "noise level λ (units of the input)",
    "procedure.n": "estimation samples n",
    "procedure.alpha": "probability of a wrong certificate α",
}
"""How usual settings are written below an axis."""

_MOST_CURVES = 4
_MARKERS = "osD^vP*X"


@dataclass(frozen=True, eq=False)
class _Scale:
    """Where the values of a setting lie on an axis.

    Attributes:
        values: The distinct values, in order; names as text.
        places: Their places.
        log: Whether the axis is logarithmic.
        named: Whether the values are names, not numbers.
    """

    values: list[Any]
    places: NDArray[np.float64]
    log: bool = False
    named: bool = False


def effect_figure(
    runs: Sequence[tuple[Any, Outcomes]],
    setting: str,
    *,
    radii: Sequence[float] | None = None,
    bars: str = "range",
    title: str | None = None,
) -> Figure:
    """Draw the average certified radius, and the certified accuracy at some radii, over the value of a setting.

    Runs that share a value are averaged, and a bar shows how they spread. As Figures 5 and 12 of Horváth et al. (2022),
    Boosting randomized smoothing, which vary the size of an ensemble, and the ablations of Jeong et al. (2023).

    Args:
        runs: Each run with its value: numbers, or names, which stand side by side.
        setting: The name of the setting.
        radii: The radii of certified accuracy; by default at most four.
        bars: ``range`` for lowest to highest, ``sd`` for ± one standard deviation (of the sample).

    Returns:
        A figure of its own: the ACR on the left, certified accuracies on the right. The axis of the setting is
        logarithmic where its values span more than a factor of ten.
    """
    outcomes = [run for _, run in runs]
    norm = common_norm(outcomes)
    if bars not in BARS:
        raise unknown_name("kind of bars", bars, BARS)
    scale = _scale([value for value, _ in runs])
    if len(scale.values) < 2:
        raise UsageError(f"all runs have {setting} = {scale.values[0]}; name runs that differ in it.")
    chosen = _usual_radii(outcomes) if radii is None else tuple(radii)
    labels = [f"{NORM_TEXT[norm]} radius {radius:g}" for radius in chosen]
    shared = len(runs) > len(scale.values)
    columns = 4
    kinds = list(dict.fromkeys(marker.strip() for marker in markers(subjects(outcomes)) if marker))
    entries = len(chosen) + shared + bool(kinds)
    figure, (left, right) = canvas(2, width=9.0, height=3.6 + 0.22 * -(-entries // columns))
    groups = [[run for given, run in runs if (str(given) if scale.named else given) == value] for value in scale.values]
    _curve(left, scale, groups, average_certified_radius, 0, bars, "ACR")
    handles: list[object] = []
    for number, (radius, label) in enumerate(zip(chosen, labels, strict=True)):
        handles += _curve(right, scale, groups, _percentage(radius), number, bars, label)
    for axes in (left, right):
        _label_setting(axes, scale, SETTING_TEXT.get(setting, setting))
    left.set_ylabel(f"average certified radius ({axis_norm(norm)})")
    left.set_ylim(bottom=0)
    right.set_ylabel("certified accuracy (%)")
    right.set_ylim(0, 102)
    if shared:
        words = "lowest to highest" if bars == "range" else "mean ± standard deviation"
        handles.append(left.errorbar([], [], [], color="0.4", capsize=3, linestyle="none", label=f"{words} of runs"))
    if kinds:  # curves go through runs of all kinds, so none of them can be marked by itself
        handles.append(Line2D([], [], linestyle="none", label=entry(f"runs: {' and '.join(kinds)}")))
    return finished(figure, handles, title, columns)


def _scale(values: Sequence[Any]) -> _Scale:
    """Numbers where they are, and names side by side in order of the alphabet."""
    distinct = list({str(value): value for value in values}.values())
    if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in distinct):
        distinct.sort(key=str)
        return _Scale([str(value) for value in distinct], np.arange(len(distinct), dtype=np.float64), named=True)
    distinct = sorted(set(distinct))  # 1 and 1.0 are one value
    places = np.array(distinct, dtype=np.float64)
    return _Scale(distinct, places, log=bool(places[0] > 0 and places[-1] > 10 * places[0]))


def _percentage(radius: float) -> Callable[[Outcomes], float]:
    return lambda run: 100 * float(certified_accuracy(run, radius)[0])


def _curve(
    axes: Axes,
    scale: _Scale,
    groups: Sequence[Sequence[Outcomes]],
    measure: Callable[[Outcomes], float],
    number: int,
    bars: str,
    label: str,
) -> list[Line2D]:
    """The mean of a measure at every value, with bars where several runs share one."""
    found = [np.array([measure(run) for run in group]) for group in groups]
    means = np.array([values.mean() for values in found])
    if bars == "sd":
        spread = np.array([values.std(ddof=1) if len(values) > 1 else 0.0 for values in found])
        below, above = spread, spread
    else:
        below = np.maximum(means - [values.min() for values in found], 0.0)  # a mean of equals may round past them
        above = np.maximum([values.max() for values in found] - means, 0.0)
    style: dict[str, Any] = {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "linewidth": 1.5,
    }
    if scale.named:
        style["linestyle"] = "none"  # between two names there is nothing
    several = np.array([len(values) > 1 for values in found])
    if several.any():
        bar: dict[str, Any] = {"fmt": "none", "ecolor": style["color"], "elinewidth": 1.2, "capsize": 3}
        axes.errorbar(scale.places[several], means[several], [below[several], above[several]], **bar)
    marker = _MARKERS[number % len(_MARKERS)]
    return axes.plot(scale.places, means, marker=marker, markersize=5, label=label, clip_on=False, **style)


def _label_setting(axes: Axes, scale: _Scale, text: str) -> None:
    axes.set_xlabel(entry(text, width=4.2))
    if scale.log:
        axes.set_xscale("log")
    elif scale.named:
        names = [textwrap.shorten(plain(value), 24, placeholder="…") for value in scale.values]
        upright = len(names) <= 4 and max(map(len, names)) <= 10
        axes.set_xticks(scale.places, names)
        if not upright:
            axes.tick_params(axis="x", labelrotation=35)
        axes.set_xlim(-0.5, len(names) - 0.5)


def _usual_radii(runs: Sequence[Outcomes]) -> tuple[float, ...]:
    """A few radii, evenly spaced, at which some run certifies an input."""
    usual = default_radii(runs)
    reached = [radius for radius in usual if max(certified_accuracy(run, radius)[0] for run in runs) > 0] or [0.0]
    places = np.linspace(0, len(reached) - 1, min(len(reached), _MOST_CURVES)).round().astype(int)
    return tuple(reached[place] for place in places)
