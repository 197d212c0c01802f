"""The look of our pictures, and how they are saved."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from smoothcert.files import replacing
from smoothcert.types import SmoothcertError, UsageError

# Okabe and Ito's palette without yellow, which is too pale on white; the dashes tell curves apart in grey. Seven
# colours and four dashes repeat together only after 28 curves.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":")

LABEL_WIDTH = 70
"""Characters of a label before it is broken, in a figure of usual width."""

_FORMATS = {".png": "png", ".pdf": "pdf", ".svg": "svg"}


def canvas(columns: int, *, rows: int = 1, width: float = 6.4, height: float) -> tuple[Figure, list[Axes]]:
    """A figure without global state and its panels, row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = [figure.add_subplot(rows, columns, number + 1) for number in range(rows * columns)]
    for axes in panels:
        axes.grid(color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        if rows == 1:
            axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def finished(figure: Figure, handles: Sequence[object], title: str | None, columns: int = 2) -> Figure:
    """The figure with its title and, below, its legend."""
    if title is not None:
        width = round(LABEL_WIDTH * figure.get_figwidth() / 6.4)
        figure.suptitle(textwrap.fill(plain(title), width), fontsize="large")
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.2)
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


def plain(text: str) -> str:
    """Text that matplotlib does not read as mathematics."""
    return text.replace("$", r"\$")
