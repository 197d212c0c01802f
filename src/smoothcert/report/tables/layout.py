"""The layout of tables: one model for Markdown, LaTeX, CSV, HTML and the terminal, best and runner-up marked."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Iterator, Sequence
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
    """A column of a sheet.

    Attributes:
        heading: What stands over the column.
        over: A heading over all adjacent columns that have the same one.
        better: Whether ``high`` or ``low`` values are better; without it the column has no best value.
        align: ``left`` or ``right``; by itself the first column is left and every other right.
        rank: Where values are ranked across columns, only those of columns with the same text here are.
    """

    heading: str
    over: str = ""
    better: Literal["", "high", "low"] = ""
    align: Literal["", "left", "right"] = ""
    rank: str = ""


@dataclass(frozen=True)
class Cell:
    """A cell: what is printed, and the value that best and runner-up are found by (None never wins)."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Line:
    """A line: one cell per column. Lines of one group are ruled apart from others.

    Values are ranked among the lines with the same group and the same ``rank``.
    """

    cells: tuple[Cell, ...]
    group: str = ""
    rank: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table, whatever format it will be shown in.

    The best value is bold and the runner-up underlined; values equal as printed share a mark, and where all are equal
    there is none. A spread (``± …``) or an interval (``[…]``) behind a number is not compared.

    Attributes:
        title: Stands over the table, except in LaTeX and CSV, which hold the table only.
        columns: The columns.
        lines: The lines, those of one group together.
        group_heading: The heading of the groups, which stand in a column of their own where any has a name.
        across: Whether values are ranked within a line, among columns of the same ``over``, and not within a column.
        notes: Sentences below the table; CSV, which has no place for them, leaves them out.

    Raises:
        UsageError: If a line has more or fewer cells than there are columns.

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

    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    group_heading: str = ""
    across: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for line in self.lines:
            if len(line.cells) != len(self.columns):
                raise UsageError(f"a line has {len(line.cells)} cells in a table of {len(self.columns)} columns.")


def render_sheet(sheet: Sheet, format: str) -> str:
    """Write a sheet as text.

    Args:
        format: ``md`` (a heading over columns joins theirs), ``latex`` (a tabular; needs the package booktabs), ``csv``
            (texts as they are, without marks) or ``html`` (a ``table`` element; numbers have the class ``number``).
    """
    if format not in FORMATS:
        raise unknown_name("table format", format, FORMATS)
    return FORMATS[format](sheet)


def render_sentence(text: str, format: str) -> str:
    """Write a paragraph that stands beside sheets, in the same format.

    Example:
        >>> print(render_sentence("a_b is < 50%", "html"), end="")
        <p>a_b is &lt; 50%</p>
    """
    if format not in FORMATS:
        raise unknown_name("table format", format, FORMATS)
    if format == "csv":
        return _csv_lines([[text]])
    return {"md": markdown_name(text), "latex": latex_name(text), "html": f"<p>{html.escape(text)}</p>"}[format] + "\n"


def rich_sheet(sheet: Sheet) -> rich.table.Table:
    """The sheet for the terminal."""
    title = Text(sheet.title) if sheet.title else None
    shown = rich.table.Table(title=title, box=rich.box.SIMPLE_HEAD, padding=0)
    shown.caption, shown.caption_justify = Text("\n".join(sheet.notes)) if sheet.notes else None, "left"
    if _grouped(sheet):
        shown.add_column(Text(sheet.group_heading))
    columns = zip(*(line.cells for line in sheet.lines), strict=True) if sheet.lines else ((),) * len(sheet.columns)
    for column, heading, align, cells in zip(
        sheet.columns, _joined(sheet, "\n"), _aligned(sheet), columns, strict=True
    ):
        widths = [len(text) for text in (*(cell.text for cell in cells), *heading.split())]
        # Names may wrap in a narrow terminal, numbers may not.
        width = 8 if column is sheet.columns[0] and align == "left" else max(widths, default=1)
        shown.add_column(Text(heading), justify=align, overflow="fold", min_width=width)
    styles = {"best": "bold", "second": "underline", "": ""}
    for block in _blocks(sheet):
        for first, line, marks in block:
            texts = [Text(cell.text, styles[mark]) for cell, mark in zip(line.cells, marks, strict=True)]
            shown.add_row(*([Text(line.group if first else "")] if _grouped(sheet) else []), *texts)
        shown.add_section()
    return shown


