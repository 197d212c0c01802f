"""The look of figures, and how they are saved."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Sequence, Sized
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import LayoutEngine
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.transforms import BboxBase

from smoothcert.files import STANDARD_OUTPUT, saving
from smoothcert.types import StrPath, UsageError

# After the palette of Okabe and Ito, without yellow, which is too pale on white, and the same as on the report page
# (look.css); the dashes distinguish curves in grey. Colours and dashes repeat together only after 32 curves.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#1b1b1b", "#d69200", "#4aa8e0", "#6b6f7a")
LineStyle = Literal["-", "--", "-.", ":"]
DASHES: tuple[LineStyle, ...] = ("-", "--", "-.", ":")
MARKERS = "osD^vPX*"

SAMPLE = 28.8
"""The length of the line in a legend entry, in points: each pattern of dashes ends with a whole dash there."""

_PATTERNS: dict[LineStyle, tuple[float, ...]] = {"--": (4, 2), "-.": (3, 1.25, 1, 1.25), ":": (1, 1.5)}
_PATTERN_LENGTH = 16  # of the line in a legend entry, in the units of the patterns

_USUAL_WIDTH = 6.4  # inches
_HINTING = 1.1  # how many times wider a line may be in pixels than in outlines
_MARGIN = 0.2  # inches next to a title
_HANDLE = 0.95  # inches next to the text of a legend entry: its line and the space around it
_LINE = 0.22  # inches of a line of the legend
_LEAST, _MOST = 1.0, 40.0  # inches of a figure
_LEAST_PANEL = 0.5  # inches
_WIDTHS = (1.8, 0.9, 2.8)
_FORMATS = {".png": "png", ".pdf": "pdf", ".svg": "svg"}
_UNDATED: dict[str, dict[str, Any]] = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}


class Picture(Figure):
    """A figure with panels, and below them a legend; both and the title fit its width."""

    def __init__(self, width: float, height: float, layout: LayoutEngine | None = None) -> None:
        super().__init__(figsize=(width, height), layout=layout or "constrained")
        FigureCanvasAgg(self)
        self.handles: list[Any] = []
        self.entries: list[str] = []
        self.heading: str | None = None
        self.columns = 2

    def set_texts(self) -> int:
        """Wrap title and legend to the width; return the number of lines of the legend."""
        width = self.get_figwidth()
        if self.heading is not None:
            self.suptitle(_wrapped(self.heading, width - _MARGIN, "large"), fontsize="large")
        for legend in self.legends:
            legend.remove()
        if not self.handles:
            return 0
        texts = [_wrapped(text, width - _HANDLE) for text in self.entries]
        for handle, text in zip(self.handles, texts, strict=True):
            handle.set_label(text)
        widest = max(_text_width(line) for text in texts for line in text.splitlines())
        columns = min(self.columns, len(texts), max(int(width // (widest + _HANDLE)), 1))
        length = SAMPLE / _font_size("medium")
        self.legend(handles=self.handles, loc="outside lower center", ncols=columns, frameon=False, handlelength=length)
        return math.ceil(sum(1 + text.count("\n") for text in texts) / columns)


def canvas(
    columns: int = 1, *, rows: int = 1, width: float = _USUAL_WIDTH, height: float
) -> tuple[Picture, list[Axes]]:
    """Make a figure without global state and its panels, row by row; the size is in inches, without the legend."""
    figure = Picture(width, height)
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


def finished(figure: Picture, handles: Sequence[Any], title: str | None, columns: int | None = None) -> Picture:
    """Add the title and, below the panels, the legend, by whose height the figure grows.

    Long entries are wrapped. The legend has at most ``columns`` columns (2 by default), fewer where entries are long.
    """
    figure.handles, figure.entries = list(handles), [str(handle.get_label()) for handle in handles]
    figure.heading = None if title is None else plain(title)
    figure.columns = columns or figure.columns
    figure.set_figheight(figure.get_figheight() + _LINE * figure.set_texts())
    return figure


def resize(figure: Picture, size: tuple[float, float]) -> None:
    """Give a finished figure a size in inches, legend and title included; letters keep theirs."""
    width, height = size
    if not all(_LEAST <= side <= _MOST for side in size):
        raise UsageError(f"a figure must be {_LEAST:g} to {_MOST:g} inches wide and high, got {width:g}x{height:g}.")
    figure.set_size_inches(width, height)
    figure.set_texts()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        figure.draw_without_rendering()
        for axes in figure.axes:
            panel = axes.get_window_extent()
            for label, length in ((axes.xaxis.label, panel.width), (axes.yaxis.label, panel.height)):
                label.set_text(_wrapped(label.get_text(), max(length / figure.dpi, _LEAST_PANEL)))
        figure.draw_without_rendering()
    panels = [axes.get_window_extent() for axes in figure.axes if axes.axison]
    room = min(min(panel.width, panel.height) for panel in panels) / figure.dpi
    if room < _LEAST_PANEL or not all(_inside(text.get_window_extent(), figure.bbox) for text in _texts(figure)):
        raise UsageError(
            f"the figure and its legend do not fit into {width:g}x{height:g} inches; choose a larger size or shorter "
            "labels."
        )


def _inside(box: BboxBase, whole: BboxBase) -> bool:
    return box.x0 >= whole.x0 and box.y0 >= whole.y0 and box.x1 <= whole.x1 and box.y1 <= whole.y1


def _texts(figure: Picture) -> list[Text]:
    """Return the texts that a figure can be too small for."""
    labels = [label for axes in figure.axes if axes.axison for label in (axes.xaxis.label, axes.yaxis.label)]
    entries = [text for legend in figure.legends for text in legend.get_texts()]
    return [text for text in (*labels, *entries) if text.get_text()]


def dashed(kind: LineStyle, width: float) -> Any:
    """Return the dashes of a line of a width in points; their lengths do not depend on the width."""
    if kind == "-":
        return kind
    return 0, tuple(length * SAMPLE / _PATTERN_LENGTH / width for length in _PATTERNS[kind])


def line_style(number: int, width: float = 1.8) -> dict[str, Any]:
    """Return colour, dashes and width of a curve; 32 curves look different."""
    kind = DASHES[(number + number // len(COLOURS)) % len(DASHES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": dashed(kind, width), "linewidth": width}


def run_style(number: int, kind: LineStyle = "-") -> dict[str, Any]:
    """Return the style of a run's curves where dashes distinguish its curves; 24 runs look different."""
    width = _WIDTHS[number // len(COLOURS) % len(_WIDTHS)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": dashed(kind, width), "linewidth": width}


def wrapped_label(text: str, width: float) -> str:
    """Wrap the label of an axis to a width in inches."""
    return _wrapped(plain(text), width)


def _wrapped(text: str, width: float, size: str = "medium") -> str:
    """Wrap a text to a width in inches, as it is drawn; words that are too long are broken."""
    characters = len(text)
    while characters > 1 and max(_text_width(line, size) for line in textwrap.wrap(text, characters) or [""]) > width:
        characters = min(characters - 1, max(map(len, textwrap.wrap(text, characters))) - 1)
    return textwrap.fill(text, max(characters, 1))


def _text_width(text: str, size: str = "medium") -> float:
    """Return the width of a line of text in inches, at most; pixels make narrow letters wider."""
    return _HINTING * sum(_letter_width(letter, size) for letter in text)


def _font_size(size: str) -> float:
    return float(FontProperties(size=size).get_size_in_points())


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
    # Publishers refuse PDFs with Type 3 fonts, matplotlib's default; 42 is TrueType.
    with saving(path) as temporary, rc_context({"svg.hashsalt": "smoothcert", "pdf.fonttype": 42}):
        figure.savefig(temporary, format=format, dpi=200, metadata=_UNDATED[format])


def plain(text: str) -> str:
    """Escape text that matplotlib would read as mathematics."""
    return text.replace("$", r"\$")
