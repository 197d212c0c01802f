"""The look of figures, and how they are saved."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence, Sized
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from smoothcert.files import STANDARD_OUTPUT, saving
from smoothcert.types import StrPath, UsageError

# Okabe and Ito's palette without yellow, which is too pale on white; the dashes distinguish curves in grey. Seven
# colours and four dashes repeat together only after 28 curves.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
LineStyle = Literal["-", "--", "-.", ":"]
DASHES: tuple[LineStyle, ...] = ("-", "--", "-.", ":")
MARKERS = "osD^vPX*"

_USUAL_WIDTH = 6.4  # inches
_HINTING = 1.1  # how many times wider a line may be in pixels than in outlines
_MARGIN = 0.2  # inches next to a title
_HANDLE = 0.95  # inches next to the text of a legend entry: its line and the space around it
_WIDTHS = (1.8, 0.9, 2.8)
_FORMATS = {".png": "png", ".pdf": "pdf", ".svg": "svg"}
_UNDATED: dict[str, dict[str, Any]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


def canvas(columns: int = 1, *, rows: int = 1, width: float = _USUAL_WIDTH, height: float) -> tuple[Figure, list[Axes]]:
    """Make a figure without global state and its panels, row by row; the size is in inches, without the legend."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    panels = [figure.add_subplot(rows, columns, number + 1) for number in range(rows * columns)]
    for axes in panels:
        axes.grid(color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        if rows == 1:
            axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def require(shown: Sized, name: str) -> None:
    """Refuse to draw a figure of nothing."""
    if not len(shown):
        raise UsageError(f"there are no {name} to draw; give at least one.")


def finished(figure: Figure, handles: Sequence[Any], title: str | None, columns: int | None = None) -> Figure:
    """Add the title and, below the panels, the legend, by whose height the figure grows.

    Long entries are wrapped. The legend has at most ``columns`` columns (2 by default), fewer where entries are long.
    """
    width, height = figure.get_size_inches()
    if title is not None:
        figure.suptitle(_wrapped(plain(title), width - _MARGIN, "large"), fontsize="large")
    if handles:
        entries = [_wrapped(str(handle.get_label()), width - _HANDLE) for handle in handles]
        for handle, text in zip(handles, entries, strict=True):
            handle.set_label(text)
        widest = max(_text_width(line) for text in entries for line in text.splitlines())
        columns = min(columns or 2, len(entries), max(int(width // (widest + _HANDLE)), 1))
        lines = sum(1 + text.count("\n") for text in entries)
        figure.set_figheight(height + 0.22 * math.ceil(lines / columns))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, handlelength=3.2)
    return figure


def line_style(number: int, width: float = 1.8) -> dict[str, Any]:
    """Return colour, dashes and width of a curve; 28 curves look different."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)], "linewidth": width}


def run_style(number: int) -> dict[str, Any]:
    """Return colour and width of a run's curves where dashes distinguish its curves; 21 runs look different."""
    return {"color": COLOURS[number % len(COLOURS)], "linewidth": _WIDTHS[number // len(COLOURS) % len(_WIDTHS)]}


def entry(text: str, width: float = _USUAL_WIDTH) -> str:
    """Wrap a legend entry or the label of an axis to a figure of this width in inches."""
    return _wrapped(plain(text), width - _HANDLE)


def _wrapped(text: str, width: float, size: str = "medium") -> str:
    """Wrap a text to a width in inches, as it is drawn; words that are too long are broken."""
    characters = len(text)
    while characters > 1 and max(_text_width(line, size) for line in textwrap.wrap(text, characters) or [""]) > width:
        characters = min(characters - 1, max(map(len, textwrap.wrap(text, characters))) - 1)
    return textwrap.fill(text, max(characters, 1))


def _text_width(text: str, size: str = "medium") -> float:
    """Return the width of a line of text in inches, at most; pixels make narrow letters wider."""
    return _HINTING * sum(_letter_width(letter, size) for letter in text)


@lru_cache(maxsize=1000)
def _letter_width(letter: str, size: str) -> float:
    return float(text_to_path.get_text_width_height_descent(letter, FontProperties(size=size), False)[0]) / 72


def check_suffix(path: StrPath) -> str:
    """Return the format that the suffix of a path names; PNG for ``-``, which is standard output."""
    format = "png" if Path(path) == STANDARD_OUTPUT else _FORMATS.get(Path(path).suffix.lower())
    if format is None:
        raise UsageError(f"{path}: a picture is saved as {', '.join(_FORMATS)}, by the suffix of its name.")
    return format


def save_figure(figure: Figure, path: StrPath) -> None:
    """Save a figure as PNG, PDF or SVG, by the suffix of the path; equal figures have equal bytes."""
    format = check_suffix(path)
    with saving(path) as temporary, rc_context({"svg.hashsalt": "smoothcert"}):
        figure.savefig(temporary, format=format, dpi=200, metadata=_UNDATED[format])


def plain(text: str) -> str:
    """Escape text that matplotlib would read as mathematics."""
    return text.replace("$", r"\$")
