"""The layout of tables: one model for Markdown, LaTeX, CSV, HTML and the terminal, best and runner-up marked."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import rich.box
import rich.table
from rich.text import Text

from smoothcert.types import UsageError, unknown_name

Mark = Literal["", "best", "second"]


@dataclass(frozen=True)
class Column:
    """A column of a sheet."""

    heading: str
    over: str = ""  # a heading over all adjacent columns that have the same one
    better: Literal["", "high", "low"] = ""  # which values are better; without it the column has no best value
    align: Literal["", "left", "right"] = ""  # by default the first column is left and every other right
    rank: str = ""  # values that are ranked across columns are ranked among columns with the same text here


@dataclass(frozen=True)
class Cell:
    """The printed text of a cell, and the value that it is ranked by (None is not ranked)."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Line:
    """A line: one cell per column. Rules separate groups; values are ranked among lines of equal group and rank."""

    cells: tuple[Cell, ...]
    group: str = ""
    rank: object = ""


def text_line(texts: Iterable[str]) -> Line:
    """Make a line of texts that are not ranked."""
    return Line(tuple(map(Cell, texts)))


@dataclass(frozen=True)
class Sheet:
    """A table, independent of its format.

    The best value is bold and the runner-up underlined; values equal as printed share a mark, and where all are equal
    none is marked. Where higher is better, 0 is not marked. A spread (``± …``) or an interval (``[…]``) behind a number
    is not compared.

    Example:
        >>> numbers = [("a", 0.5), ("b", 0.75), ("c", 0.25)]
        >>> lines = [Line((Cell(name), Cell(f"{value:.2f}", value))) for name, value in numbers]
        >>> print(render_sheet(Sheet("", (Column("run"), Column("ACR", better="high")), tuple(lines)), "md"), end="")
        | run | ACR |
        | --- | ---: |
        | a | <ins>0.50</ins> |
        | b | **0.75** |
        | c | 0.25 |
    """

    title: str  # which LaTeX and CSV leave out
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]  # those of one group together
    group_heading: str = ""  # of the groups, which have a separate column where any has a name
    across: bool = False  # whether values are ranked within a line, among columns of the same over, not in a column
    notes: tuple[str, ...] = ()  # sentences below the table, which CSV leaves out

    def __post_init__(self) -> None:
        for line in self.lines:
            if len(line.cells) != len(self.columns):
                raise UsageError(f"a line has {len(line.cells)} cells in a table of {len(self.columns)} columns.")


def render_sheet(sheet: Sheet, format: str) -> str:
    """Write a sheet as text.

    Args:
        format: ``md`` (a heading over columns joins theirs), ``latex`` (a tabular; needs the package booktabs), ``csv``
            (texts without marks) or ``html`` (a ``table`` element; numbers have the class ``number``).
    """
    if format not in FORMATS:
        raise unknown_name("table format", format, FORMATS)
    return FORMATS[format](sheet)


def render_sentence(text: str, format: str) -> str:
    """Write a paragraph in a format of :func:`render_sheet`."""
    if format not in FORMATS:
        raise unknown_name("table format", format, FORMATS)
    if format == "csv":
        return _csv_lines([[text]])
    return {"md": markdown_name(text), "latex": latex_name(text), "html": f"<p>{html.escape(text)}</p>"}[format] + "\n"


def rich_sheet(sheet: Sheet) -> rich.table.Table:
    """Draw a sheet for the terminal."""
    flat = _flat(sheet)
    shown = rich.table.Table(title=Text(sheet.title) if sheet.title else None, box=rich.box.SIMPLE_HEAD, padding=0)
    shown.caption, shown.caption_justify = Text("\n".join(sheet.notes)) if sheet.notes else None, "left"
    for place, (heading, align) in enumerate(zip(flat.headings("\n"), flat.align, strict=True)):
        texts = [row[place][0] for block in flat.blocks for row in block]
        width = max(map(len, [*texts, *heading.split()]), default=1)
        if place < flat.names and align == "left":  # names may wrap in a narrow terminal, numbers may not
            width = 8 if place == flat.names - 1 else min(width, 8)
        shown.add_column(Text(heading), justify=align, overflow="fold", min_width=width)
    styles = {"best": "bold", "second": "underline", "": ""}
    for block in flat.blocks:
        for row in block:
            shown.add_row(*(Text(text, styles[mark]) for text, mark in row))
        shown.add_section()
    return shown