def markdown_name(name: str) -> str:
    """A name that Markdown shows as it is.

    Example:
        >>> print(markdown_name("a_b"))
        a\\_b
    """
    return re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", " ".join(name.split()))


def latex_name(name: str) -> str:
    """A name that LaTeX shows as it is; Greek letters and norms become formulas.

    Example:
        >>> print(latex_name("50% at ℓ2"))
        50\\% at $\\ell_2$
    """
    pieces = re.split("(ℓ[012∞])", " ".join(name.split()))
    return "".join(
        _LATEX_NORMS[piece]
        if piece in _LATEX_NORMS
        else "".join(_LATEX_SPECIAL.get(character, character) for character in piece)
        for piece in pieces
    )


_LATEX_NORMS = {"ℓ∞": r"$\ell_\infty$", **{f"ℓ{p}": rf"$\ell_{p}$" for p in "012"}}
_LATEX_SPECIAL = {
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
_NUMBER = re.compile(r"[-+]?\d[-\d.,; \[\]]*")


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _marks(sheet: Sheet) -> list[list[Mark]]:
    """The mark of every cell, by line."""
    marks: list[list[Mark]] = [[""] * len(sheet.columns) for _ in sheet.lines]
    for places in _ranked_together(sheet):
        better = sheet.columns[places[0][1]].better
        found = [(row, column, sheet.lines[row].cells[column]) for row, column in places]
        values = [(cell.value, _printed(cell.text)) for _, _, cell in found if cell.value is not None]
        # Rounding keeps the order, so values that are printed alike stand together.
        order = [printed for printed, _ in groupby(text for _, text in sorted(values, reverse=better == "high"))]
        if len(order) < 2:
            continue
        for row, column, cell in found:
            if cell.value is not None and _printed(cell.text) in order[:2]:
                marks[row][column] = "best" if _printed(cell.text) == order[0] else "second"
    return marks


def _ranked_together(sheet: Sheet) -> Iterator[list[tuple[int, int]]]:
    """The places, as (line, column), of the cells that are compared with each other."""
    groups = dict.fromkeys((line.group, line.rank) for line in sheet.lines)
    rows_of = [[row for row, line in enumerate(sheet.lines) if (line.group, line.rank) == group] for group in groups]
    ranked = [i for i, column in enumerate(sheet.columns) if column.better]
    if not sheet.across:
        yield from ([(row, column) for row in rows] for rows in rows_of for column in ranked)
        return
    for kind in dict.fromkeys((sheet.columns[i].over, sheet.columns[i].rank) for i in ranked):
        columns = [i for i in ranked if (sheet.columns[i].over, sheet.columns[i].rank) == kind]
        yield from ([(row, column) for column in columns] for row in range(len(sheet.lines)))


def _printed(text: str) -> str:
    return re.split(r" ± | \[", text)[0]


def _blocks(sheet: Sheet) -> list[list[tuple[bool, Line, list[Mark]]]]:
    """The lines by group, each with its marks and whether it is the first of its group."""
    lines = zip(sheet.lines, _marks(sheet), strict=True)
    return [
        [(i == 0, line, marks) for i, (line, marks) in enumerate(block)]
        for _, block in groupby(lines, key=lambda pair: pair[0].group)
    ]


def _grouped(sheet: Sheet) -> bool:
    return any(line.group for line in sheet.lines)


def _aligned(sheet: Sheet) -> list[Literal["left", "right"]]:
    return [column.align or ("right" if i else "left") for i, column in enumerate(sheet.columns)]


def _joined(sheet: Sheet, between: str) -> list[str]:
    """Headings where none can stand over several columns; one that is the title is not repeated."""
    return [
        f"{column.over}{between}{column.heading}" if column.over not in ("", sheet.title) else column.heading
        for column in sheet.columns
    ]


def _spans(sheet: Sheet) -> list[tuple[str, int]]:
    """The headings over columns and how many columns each spans."""
    return [(over, len(list(columns))) for over, columns in groupby(column.over for column in sheet.columns)]


def _markdown(sheet: Sheet) -> str:
    def cell(text: str, mark: Mark = "") -> str:
        shown = text if _is_number(text) else markdown_name(text)
        return {"best": f"**{shown}**", "second": f"<ins>{shown}</ins>", "": shown}[mark]

    group = [""] if _grouped(sheet) else []
    rules = [*["---"] * len(group), *("---:" if align == "right" else "---" for align in _aligned(sheet))]
    lines = [[*([cell(sheet.group_heading)] if group else []), *map(cell, _joined(sheet, " "))], rules]
    for block in _blocks(sheet):
        for first, line, marks in block:
            cells = [cell(part.text, mark) for part, mark in zip(line.cells, marks, strict=True)]
            lines.append([*([cell(line.group if first else "")] if group else []), *cells])
    title = f"{markdown_name(sheet.title)}\n\n" if sheet.title else ""
    notes = "".join(f"\n{markdown_name(note)}\n" for note in sheet.notes)
    return title + "".join(f"| {' | '.join(line)} |\n" for line in lines) + notes


def _latex(sheet: Sheet) -> str:
    def cell(text: str, mark: Mark = "") -> str:
        shown = re.sub(r"-(?=\d)", "$-$", text) if _is_number(text) else latex_name(text)
        return {"best": rf"\textbf{{{shown}}}", "second": rf"\underline{{{shown}}}", "": shown}[mark]

    def joined(cells: Sequence[str]) -> str:
        return " & ".join(cells) + r" \\"

    group = _grouped(sheet)
    lines = [rf"\begin{{tabular}}{{{'l' * group}{''.join(align[0] for align in _aligned(sheet))}}}", r"\toprule"]
    if any(column.over for column in sheet.columns):
        cells, rules, place = [""] * group, [], 1 + group
        for over, count in _spans(sheet):
            cells += [rf"\multicolumn{{{count}}}{{c}}{{{latex_name(over)}}}"] if over else [""] * count
            rules += [rf"\cmidrule(lr){{{place}-{place + count - 1}}}"] if over else []
            place += count
        lines += [joined(cells), " ".join(rules)]
    lines.append(joined([*[cell(sheet.group_heading)] * group, *(latex_name(c.heading) for c in sheet.columns)]))
    for block in _blocks(sheet):
        lines.append(r"\midrule")
        for first, line, marks in block:
            cells = [cell(part.text, mark) for part, mark in zip(line.cells, marks, strict=True)]
            lines.append(joined([*[cell(line.group if first else "")] * group, *cells]))
    notes = [rf"\par\smallskip{{\footnotesize {latex_name(note)}\par}}" for note in sheet.notes]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *notes]) + "\n"


