"""Pictures of certified accuracy: matplotlib figures without global state, saved whole or not at all."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from smoothcert.files import replacing
from smoothcert.report.metrics import NORM_TEXT, Outcomes, acr_text, average_certified_radius, common_norm, curve
from smoothcert.types import SmoothcertError, UsageError, unknown_name

# Okabe and Ito's palette without yellow, which is too pale on white; the dashes tell curves apart in grey. Seven
# colours and four dashes repeat together only after 28 curves.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
_DASHES = ("-", "--", "-.", ":")

_LABEL_WIDTH = 70
_FORMATS = {".png": "png", ".pdf": "pdf", ".svg": "svg"}


def certified_accuracy_figure(
    runs: Sequence[Outcomes], *, limits: Mapping[str, float] | None = None, title: str | None = None
) -> Figure:
    """Draw certified accuracy over the radius, one exact step curve per run.

    Args:
        runs: The outcomes of the runs, all in one norm.
        limits: For runs by name, the largest radius their number of samples could prove; drawn as a thin vertical line.
        title: A title above the picture.

    Returns:
        A figure of its own, to be saved by ``save_figure``.

    Raises:
        UsageError: If there are no runs, their norms differ, or a limit names no run.
    """
    norm = common_norm(runs)
    limits = limits or {}
    for name in limits:
        if name not in {run.name for run in runs}:
            raise unknown_name("run", name, {run.name for run in runs})
    entries = len(runs) + bool(limits)
    legend_columns = 1 if max(len(run.name) for run in runs) > 28 else min(entries, 2)
    legend_rows = -(-entries // legend_columns)
    figure = Figure(figsize=(6.4, 3.9 + 0.22 * legend_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    handles = []
    for number, run in enumerate(runs):
        colour, dashes = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
        radii, accuracy = curve(run)
        # ``pre``: the value at a radius holds to its left; the last point is the fall to 0.
        (line,) = axes.step(
            np.append(radii, radii[-1]),
            100 * np.append(accuracy, 0.0),
            where="pre",
            color=colour,
            linestyle=dashes,
            linewidth=1.8,
            label=textwrap.fill(f"{_plain(run.name)} (ACR {acr_text(average_certified_radius(run))})", _LABEL_WIDTH),
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
        axes.set_title(textwrap.fill(_plain(title), _LABEL_WIDTH))
    figure.legend(handles=handles, loc="outside lower center", ncols=legend_columns, frameon=False, handlelength=3.2)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Save a figure as PNG, PDF or SVG, by the suffix of the path.

    Raises:
        UsageError: If the suffix is another one.
        SmoothcertError: If the file cannot be written.
    """
    format = _FORMATS.get(Path(path).suffix.lower())
    if format is None:
        raise UsageError(f"{path}: a picture is saved as {', '.join(_FORMATS)}, by the suffix of its name.")
    try:
        with replacing(Path(path)) as temporary:
            figure.savefig(temporary, format=format, dpi=200)
    except OSError as error:
        raise SmoothcertError(f"{path} cannot be written ({error.strerror}).") from None


def _plain(text: str) -> str:
    """Text that matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")