def markdown_name(name: str) -> str:
    """Escape a name for Markdown."""
    return re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", " ".join(name.split()))


def latex_name(name: str) -> str:
    """Escape a name for LaTeX; Greek letters and norms become formulas."""
    pieces = re.findall("ℓ[012∞]|.", " ".join(name.split()))
    return "".join(_LATEX.get(piece, piece) for piece in pieces)


_LATEX = {
    "ℓ∞": r"$\ell_\infty$",
    **{f"ℓ{p}": rf"$\ell_{p}$" for p in "012"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    # Unprotected, these two would be read as options of the line end before them.
    "[": "{[}",
    "*": "{*}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "σ": r"$\sigma$",
    "θ": r"$\theta$",
    "λ": r"$\lambda$",
    "α": r"$\alpha$",
    "≥": r"$\geq$",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
}


@dataclass(frozen=True)
class _Flat:
    """A sheet with the groups as a column, and rows of (text, mark); ``names`` counts the columns of names."""

    title: str
    columns: list[Column]
    align: list[Literal["left", "right"]]
    blocks: list[list[list[tuple[str, Mark]]]]
    names: int

    def headings(self, between: str) -> list[str]:
        """Join headings for formats that cannot span columns; one that equals the title is not repeated."""
        return [
            f"{column.over}{between}{column.heading}" if column.over not in ("", self.title) else column.heading
            for column in self.columns
        ]

    @property
    def spans(self) -> list[tuple[str, int]]:
        """The headings over columns and how many columns each spans."""
        return [(over, len(list(columns))) for over, columns in groupby(column.over for column in self.columns)]


def _flat(sheet: Sheet, *, repeat: bool = False) -> _Flat:
    """Make the groups a column; a group is named in its first row, or in every row with ``repeat``."""
    grouped = any(line.group for line in sheet.lines)
    columns = [*[Column(sheet.group_heading)] * grouped, *sheet.columns]
    blocks: list[list[list[tuple[str, Mark]]]] = []
    for group, block in groupby(zip(sheet.lines, _marks(sheet), strict=True), key=lambda pair: pair[0].group):
        rows = [[(cell.text, mark) for cell, mark in zip(line.cells, marks, strict=True)] for line, marks in block]
        if grouped:
            rows = [[(group if repeat or not place else "", ""), *row] for place, row in enumerate(rows)]
        blocks.append(rows)
    align = [column.align or ("left" if place <= grouped else "right") for place, column in enumerate(columns)]
    return _Flat(sheet.title, columns, align, blocks, 1 + grouped)


def _marks(sheet: Sheet) -> list[list[Mark]]:
    """Mark the best and the second of the cells that are compared with each other."""
    marks: list[list[Mark]] = [[""] * len(sheet.columns) for _ in sheet.lines]
    contests: dict[object, list[tuple[int, int, Cell]]] = {}
    for row, line in enumerate(sheet.lines):
        for place, (column, cell) in enumerate(zip(sheet.columns, line.cells, strict=True)):
            if column.better and cell.value is not None:
                key = (row, column.over, column.rank) if sheet.across else (place, line.group, line.rank)
                contests.setdefault(key, []).append((row, place, cell))
    for cells in contests.values():
        high = sheet.columns[cells[0][1]].better == "high"
        ordered = sorted(cells, key=lambda each: each[2].value or 0.0, reverse=high)
        printed = list(dict.fromkeys(_printed(cell) for _, _, cell in ordered))  # rounding keeps the order
        for row, place, cell in cells if len(printed) > 1 else ():
            if _printed(cell) in printed[:2] and not (high and re.fullmatch(r"0\.?0*", _printed(cell))):
                marks[row][place] = "best" if _printed(cell) == printed[0] else "second"
    return marks


def _printed(cell: Cell) -> str:
    return re.split(r" ± | \[", cell.text)[0]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?\d[-\d.,; \[\]]*", text) is not None


def _markdown(sheet: Sheet) -> str:
    def cell(text: str, mark: Mark = "") -> str:
        shown = text if _is_number(text) else markdown_name(text)
        return {"best": f"**{shown}**", "second": f"<ins>{shown}</ins>", "": shown}[mark]

    flat = _flat(sheet)
    rows = [[cell(heading) for heading in flat.headings(" ")]]
    rows.append(["---:" if align == "right" else "---" for align in flat.align])
    rows += [[cell(*each) for each in row] for block in flat.blocks for row in block]
    title = f"{markdown_name(sheet.title)}\n\n" if sheet.title else ""
    notes = "".join(f"\n{markdown_name(note)}\n" for note in sheet.notes)
    return title + "".join(f"| {' | '.join(row)} |\n" for row in rows) + notes


def _latex(sheet: Sheet) -> str:
    def cell(text: str, mark: Mark = "") -> str:
        shown = re.sub(r"-(?=\d)", "$-$", text) if _is_number(text) else latex_name(text)
        return {"best": rf"\textbf{{{shown}}}", "second": rf"\underline{{{shown}}}", "": shown}[mark]

    def joined(cells: Iterable[str]) -> str:
        return " & ".join(cells) + r" \\"

    flat = _flat(sheet)
    lines = [rf"\begin{{tabular}}{{{''.join(align[0] for align in flat.align)}}}", r"\toprule"]
    if any(column.over for column in flat.columns):
        cells, rules, place = [], [], 1
        for over, count in flat.spans:
            cells += [rf"\multicolumn{{{count}}}{{c}}{{{latex_name(over)}}}"] if over else [""] * count
            rules += [rf"\cmidrule(lr){{{place}-{place + count - 1}}}"] if over else []
            place += count
        lines += [joined(cells), " ".join(rules)]
    lines.append(joined(latex_name(column.heading) for column in flat.columns))
    for block in flat.blocks:
        lines += [r"\midrule", *(joined(cell(*each) for each in row) for row in block)]
    notes = [rf"\par\smallskip{{\footnotesize {latex_name(note)}\par}}" for note in sheet.notes]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes]) + "\n"


