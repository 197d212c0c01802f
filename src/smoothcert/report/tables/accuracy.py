"""Tables of certified accuracy, digit for digit as the papers print them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Literal

import rich.table

from smoothcert.report.intervals import acr_interval, wilson_interval
from smoothcert.report.metrics import NORM_TEXT, average_certified_radius, certified_counts, common_norm
from smoothcert.report.notes import Subject, csv_columns, markers, notes
from smoothcert.report.tables.grouping import apart, gather_seeds, group_by_scale, scale_heading
from smoothcert.report.tables.layout import Cell, Column, Line, Sheet, render_sheet, rich_sheet
from smoothcert.report.tables.styles import TableStyle, table_style
from smoothcert.store import Outcomes
from smoothcert.types import Norm, UsageError

_MOST_COLUMNS = 12


@dataclass(frozen=True)
class AccuracyRow:
    """One line of a table.

    Attributes:
        name: The name of the run, or of the runs that differ in their seeds only.
        runs: The run, or those runs.
        certified: For each of them the number of inputs certified and right at each radius of the table.
        group: The group of the line.
        scale: The scale of the noise as text, where it is known.
    """

    name: str
    runs: tuple[Outcomes, ...]
    certified: tuple[tuple[int, ...], ...]
    group: str = ""
    scale: str = ""


@dataclass(frozen=True)
class AccuracyTable:
    """Certified accuracy of several runs at common radii.

    Attributes:
        norm: The norm of the radii, as far as a run tells it.
        radii: The radii of the columns.
        rows: The lines, by group, else in the order given.
        group_heading: What the groups are: σ, λ or keep; empty without groups.
        scale_heading: What the scales of all lines are, where all are known and of one noise.
    """

    norm: Norm | None
    radii: tuple[float, ...]
    rows: tuple[AccuracyRow, ...]
    group_heading: str = ""
    scale_heading: str = ""

    @property
    def subjects(self) -> list[Subject]:
        """The lines, for markers and notes about them."""
        return [Subject(row.name, row.runs) for row in self.rows]


def accuracy_table(
    runs: Sequence[Outcomes], radii: Sequence[float] | None = None, *, each: bool = False
) -> AccuracyTable:
    """Put the certified accuracies of several runs side by side.

    Runs that differ in their seeds only become one line, their mean and sample standard deviation; runs at several
    noise scales are grouped by them, where that is known of all and a scale has several lines.

    Radii in different norms do not belong into one column, so runs of different norms are refused; a run whose norm
    is unknown is shown with others of one norm and is marked. See ``notes`` for markers and ranking.

    Args:
        runs: The outcomes of the runs, all in one norm as far as it is known.
        radii: The radii of the columns; without them ``default_radii``.
        each: Whether every run has a line of its own, whatever it differs in.

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
    lines = apart(runs) if each else gather_seeds(runs)
    heading, grouped = group_by_scale(lines)
    rows = tuple(
        AccuracyRow(
            name=line.name,
            runs=line.runs,
            certified=tuple(tuple(certified_counts(run, columns).tolist()) for run in line.runs),
            group=group,
            scale=line.scale,
        )
        for group, line in grouped
    )
    return AccuracyTable(norm, columns, rows, heading, scale_heading(lines))


def default_radii(runs: Sequence[Outcomes]) -> tuple[float, ...]:
    """The radii 0, 0.25, … up to the largest radius present, rounded up; coarser steps where 12 columns do not suffice.

    In ℓ0, where a radius is a number of pixels, the steps are whole.

    Example:
        >>> default_radii([Outcomes("run", [0], [5], [5], [0.6])])
        (0.0, 0.25, 0.5, 0.75)
    """
    largest = max(float(run.radius.max()) for run in runs)
    step = 1.0 if common_norm(runs) is Norm.L0 else 0.25
    while largest > (_MOST_COLUMNS - 1) * step:
        step *= 2
    return tuple(step * i for i in range(math.ceil(largest / step) + 1))


