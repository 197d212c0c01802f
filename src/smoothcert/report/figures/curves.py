"""Figures of certified accuracy over the radius."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from smoothcert.report.figures.style import Picture, canvas, finished, line_style, plain
from smoothcert.report.intervals import wilson_interval
from smoothcert.report.metrics import (
    acr_text,
    average_certified_radius,
    axis_norm,
    certified_counts,
    common_norm,
    curve,
    envelope,
)
from smoothcert.report.notes import markers, subjects
from smoothcert.store import Outcomes
from smoothcert.types import Norm, unknown_name

_ENVELOPE = "#f2d34b"  # yellow, where the palette has none
_FARTHEST_LIMIT = 1.4


def certified_accuracy_figure(
    runs: Sequence[Outcomes],
    *,
    limits: Mapping[str, float] | None = None,
    best: bool = False,
    intervals: bool = False,
    title: str | None = None,
) -> Picture:
    """Draw certified accuracy over the radius, one exact step curve per run.

    As Figures 2 and 3 of Jeong et al. (2023), which also show the fall at the sampling limit; with ``best`` as the
    envelopes in Figures 2 to 6 of Alfarra et al. (2022).

    Args:
        limits: For runs by name, the largest radius their number of samples could prove; drawn as a thin vertical line,
            if it is at most 1.4 times the largest radius.
        best: Whether to draw the envelope: the best of the runs at every radius.
        intervals: Whether to shade Wilson's 95 % interval of every accuracy, over the sample of test inputs.
    """
    norm = common_norm(runs)
    limits = limits or {}
    for name in limits:
        if name not in {run.name for run in runs}:
            raise unknown_name("run", name, {run.name for run in runs})
    shown = subjects(runs)
    labels = [
        plain(f"{run.name}{marker} (ACR {acr_text(average_certified_radius(run))})")
        for run, marker in zip(runs, markers(shown), strict=True)
    ]
    largest = max(float(run.radius.max()) for run in runs)
    limits = {name: limit for name, limit in limits.items() if limit <= _FARTHEST_LIMIT * largest}
    figure, (axes,) = canvas(height=3.9)
    handles: list[Artist] = []
    if best:
        radii, accuracy = envelope(runs)
        area = float((accuracy[1:] * np.diff(radii)).sum())  # of one run, this is its ACR
        mixed = " of different guarantees" if len({each.rank for each in shown}) > 1 else ""
        ends, heights = np.append(radii, radii[-1]), 100 * np.append(accuracy, 0.0)
        label = f"envelope{mixed} (area {acr_text(area)})"
        handles += axes.step(ends, heights, where="pre", color=_ENVELOPE, linewidth=6, label=label)
    for number, run in enumerate(runs):
        style = line_style(number)
        radii, accuracy = curve(run)
        # ``pre``: the value at a radius holds to its left; the last point is the fall to 0.
        ends, heights = np.append(radii, radii[-1]), 100 * np.append(accuracy, 0.0)
        handles += axes.step(ends, heights, where="pre", label=labels[number], **style)
        if intervals:
            bounds = [wilson_interval(count, len(run)) for count in certified_counts(run, radii).tolist()]
            low, high = 100 * np.transpose(bounds)
            axes.fill_between(radii, low, high, step="pre", color=style["color"], alpha=0.18, linewidth=0)
        if run.name in limits:
            axes.axvline(limits[run.name], color=style["color"], linewidth=0.7, zorder=1)
    if limits:
        handles.append(Line2D([], [], color="0.4", linewidth=0.7, label="sampling limit"))
    if intervals:
        handles.append(Patch(facecolor="0.4", alpha=0.3, label="95 % interval (test sample)"))
    right = 1.04 * max([largest, *limits.values()]) or 1.0
    left = 0.0
    if norm is Norm.L0:  # whole numbers; the fall just above 0 would hide behind the axis
        left = -0.02 * right
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlim=(left, right), ylim=(0, 102))
    axes.set(xlabel=f"certified radius ({axis_norm(norm)})", ylabel="certified accuracy (%)")
    return finished(figure, handles, title)