def _csv(sheet: Sheet) -> str:
    group = _grouped(sheet)
    headings = [*[sheet.group_heading] * group, *_joined(sheet, " ")]
    return _csv_lines(
        [headings, *([*[line.group] * group, *(cell.text for cell in line.cells)] for line in sheet.lines)]
    )


def _csv_lines(lines: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _html(sheet: Sheet) -> str:
    aligned = [' class="number"' if align == "right" else "" for align in _aligned(sheet)]
    group = _grouped(sheet)
    lines = ["<table>"] + ([f"<caption>{html.escape(sheet.title)}</caption>"] if sheet.title else []) + ["<thead>"]
    if any(column.over not in ("", sheet.title) for column in sheet.columns):
        spans = [("", 1)] * group + _spans(sheet)
        headings = [f'<th colspan="{n}">{"" if o == sheet.title else html.escape(o)}</th>' for o, n in spans]
        lines.append(f"<tr>{''.join(headings)}</tr>")
    headings = [f"<th{kind}>{html.escape(c.heading)}</th>" for c, kind in zip(sheet.columns, aligned, strict=True)]
    lines += [f"<tr>{f'<th>{html.escape(sheet.group_heading)}</th>' * group}{''.join(headings)}</tr>", "</thead>"]
    for block in _blocks(sheet):
        lines.append("<tbody>")
        for first, line, marks in block:
            name = f'<th rowspan="{len(block)}">{html.escape(line.group)}</th>' if group and first else ""
            cells = []
            for part, mark, kind in zip(line.cells, marks, aligned, strict=True):
                shown = html.escape(part.text)
                shown = {"best": f"<b>{shown}</b>", "second": f"<u>{shown}</u>", "": shown}[mark]
                cells.append(f"<td{kind}>{shown}</td>")
            lines.append(f"<tr>{name}{''.join(cells)}</tr>")
        lines.append("</tbody>")
    if sheet.notes:
        across = f'<td colspan="{group + len(sheet.columns)}">'
        lines += ["<tfoot>", *(f"<tr>{across}{html.escape(note)}</td></tr>" for note in sheet.notes), "</tfoot>"]
    return "\n".join([*lines, "</table>"]) + "\n"


FORMATS: dict[str, Callable[[Sheet], str]] = {"md": _markdown, "latex": _latex, "csv": _csv, "html": _html}