def render(
    table: AccuracyTable, format: str, *, intervals: bool = False, style: str = "plain", marks: bool = True
) -> str:
    """Write a table as text.

    Accuracies and abstentions are shares in per cent with one decimal, rounded to the nearest, ties to even, from the
    exact counts. The ACR is an average, not a certificate, and is rounded to the nearest too, at three decimals, as the
    papers print it; the radius of a single input always rounds down. Means over seeds have one decimal more.

    Args:
        format: ``md``, ``latex`` (needs the package booktabs), ``csv`` (per cent without the sign) or ``html``.
        intervals: Whether to add 95 % intervals over the test sample, rounded outwards: Wilson's of every accuracy, the
            bootstrap's of the ACR. Means over seeds show their standard deviation instead.
        style: A name in ``TABLE_STYLES``.
        marks: Whether the best value of a column is bold and the runner-up underlined, among runs of the same norm and
            guarantee.

    Returns:
        The text, with a line end. Norm, guarantee, arithmetic and the expected number of false statements stand below
        the table; in ``csv`` they are columns, as far as they are known of any run.
    """
    if format == "csv" and style == "plain":
        return render_sheet(_plain_csv(table, intervals), "csv")
    sheet = accuracy_sheet(table, intervals=intervals, style=style, marks=marks)
    if format == "csv":
        sheet = _with_metadata(sheet, table)
    if format in ("md", "csv"):  # they know no headings over several columns
        flat = iter(named_headings(table.norm, table.radii, NORM_TEXT[table.norm] if format == "md" else ""))
        columns = tuple(
            replace(column, heading=next(flat), over="") if column.over else column for column in sheet.columns
        )
        sheet = replace(sheet, title="", columns=columns)
    return render_sheet(sheet, format)


def rich_table(
    table: AccuracyTable, *, intervals: bool = False, style: str = "plain", marks: bool = True
) -> rich.table.Table:
    """The table for the terminal, with the digits of ``render``."""
    return rich_sheet(accuracy_sheet(table, intervals=intervals, style=style, marks=marks))


def accuracy_sheet(table: AccuracyTable, *, intervals: bool = False, style: str = "plain", marks: bool = True) -> Sheet:
    """The table laid out, with the digits of ``render``; arguments and errors are the same."""
    chosen = table_style(style)
    over = chosen.over.format(norm=NORM_TEXT[table.norm])
    called = table.scale_heading if _by_scale(table, chosen) else "run" if chosen.by_scale else chosen.name
    better: Literal["high", ""] = "high" if marks else ""
    columns = [Column(called)]
    columns += [Column("NAC", better=better)] * chosen.natural + [Column("ACR", better=better)] * chosen.acr
    columns += [Column(heading, over, better) for heading in radius_headings(table.norm, table.radii)]
    columns += [Column("abstain %"), Column("inputs")] * chosen.counts
    shown = table.subjects
    lines = []
    for row, subject, marker in zip(table.rows, shown, markers(shown), strict=True):
        name, *numbers = _cells(table, row, chosen, intervals)
        cells = (Cell(name.text + marker), *numbers)
        lines.append(Line(cells, "" if chosen.by_scale else row.group, subject.rank))
    return Sheet(over, tuple(columns), tuple(lines), table.group_heading, notes=tuple(notes(shown, ranked=marks)))


def _with_metadata(sheet: Sheet, table: AccuracyTable) -> Sheet:
    """The sheet with a column for everything that is known about the radii of its lines."""
    headings, values = csv_columns(table.subjects)
    lines = [
        replace(line, cells=(*line.cells, *map(Cell, texts))) for line, texts in zip(sheet.lines, values, strict=True)
    ]
    return replace(sheet, columns=(*sheet.columns, *map(Column, headings)), lines=tuple(lines))


def radius_headings(norm: Norm | None, radii: Sequence[float]) -> list[str]:
    """Radii as headings, all with the same number of decimals: at least two, in ℓ0 at least none.

    Example:
        >>> radius_headings(Norm.L2, [0.0, 0.125])
        ['0.000', '0.125']
    """
    exact = [Decimal(repr(radius)).normalize() for radius in radii]
    digits = max(0 if norm is Norm.L0 else 2, *(-int(radius.as_tuple().exponent) for radius in exact))
    return [f"{radius:.{digits}f}" for radius in exact]


def named_headings(norm: Norm | None, radii: Sequence[float], name: str = "") -> list[str]:
    """Headings for formats without a title: ℓ2 is named below the table only, and an unknown norm nowhere."""
    headings = radius_headings(norm, radii)
    if norm is None or norm is Norm.L2:
        return headings
    return [f"{name or norm.value} radius {heading}" for heading in headings]


def _by_scale(table: AccuracyTable, style: TableStyle) -> bool:
    scales = [row.scale for row in table.rows]
    return style.by_scale and table.scale_heading != "" and len(set(scales)) == len(scales)


