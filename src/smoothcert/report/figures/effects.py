"""Figures of the effect of a setting: robustness of runs over the value of a hyper-parameter."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from smoothcert.report.figures.style import MARKERS, Picture, canvas, finished, line_style, plain, wrapped_label
from smoothcert.report.metrics import (
    NORM_TEXT,
    average_certified_radius,
    axis_norm,
    certified_accuracy,
    common_norm,
    radii_or_default,
)
from smoothcert.report.notes import markers, subjects
from smoothcert.store import Outcomes
from smoothcert.types import UsageError, unknown_name

BARS = {"range": "lowest to highest", "sd": "mean ± standard deviation"}
"""What the bars of values that several runs share can span."""

SETTING_TEXT = {
    "noise.sigma": "noise level σ (units of the input)",
    "noise.lam": "noise level λ (units of the input)",
    "procedure.n": "estimation samples n",
    "procedure.alpha": "probability of a wrong certificate α",
}
"""The axis labels of usual settings."""

_MOST_CURVES = 4
_ACR = "0.2"  # dark grey, which no curve on the right has


def effect_figure(
    runs: Sequence[tuple[Any, Outcomes]],
    setting: str,
    *,
    radii: Sequence[float] | None = None,
    bars: str = "range",
    title: str | None = None,
) -> Picture:
    """Draw the ACR (left) and the certified accuracy at some radii (right) over the value of a setting.

    Each run comes with its value, a number or a name. Runs that share a value are averaged, and bars, a name in
    ``BARS``, show their spread. As Figures 5 and 12 of Horváth et al. (2022), Boosting randomized smoothing, which vary
    the size of an ensemble, and the ablations of Jeong et al. (2023).
    """
    outcomes = [run for _, run in runs]
    norm = common_norm(outcomes)
    if bars not in BARS:
        raise unknown_name("kind of bars", bars, BARS)
    named = any(isinstance(value, bool) or not isinstance(value, (int, float)) for value, _ in runs)
    values = [str(value) if named else value for value, _ in runs]
    distinct = sorted(set(values))
    if len(distinct) < 2:
        raise UsageError(f"all runs have {setting} = {distinct[0]}; name runs that differ in it.")
    places = np.arange(len(distinct), dtype=np.float64) if named else np.array(distinct, dtype=np.float64)
    groups = [[run for value, run in zip(values, outcomes, strict=True) if value == each] for each in distinct]
    chosen = radii_or_default(outcomes, radii, _MOST_CURVES)
    shared = len(runs) > len(distinct)
    kinds = list(dict.fromkeys(marker.strip() for marker in markers(subjects(outcomes)) if marker))
    figure, (left, right) = canvas(2, width=9.0, height=3.6)
    acr = [[average_certified_radius(run) for run in group] for group in groups]
    _curve(left, places, _spread(acr, bars), 0, "ACR", named, colour=_ACR)
    handles: list[object] = []
    for number, radius in enumerate(chosen):
        accuracy = [[100 * float(certified_accuracy(run, radius)[0]) for run in group] for group in groups]
        label = f"{NORM_TEXT[norm]} radius {radius:g}"
        handles += _curve(right, places, _spread(accuracy, bars), number, label, named)
    for axes in (left, right):
        axes.set_xlabel(wrapped_label(SETTING_TEXT.get(setting, setting), 3.2))
        if named:
            _name_ticks(axes, distinct)
        elif places[0] > 0 and places[-1] > 10 * places[0]:
            axes.set_xscale("log")
    left.set_ylabel(f"average certified radius ({axis_norm(norm)})")
    left.set_ylim(bottom=0)
    right.set(ylabel="certified accuracy (%)", ylim=(0, 102))
    if shared:
        label = f"{BARS[bars]} of runs"
        handles.append(left.errorbar([], [], [], color="0.4", capsize=3, linestyle="none", label=label))
    if kinds:  # curves go through runs of all kinds, so none of them can be marked by itself
        handles.append(Line2D([], [], linestyle="none", label=plain(f"runs: {' and '.join(kinds)}")))
    return finished(figure, handles, title, columns=4)


def _spread(groups: Sequence[Sequence[float]], bars: str) -> NDArray[np.float64]:
    """Compute for every group of runs the mean and the lengths of the bar, NaN for a single run."""
    found = []
    for values in map(np.array, groups):
        mean = values.mean()
        below, above = mean - values.min(), values.max() - mean
        if bars == "sd" and len(values) > 1:
            below = above = values.std(ddof=1)
        # A mean of equal values may round past them.
        found.append((mean, max(below, 0.0), max(above, 0.0)) if len(values) > 1 else (mean, np.nan, np.nan))
    return np.array(found)


def _curve(
    axes: Axes,
    places: NDArray[np.float64],
    found: NDArray[np.float64],
    number: int,
    label: str,
    named: bool,
    colour: str | None = None,
) -> list[Line2D]:
    style = line_style(number, 1.5)
    style["color"] = colour or style["color"]
    several = np.isfinite(found[:, 1])
    if several.any():
        bar: dict[str, Any] = {"fmt": "none", "ecolor": style["color"], "elinewidth": 1.2, "capsize": 3}
        axes.errorbar(places[several], found[several, 0], found[several, 1:].T, **bar)
    if named:
        style["linestyle"] = "none"  # there is nothing between two names
    marker = MARKERS[number % len(MARKERS)]
    return axes.plot(places, found[:, 0], marker=marker, markersize=5, label=label, clip_on=False, **style)


def _name_ticks(axes: Axes, values: Sequence[str]) -> None:
    names = [textwrap.shorten(plain(value), 24, placeholder="…") for value in values]
    axes.set_xticks(range(len(names)), names)
    axes.set_xlim(-0.5, len(names) - 0.5)
    if len(names) > 4 or max(map(len, names)) > 10:
        axes.tick_params(axis="x", labelrotation=35)
