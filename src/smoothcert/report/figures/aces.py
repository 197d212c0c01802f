"""Figures of ACES: robustness over natural accuracy, the radii of the selection, and the selector's scores.

After Figures 1 to 9 of Horváth, Müller, Fischer and Vechev (2022). Save them by ``style.save_figure``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from smoothcert.report.aces import TABULATED, Components, FloatArray, Single, pareto, signed_selection_radius
from smoothcert.report.figures.style import (
    COLOURS,
    MARKERS,
    Picture,
    canvas,
    dashed,
    finished,
    line_style,
    plain,
    require,
)
from smoothcert.report.metrics import (
    NORM_TEXT,
    average_certified_radius,
    axis_norm,
    certified_accuracy,
    check_same_inputs,
    common_norm,
)
from smoothcert.report.notes import markers, subjects
from smoothcert.types import UsageError

_BINS = 25
_SIDE = 0.01
_NEAR = 0.07


def pareto_figure(
    runs: Sequence[Components],
    singles: Sequence[Single] = (),
    *,
    radius: float | None = None,
    places: Sequence[int] | None = None,
    title: str | None = None,
) -> Picture:
    """Draw robustness over natural accuracy, a curve over all thresholds per composition (Figures 1, 2, 4, 5, 8, 9).

    Dots are the thresholds of the paper's tables, the square is the lowest one, where (nearly) only the core answers;
    other markers are single smoothed classifiers, numbered where there are several. Without compositions it is the
    trade-off of Figures 4 and 5 of Jeong et al. (2023). Robustness is certified accuracy at ``radius``, or the ACR.
    ``places`` are numbers for the colours of all, as other figures of the same results have them; by default in order.
    """
    everyone = [run.certifier for run in runs] + [single.outcomes for single in singles]
    norm = common_norm(everyone)
    check_same_inputs(everyone)
    scale = 1.0 if radius is None else 100.0
    marked = markers(subjects(everyone))
    dotted = " (θ next to dots)" if len(runs) == 1 else ""
    names = [plain(f"ACES, {run.name}{marker}{dotted}") for run, marker in zip(runs, marked, strict=False)]
    for number, (single, marker) in enumerate(zip(singles, marked[len(runs) :], strict=True), 1):
        names.append(plain(f"{number}: " * (len(singles) > 1) + single.outcomes.name + marker))
    figure, (axes,) = canvas(height=3.9)
    handles = []
    numbers = range(len(everyone)) if places is None else places
    for number, run in enumerate(runs):
        style = line_style(numbers[number])
        natural, robust = pareto(run, radius)
        x, y = 100 * natural, scale * robust
        dots = np.isclose(run.thetas[:, None], TABULATED, rtol=0, atol=1e-9).any(axis=1)
        axes.plot(x, y, **style)
        axes.plot(x[dots], y[dots], "o", color=style["color"], markersize=5, clip_on=False)
        axes.plot(x[:1], y[:1], "s", color=style["color"], markersize=8, clip_on=False)
        if len(runs) == 1:
            _name_dots(axes, run.thetas[dots], x[dots], y[dots])
        handles.append(Line2D([], [], marker="o", label=names[number], **style))
    points = []
    for number, single in enumerate(singles):
        outcomes, marker = single.outcomes, MARKERS[2 + number % (len(MARKERS) - 2)]
        value = average_certified_radius(outcomes) if radius is None else certified_accuracy(outcomes, radius)[0]
        points.append((100 * single.natural, scale * float(value)))
        colour = COLOURS[numbers[len(runs) + number] % len(COLOURS)]
        look: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": "none"}
        axes.plot([points[-1][0]], [points[-1][1]], markersize=8, clip_on=False, **look)
        handles.append(Line2D([], [], label=names[len(runs) + number], **look))
    if len(singles) > 1:
        _number_points(axes, points)
    measure = "average certified radius" if radius is None else f"certified accuracy (%) at radius {radius:g}"
    axes.set(xlabel="natural accuracy (%)", ylabel=f"{measure} ({axis_norm(norm)})")
    axes.margins(x=0.07, y=0.07)
    low, high = axes.get_xlim()
    room = max(1.0 - (high - low) / 2, 0.0)  # the axis spans at least two percentage points
    axes.set_xlim(low - room, min(high + room, 100.5))
    axes.set_ylim(bottom=0)
    return finished(figure, handles, title)


def selection_figure(components: Components, thetas: Sequence[float], *, title: str | None = None) -> Picture:
    """Draw the certified radius of the selection over the inputs, sorted, a curve per threshold (Figure 6).

    A positive radius is a certified choice of the certifier, a negative one of the core, 0 an abstention.
    """
    require(thetas, "thresholds")
    figure, (axes,) = canvas(height=3.9)
    axes.axhline(0.0, color="0.4", linewidth=0.7)
    handles = []
    for number, theta in enumerate(thetas):
        radii = np.sort(signed_selection_radius(components, theta))
        places, heights = np.linspace(0, 100, len(radii) + 1), np.append(radii, radii[-1])
        handles += axes.step(places, heights, where="post", label=f"θ = {theta:g}", **line_style(number))
    most = float(components.choice_radius.max()) or 1.0
    label = f"certified radius of the selection ({axis_norm(components.certifier.norm)})\n← core        certifier →"
    axes.set(xlim=(0, 100), ylim=(-1.06 * most, 1.06 * most), xlabel="percentile of inputs (%)", ylabel=label)
    return finished(figure, handles, title, columns=4)


def entropy_figure(
    components: Components, radius: float, *, theta: float | None = None, title: str | None = None
) -> Picture:
    """Draw how many inputs the certifier certifies correctly at a radius, over their median entropy (Figure 3).

    Inputs to the left of a threshold ``theta`` (mostly) go to the certifier.
    """
    if components.median is None:
        raise UsageError(f"{components.name} has no median entropies; put its log _entropies next to the others.")
    if not radius >= 0:
        raise UsageError(f"a radius must be a number of at least 0, not {radius:g}.")
    known = np.isfinite(components.median)
    certified = components.certifier.correct & (components.certifier.radius >= radius)
    end = max(float(components.median[known].max(initial=0.0)), theta or 0.0)
    edges = np.linspace(0.0, min(1.0, max(1.02 * end, 0.1)), _BINS + 1)
    figure, (axes,) = canvas(height=4.1)
    bottom = np.zeros(_BINS)
    handles: list[Artist] = []
    name = f"certified correctly ({NORM_TEXT[components.certifier.norm]} radius {radius:g})"
    for part, label, colour in ((certified, name, COLOURS[0]), (~certified, "not certified correctly", COLOURS[1])):
        counts, _ = np.histogram(components.median[part & known], bins=edges)
        share = 100 * counts / len(certified)
        axes.bar(edges[:-1], share, np.diff(edges), bottom, align="edge", color=colour, edgecolor="white")
        handles.append(Patch(color=colour, label=label))
        bottom = bottom + share
    if theta is not None:
        handles.append(
            axes.axvline(theta, color="0.2", linewidth=1.5, linestyle=dashed("--", 1.5), label=f"θ = {theta:g}")
        )
    label = "median of the selector's score (entropy, base: number of classes)"
    axes.set(xlim=(-_SIDE * edges[-1], (1 + _SIDE) * edges[-1]), xlabel=label, ylabel="share of inputs (%)")
    return finished(figure, handles, title)


def _name_dots(axes: Axes, thetas: FloatArray, x: FloatArray, y: FloatArray) -> None:
    """Write θ next to dots that are far enough from the last named one."""
    size = np.array([np.ptp(x) or 1.0, np.ptp(y) or 1.0])
    last = np.full(2, np.inf)
    for theta, *place in zip(thetas, x, y, strict=True):
        here = np.array(place) / size
        if not np.abs(here - last).max() < 0.1:
            axes.annotate(f"{theta:g}", (place[0], place[1]), (5, 3), textcoords="offset points", fontsize="small")
            last = here


def _number_points(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Write the number of every point next to it; of points that nearly coincide, all numbers next to the first."""
    places = np.array(points)
    size = np.maximum(np.ptp(places, axis=0), 1e-9)
    met: dict[int, list[int]] = {}
    for number, place in enumerate(places):
        near = next((first for first in met if (np.abs(places[first] - place) / size < _NEAR).all()), number)
        met.setdefault(near, []).append(number + 1)
    for first, numbers in met.items():
        text = ", ".join(map(str, numbers))
        axes.annotate(text, points[first], (7, 4), textcoords="offset points", fontsize="small", annotation_clip=False)
