"""Tables of certified accuracy, digit for digit as the papers print them: Markdown, LaTeX, CSV and the terminal."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import rich.box
import rich.table
from rich.text import Text

from smoothcert.report.metrics import (
    NORM_TEXT,
    Outcomes,
    acr_text,
    average_certified_radius,
    certified_counts,
    common_norm,
    wilson_interval,
)
from smoothcert.types import Norm, UsageError, unknown_name

_MOST_COLUMNS = 12


@dataclass(frozen=True)
class AccuracyRow:
    """One run in a table.

    Attributes:
        name: The name of the run.
        acr: The average certified radius.
        certified: The number of inputs certified and right at each radius of the table.
        abstained: The number of abstentions.
        inputs: The number of all inputs.
    """

    name: str
    acr: float
    certified: tuple[int, ...]
    abstained: int
    inputs: int


@dataclass(frozen=True)
class AccuracyTable:
    """Certified accuracy of several runs at common radii.

    Attributes:
        norm: The norm of the radii.
        radii: The radii of the columns.
        rows: One row per run, in the order given.
    """

    norm: Norm
    radii: tuple[float, ...]
    rows: tuple[AccuracyRow, ...]


def accuracy_table(runs: Sequence[Outcomes], radii: Sequence[float] | None = None) -> AccuracyTable:
    """Put the certified accuracies of several runs side by side.

    Args:
        runs: The outcomes of the runs, all in one norm.
        radii: The radii of the columns; without them ``default_radii``.

    Returns:
        The table, to be shown by ``render`` or ``rich_table``.

    Raises:
        UsageError: If there are no runs or no radii, the norms differ, or a radius is negative.

    Example:
        >>> run = Outcomes("a_b", [0, 1, 2], [5, 5, 5], [5, 5, -1], [0.5, 0.2, 0.0])
        >>> print(render(accuracy_table([run], [0, 0.25]), "csv"), end="")
        name,acr,0.00,0.25,abstention,inputs
        a_b,0.233,66.7,33.3,33.3,3
    """
    norm = common_norm(runs)
    columns = tuple(float(radius) for radius in (default_radii(runs) if radii is None else radii))
    if not columns:
        raise UsageError("a table of certified accuracy needs at least one radius.")
    rows = tuple(
        AccuracyRow(
            name=run.name,
            acr=average_certified_radius(run),
            certified=tuple(certified_counts(run, columns).tolist()),
            abstained=int(run.abstained.sum()),
            inputs=len(run),
        )
        for run in runs
    )
    return AccuracyTable(norm, columns, rows)


def default_radii(runs: Sequence[Outcomes]) -> tuple[float, ...]:
    """The radii 0, 0.25, … up to the largest radius present, rounded up; coarser steps where 12 columns do not suffice.

    In ℓ0, where a radius is a number of pixels, the steps are whole.

    Example:
        >>> default_radii([Outcomes("run", [0], [5], [5], [0.6])])
        (0.0, 0.25, 0.5, 0.75)
    """
    largest = max(float(run.radius.max()) for run in runs)
    step = 1.0 if runs[0].norm is Norm.L0 else 0.25
    while math.ceil(largest / step) >= _MOST_COLUMNS:
        step *= 2
    return tuple(step * i for i in range(math.ceil(largest / step) + 1))


def render(table: AccuracyTable, format: str, *, intervals: bool = False) -> str:
    """Write a table as text.

    Accuracies and abstentions are shares in per cent with one decimal, rounded to the nearest, ties to even, from the
    exact counts. The ACR is an average, not a certificate, and is rounded to the nearest too, at three decimals, as the
    papers print it; the radius of a single input always rounds down.

    Args:
        table: The table.
        format: ``md``, ``latex`` (needs the package booktabs) or ``csv`` (per cent without the sign).
        intervals: Whether to add the Wilson 95 % interval of every accuracy, rounded outwards.

    Returns:
        The text, with a line end.

    Raises:
        UsageError: If the format is unknown.
    """
    if format not in _FORMATS:
        raise unknown_name("table format", format, _FORMATS)
    return _FORMATS[format](table, intervals)


def rich_table(table: AccuracyTable, *, intervals: bool = False) -> rich.table.Table:
    """The table for the terminal, with the digits of ``render``."""
    title = f"Certified accuracy (%) at {NORM_TEXT[table.norm]} radius"
    shown = rich.table.Table(title=title, box=rich.box.SIMPLE_HEAD, padding=0)
    body = [_cells(row, intervals) for row in table.rows]
    first, *others = _headings(table)
    shown.add_column(first, overflow="fold", min_width=8)
    for heading, *cells in zip(others, *body, strict=True):
        # Names may wrap in a narrow terminal, numbers may not.
        shown.add_column(heading, justify="right", min_width=max(map(len, [*cells, *heading.split()])))
    for row, cells in zip(table.rows, body, strict=True):
        shown.add_row(Text(row.name), *(Text(cell) for cell in cells))
    return shown


def _headings(table: AccuracyTable, radii: Sequence[str] | None = None) -> list[str]:
    return ["run", "ACR", *(radii or radius_headings(table)), "abstain %", "inputs"]


def radius_headings(table: AccuracyTable) -> list[str]:
    exact = [Decimal(repr(radius)).normalize() for radius in table.radii]
    digits = max(0 if table.norm is Norm.L0 else 2, *(-int(radius.as_tuple().exponent) for radius in exact))
    return [f"{radius:.{digits}f}" for radius in exact]


def named_headings(table: AccuracyTable, norm: str) -> list[str]:
    """Headings for formats without a title: ℓ2, which a table of this kind is about unless it says so, is not named."""
    headings = radius_headings(table)
    return headings if table.norm is Norm.L2 else [f"{norm} radius {heading}" for heading in headings]


def _cells(row: AccuracyRow, intervals: bool) -> list[str]:
    accuracies = [percent(count, row.inputs) for count in row.certified]
    if intervals:
        bounds = (_bounds(count, row.inputs) for count in row.certified)
        accuracies = [f"{shown} [{low}, {high}]" for shown, (low, high) in zip(accuracies, bounds, strict=True)]
    return [acr_text(row.acr), *accuracies, percent(row.abstained, row.inputs), str(row.inputs)]


def percent(count: int, total: int) -> str:
    return _tenths(round(Fraction(1000 * count, total)))


def _bounds(count: int, total: int) -> tuple[str, str]:
    low, high = wilson_interval(count, total)
    return _tenths(math.floor(1000 * low)), _tenths(math.ceil(1000 * high))


def _tenths(value: int) -> str:
    return f"{value // 10}.{value % 10}"


def _markdown(table: AccuracyTable, intervals: bool) -> str:
    headings = _headings(table, named_headings(table, NORM_TEXT[table.norm]))
    rules = ["---", *["---:"] * (len(headings) - 1)]
    body = [[markdown_name(row.name), *_cells(row, intervals)] for row in table.rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in [headings, rules, *body])


def _latex(table: AccuracyTable, intervals: bool) -> str:
    norm = {Norm.LINF: r"\infty"}.get(table.norm, table.norm.value[1:])
    count = len(table.radii)
    lines = [
        rf"\begin{{tabular}}{{l{'r' * (count + 3)}}}",
        r"\toprule",
        rf" &  & \multicolumn{{{count}}}{{c}}{{Certified accuracy (\%) at $\ell_{norm}$ radius}} &  &  \\",
        rf"\cmidrule(lr){{3-{count + 2}}}",
        " & ".join(latex_name(heading) for heading in _headings(table)) + r" \\",
        r"\midrule",
        *(" & ".join([latex_name(row.name), *_cells(row, intervals)]) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _csv(table: AccuracyTable, intervals: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    headings = named_headings(table, table.norm.value)
    extra = [f"{heading} {side}" for heading in headings for side in ("low", "high")] if intervals else []
    writer.writerow(["name", "acr", *headings, *extra, "abstention", "inputs"])
    for row in table.rows:
        acr, *accuracies, abstention, inputs = _cells(row, intervals=False)
        bounds = [bound for count in row.certified for bound in _bounds(count, row.inputs)] if intervals else []
        writer.writerow([row.name, acr, *accuracies, *bounds, abstention, inputs])
    return text.getvalue()


def markdown_name(name: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#&~$])", r"\\\1", " ".join(name.split()))


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
}


def latex_name(name: str) -> str:
    return "".join(_LATEX_SPECIAL.get(character, character) for character in " ".join(name.split()))


_FORMATS: dict[str, Callable[[AccuracyTable, bool], str]] = {"md": _markdown, "latex": _latex, "csv": _csv}