def _csv(sheet: Sheet) -> str:
    flat = _flat(sheet, repeat=True)
    return _csv_lines([flat.headings(" "), *([text for text, _ in row] for block in flat.blocks for row in block)])


def _csv_lines(lines: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _html(sheet: Sheet) -> str:
    flat = _flat(sheet)
    kinds = [' class="number"' if align == "right" else "" for align in flat.align]
    lines = ["<table>"] + ([f"<caption>{html.escape(sheet.title)}</caption>"] if sheet.title else []) + ["<thead>"]
    if any(column.over not in ("", sheet.title) for column in flat.columns):
        spans = [(over if over != sheet.title else "", count) for over, count in flat.spans]
        headings = [f'<th colspan="{count}">{html.escape(over)}</th>' for over, count in spans]
        lines.append(f"<tr>{''.join(headings)}</tr>")
    headings = [f"<th{kind}>{html.escape(c.heading)}</th>" for c, kind in zip(flat.columns, kinds, strict=True)]
    lines += [f"<tr>{''.join(headings)}</tr>", "</thead>"]
    marked = {"best": "<b>{}</b>", "second": "<u>{}</u>", "": "{}"}
    for block in flat.blocks:
        lines.append("<tbody>")
        for row in block:
            cells = [
                f"<td{kind}>{marked[mark].format(html.escape(text))}</td>"
                for (text, mark), kind in zip(row, kinds, strict=True)
            ]
            lines.append(f"<tr>{''.join(cells)}</tr>")
        lines.append("</tbody>")
    if sheet.notes:
        across = f'<td colspan="{len(flat.columns)}">'
        lines += ["<tfoot>", *(f"<tr>{across}{html.escape(note)}</td></tr>" for note in sheet.notes), "</tfoot>"]
    return "\n".join([*lines, "</table>"]) + "\n"


FORMATS: dict[str, Callable[[Sheet], str]] = {"md": _markdown, "latex": _latex, "csv": _csv, "html": _html}