def _cells(table: AccuracyTable, row: AccuracyRow, style: TableStyle, intervals: bool) -> list[Cell]:
    name = f"{table.scale_heading} = {row.scale}" if _by_scale(table, style) else row.name
    scale = 100 if style.percent else 1
    single = len(row.runs) == 1
    cells = [Cell(name)]
    if style.natural:
        known = [run.natural for run in row.runs if run.natural is not None]
        shares = [scale * Fraction(count, len(run)) for count, run in zip(known, row.runs, strict=False)]
        cells.append(_number(shares, style.digits) if len(known) == len(row.runs) else Cell("–"))
    if style.acr:
        bounds = acr_interval(row.runs[0]) if intervals and single else None
        cells.append(_number([_exactly(average_certified_radius(run)) for run in row.runs], 3, bounds))
    for counts in zip(*row.certified, strict=True):
        shares = [scale * Fraction(count, len(run)) for count, run in zip(counts, row.runs, strict=True)]
        bounds = wilson_interval(counts[0], len(row.runs[0])) if intervals and single else None
        cells.append(_number(shares, style.digits, bounds, scale))
    if style.counts:
        abstained = [100 * Fraction(int(run.abstained.sum()), len(run)) for run in row.runs]
        cells += [_number(abstained, 1), Cell(str(len(row.runs[0])))]
    return cells


def _number(values: Sequence[Fraction], digits: int, bounds: tuple[float, float] | None = None, scale: int = 1) -> Cell:
    """A value, perhaps with its interval, still to be scaled; or the mean of several with their standard deviation."""
    mean = sum(values, Fraction(0)) / len(values)
    if len(values) > 1:
        spread = _exactly(statistics.stdev(map(float, values)))
        return Cell(f"{rounded(mean, digits + 1)} ± {rounded(spread, digits + 1)}", float(mean))
    shown = rounded(mean, digits)
    if bounds is not None:
        shown += f" [{', '.join(_outwards(bounds, digits, scale))}]"
    return Cell(shown, float(mean))


def rounded(value: Fraction, digits: int) -> str:
    """A number that is not negative as decimal text, rounded to the nearest, ties to even.

    Example:
        >>> rounded(Fraction(1, 8), 2)
        '0.12'
    """
    return _placed(round(value * 10**digits), digits)


def percent(count: int, total: int) -> str:
    """A share in per cent with one decimal."""
    return rounded(Fraction(100 * count, total), 1)


def _outwards(bounds: tuple[float, float], digits: int, scale: int = 1) -> tuple[str, str]:
    """The ends of an interval as text, the lower rounded down and the upper up."""
    low, high = (bound * (scale * 10**digits) for bound in bounds)
    return _placed(math.floor(low), digits), _placed(math.ceil(high), digits)


def _placed(value: int, digits: int) -> str:
    return f"{value // 10**digits}.{value % 10**digits:0{digits}d}"


def _exactly(value: float) -> Fraction:
    """The number that the shortest text of a float names, so that ties are those that a reader sees."""
    return Fraction(repr(float(value)))


def _plain_csv(table: AccuracyTable, intervals: bool) -> Sheet:
    """The table for machines: one number per cell; where seeds were averaged, standard deviations in own columns."""
    radii = named_headings(table.norm, table.radii)
    spread = any(len(row.runs) > 1 for row in table.rows)
    sides = ["low", "high"] * intervals + ["sd"] * spread
    headings = ["name", "acr", *(f"acr {side}" for side in sides), *radii]
    headings += [f"{radius} {side}" for radius in radii for side in sides]
    headings += ["abstention", *["abstention sd", "seeds"] * spread, "inputs"]
    lines = []
    for row in table.rows:
        texts = {"name": row.name, "seeds": str(len(row.runs)), "inputs": str(len(row.runs[0]))}
        cells = _cells(table, row, table_style("plain"), intervals=False)[1:-1]
        for key, cell in zip(("acr", *radii, "abstention"), cells, strict=True):
            texts[key], _, texts[f"{key} sd"] = cell.text.partition(" ± ")
        if intervals and len(row.runs) == 1:
            texts["acr low"], texts["acr high"] = _outwards(acr_interval(row.runs[0]), 3)
            for radius, count in zip(radii, row.certified[0], strict=True):
                bounds = wilson_interval(count, len(row.runs[0]))
                texts[f"{radius} low"], texts[f"{radius} high"] = _outwards(bounds, 1, 100)
        lines.append(Line(tuple(Cell(texts.get(heading, "")) for heading in headings), row.group))
    group = {"σ": "sigma", "λ": "lambda"}.get(table.group_heading, table.group_heading)
    return _with_metadata(Sheet("", tuple(map(Column, headings)), tuple(lines), group), table)
