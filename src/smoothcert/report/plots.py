"""Pictures of certified accuracy: matplotlib figures without global state."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from smoothcert.report.metrics import (
    NORM_TEXT,
    Outcomes,
    acr_text,
    average_certified_radius,
    common_norm,
    curve,
    envelope,
)
from smoothcert.report.style import COLOURS, DASHES, LABEL_WIDTH, plain
from smoothcert.types import unknown_name


def certified_accuracy_figure(
    runs: Sequence[Outcomes],
    *,
    limits: Mapping[str, float] | None = None,
    best: bool = False,
    title: str | None = None,
) -> Figure:
    """Draw certified accuracy over the radius, one exact step curve per run.

    Args:
        runs: The outcomes of the runs, all in one norm.
        limits: For runs by name, the largest radius their number of samples could prove; drawn as a thin vertical line.
        best: Whether to draw the envelope too: the best of the runs at every radius.
        title: A title above the picture.

    Returns:
        A figure of its own, to be saved by ``style.save_figure``.

    Raises:
        UsageError: If there are no runs, their norms differ, or a limit names no run.
    """
    norm = common_norm(runs)
    limits = limits or {}
    for name in limits:
        if name not in {run.name for run in runs}:
            raise unknown_name("run", name, {run.name for run in runs})
    entries = len(runs) + bool(limits) + best
    legend_columns = 1 if max(len(run.name) for run in runs) > 28 else min(entries, 2)
    legend_rows = -(-entries // legend_columns)
    figure = Figure(figsize=(6.4, 3.9 + 0.22 * legend_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    handles = []
    if best:
        radii, accuracy = envelope(runs)
        area = float((accuracy[1:] * np.diff(radii)).sum())  # of one run, this is its ACR
        ends, heights = np.append(radii, radii[-1]), 100 * np.append(accuracy, 0.0)
        label = f"envelope (area {acr_text(area)})"
        handles += axes.step(ends, heights, where="pre", color="0.8", linewidth=6, label=label)
    for number, run in enumerate(runs):
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        radii, accuracy = curve(run)
        # ``pre``: the value at a radius holds to its left; the last point is the fall to 0.
        (line,) = axes.step(
            np.append(radii, radii[-1]),
            100 * np.append(accuracy, 0.0),
            where="pre",
            color=colour,
            linestyle=dashes,
            linewidth=1.8,
            label=textwrap.fill(f"{plain(run.name)} (ACR {acr_text(average_certified_radius(run))})", LABEL_WIDTH),
        )
        handles.append(line)
        if run.name in limits:
            axes.axvline(limits[run.name], color=colour, linewidth=0.7, zorder=1)
    if limits:
        handles.append(Line2D([], [], color="0.4", linewidth=0.7, label="sampling limit"))
    right = max([float(run.radius.max()) for run in runs] + list(limits.values()))
    axes.set_xlim(0, 1.04 * right or 1)
    axes.set_ylim(0, 102)
    axes.set_xlabel(f"certified radius ({NORM_TEXT[norm]})")
    axes.set_ylabel("certified accuracy (%)")
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if title is not None:
        axes.set_title(textwrap.fill(plain(title), LABEL_WIDTH))
    figure.legend(handles=handles, loc="outside lower center", ncols=legend_columns, frameon=False, handlelength=3.2)
    return figure
