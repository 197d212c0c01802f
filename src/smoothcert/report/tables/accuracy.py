"""Tables of certified accuracy, digit for digit as the papers print them."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Literal

import rich.table

from smoothcert.report.intervals import acr_interval, wilson_interval
from smoothcert.report.metrics import (
    NORM_TEXT,
    average_certified_radius,
    certified_counts,
    common_norm,
    radii_or_default,
)
from smoothcert.report.notes import Subject, csv_columns, markers, notes, ranks
from smoothcert.report.tables.layout import Cell, Column, Line, Sheet, render_sheet, rich_sheet
from smoothcert.store import Origin, Outcomes
from smoothcert.store.result import scale_heading
from smoothcert.types import Norm, unknown_name


@dataclass(frozen=True, kw_only=True)
class TableStyle:
    """The columns of a table of certified accuracy, and how they are printed."""

    source: str  # the paper whose tables look like this
    name: str = "run"  # the heading of the column of names
    over: str = "Certified accuracy (%) at {norm} radius"  # the heading over the radii
    acr: bool = True  # whether the average certified radius is shown
    natural: bool = False  # whether natural accuracy (NAC), by PREDICT, is shown where it is known
    counts: bool = False  # whether abstentions and the number of inputs are shown
    percent: bool = True  # whether accuracies are per cent, or else shares of 1
    digits: int = 1  # the decimals of accuracies; one more where seeds are averaged
    by_scale: bool = False  # whether runs are named, not grouped, by their noise scale, where all scales differ


TABLE_STYLES = {
    "plain": TableStyle(source="ours", counts=True),
    "catrs": TableStyle(source="Jeong et al. (2023), CAT-RS, Tables 3 to 6", name="Methods"),
    "smoothmix": TableStyle(source="Jeong et al. (2021), SmoothMix, Tables 4 to 7", name="Models"),
    "aces": TableStyle(
        source="Horváth et al. (2022), ACES, Tables 1 to 17",
        name="Training",
        over="Certified accuracy (%) at {norm} radius r",
        natural=True,
    ),
    "cohen": TableStyle(
        source="Cohen et al. (2019), tables of the appendix: a line per σ, shares of 1",
        name="σ",
        over="Certified accuracy at {norm} radius r",
        acr=False,
        percent=False,
        digits=2,
        by_scale=True,
    ),
}
"""Every style by name; a new one is one entry here."""


@dataclass(frozen=True)
class Row(Subject):
    """A run, or several that differ in their seeds only; with the noise scale as text where known, and a group."""

    scale: str = ""
    group: str = ""


@dataclass(frozen=True)
class AccuracyTable:
    """Certified accuracy of several runs at common radii, and the symbol of their noise scales where all are known."""

    norm: Norm | None
    radii: tuple[float, ...]
    rows: tuple[Row, ...]
    scale_heading: str = ""

    @property
    def group_heading(self) -> str:
        """The heading of the groups; empty without groups."""
        return self.scale_heading if any(row.group for row in self.rows) else ""


def accuracy_table(
    runs: Sequence[Outcomes], radii: Sequence[float] | None = None, *, each: bool = False
) -> AccuracyTable:
    """Put the certified accuracies of several runs side by side.

    Runs that differ in their seeds only become one row, with mean and sample standard deviation. Rows are grouped by
    noise scale, where all scales are known and one of them has several rows. Runs in different norms are refused; a run
    whose norm is unknown is marked. See ``notes`` for markers and ranking. With ``each``, every run has a separate row.

    Example:
        >>> run = Outcomes("a_b", [0, 1, 2], [5, 5, 5], [5, 5, -1], [0.5, 0.2, 0.0])
        >>> print(render(accuracy_table([run], [0, 0.25]), "csv"), end="")
        name,acr,0.00,0.25,abstention,inputs
        a_b,0.233,66.7,33.3,33.3,3
    """
    norm = common_norm(runs)
    rows = _separate_rows(runs) if each else gather_seeds(runs)
    heading = _scale_heading(rows)
    sizes = Counter(row.scale for row in rows)
    repeated = len({row.name for row in rows}) < len(rows)
    if heading and len(sizes) > 1 and (max(sizes.values()) > 1 or repeated):
        rows = sorted((replace(row, group=row.scale) for row in rows), key=lambda row: float(row.scale))
    return AccuracyTable(norm, radii_or_default(runs, radii), tuple(rows), heading)


def gather_seeds(runs: Sequence[Outcomes]) -> list[Row]:
    """Put runs into one row that differ only in the seed of the noise or of the training.

    They must be about the same inputs, and no two of them may have the same seeds: two checkpoints of one training are
    not two trainings. Rows are in the order of their first runs.
    """
    by_origin: dict[object, list[Outcomes]] = {}
    for number, run in enumerate(runs):
        alike = (run.origin or Origin()).alike
        key = number if alike is None else (alike, run.index.tobytes())
        by_origin.setdefault(key, []).append(run)
    groups: list[Sequence[Outcomes]] = []
    for found in by_origin.values():
        seeds = {(run.origin or Origin()).seeds for run in found}
        groups += [found] if len(seeds) == len(found) else [[run] for run in found]
    return [
        Row(name, tuple(found), scale=_scale(found[0]))
        for name, found in zip(_group_names(groups), groups, strict=True)
    ]


def _separate_rows(runs: Sequence[Outcomes]) -> list[Row]:
    return [Row(run.name, (run,), scale=_scale(run)) for run in runs]


def _scale_heading(rows: Sequence[Row]) -> str:
    """Return σ, λ or keep; empty where a noise scale is unknown or the noises differ."""
    noises = {(run.origin or Origin()).noise for row in rows for run in row.runs}
    if len(noises) != 1 or not all(row.scale for row in rows):
        return ""
    return scale_heading(str(noises.pop()))


def _scale(run: Outcomes) -> str:
    scale = (run.origin or Origin()).scale
    if scale is None:
        return ""
    text = f"{scale:.2f}"
    return text if float(text) == scale else f"{scale:g}"


def _group_names(groups: Sequence[Sequence[Outcomes]]) -> list[str]:
    """Name runs of several seeds by their recipe, by the common beginning of their names, or by the first of them.

    The first of these that no other group has is used; where all noise scales are known, no other of the same scale. A
    single run keeps its name.
    """
    scales = [_scale(group[0]) for group in groups]
    options = [[group[0].name] if len(group) == 1 else _common_names(group) for group in groups]
    names = []
    for number, (group, own) in enumerate(zip(groups, options, strict=True)):
        near = (i for i, scale in enumerate(scales) if i != number and (scale == scales[number] or "" in scales))
        taken = {name for i in near for name in options[i]}
        name = next((name for name in own if name not in taken), own[-1])
        names.append(name if len(group) == 1 else f"{name} ({len(group)} seeds)")
    return names


def _common_names(runs: Sequence[Outcomes]) -> list[str]:
    recipes = {(run.origin or Origin()).recipe for run in runs}
    recipe = recipes.pop() if len(recipes) == 1 else None
    beginning = os.path.commonprefix([run.name for run in runs])  # noqa: RUF071 (of characters)
    found = [recipe, re.sub(r"[-_. ]*(seed|s)?[-_. ]*$", "", beginning), runs[0].name]
    return [name for name in found if name]


def render(
    table: AccuracyTable, format: str, *, intervals: bool = False, style: str = "plain", marks: bool = True
) -> str:
    """Write a table as text, with the notes below it; in ``csv``, known metadata are columns.

    Shares are rounded to nearest, ties to even, from the exact counts. The ACR is an average, not a certificate, and is
    rounded to nearest at three decimals as in the papers; the radius of a single input always rounds down.

    Args:
        format: ``md``, ``latex`` (needs the package booktabs), ``csv`` (per cent without the sign) or ``html``.
        intervals: Whether to add 95 % intervals over the test sample, rounded outwards: Wilson's for accuracies, the
            bootstrap's for the ACR. Means over seeds show their standard deviation instead.
        style: A name in ``TABLE_STYLES``.
        marks: Whether best and runner-up are marked, among runs of the same norm, guarantee and inputs.
    """
    if format == "csv" and style == "plain":
        return render_sheet(_plain_csv(table, intervals), "csv")
    sheet = _sheet(table, intervals, style, marks)
    if format == "csv":
        sheet = _with_metadata(sheet, table)
    if format in ("md", "csv"):  # without headings over several columns
        flat = iter(named_headings(table.norm, table.radii, NORM_TEXT[table.norm] if format == "md" else ""))
        columns = tuple(
            replace(column, heading=next(flat), over="") if column.over else column for column in sheet.columns
        )
        sheet = replace(sheet, title="", columns=columns)
    return render_sheet(sheet, format)


def rich_table(
    table: AccuracyTable, *, intervals: bool = False, style: str = "plain", marks: bool = True
) -> rich.table.Table:
    """Draw the table for the terminal, with the digits of ``render``."""
    return rich_sheet(_sheet(table, intervals, style, marks))


def _sheet(table: AccuracyTable, intervals: bool, style: str, marks: bool) -> Sheet:
    if style not in TABLE_STYLES:
        raise unknown_name("table style", style, TABLE_STYLES)
    chosen = TABLE_STYLES[style]
    over = chosen.over.format(norm=NORM_TEXT[table.norm])
    by_scale = chosen.by_scale and table.scale_heading and len({row.scale for row in table.rows}) == len(table.rows)
    better: Literal["high", ""] = "high" if marks else ""
    columns = [Column(table.scale_heading if by_scale else "run" if chosen.by_scale else chosen.name)]
    columns += [Column("NAC", better=better)] * chosen.natural + [Column("ACR", better=better)] * chosen.acr
    columns += [Column(heading, over, better) for heading in radius_headings(table.norm, table.radii)]
    columns += [Column("abstain %"), Column("inputs")] * chosen.counts
    lines = []
    for row, marker, rank in zip(table.rows, markers(table.rows), ranks(table.rows), strict=True):
        name = Cell((f"{table.scale_heading} = {row.scale}" if by_scale else row.name) + marker)
        cells = (name, *_cells(table, row, chosen, intervals))
        lines.append(Line(cells, "" if chosen.by_scale else row.group, rank))
    said = tuple(notes(table.rows, ranked=marks))
    return Sheet(over, tuple(columns), tuple(lines), table.group_heading, notes=said)


def _with_metadata(sheet: Sheet, table: AccuracyTable) -> Sheet:
    headings, values = csv_columns(table.rows)
    lines = [
        replace(line, cells=(*line.cells, *map(Cell, texts))) for line, texts in zip(sheet.lines, values, strict=True)
    ]
    return replace(sheet, columns=(*sheet.columns, *map(Column, headings)), lines=tuple(lines))


def radius_headings(norm: Norm | None, radii: Sequence[float]) -> list[str]:
    """Write radii as headings with equally many decimals: at least two, in ℓ0 none where all are whole."""
    exact = [Decimal(repr(radius)).normalize() for radius in radii]
    digits = max(0 if norm is Norm.L0 else 2, *(-int(radius.as_tuple().exponent) for radius in exact))
    return [f"{radius:.{digits}f}" for radius in exact]


def named_headings(norm: Norm | None, radii: Sequence[float], name: str = "") -> list[str]:
    """Write headings for formats without a title: they name every known norm but ℓ2."""
    called = "" if norm is None or norm is Norm.L2 else f"{name or norm.value} radius "
    return [called + heading for heading in radius_headings(norm, radii)]


def _cells(table: AccuracyTable, row: Row, style: TableStyle, intervals: bool) -> list[Cell]:
    scale = 100 if style.percent else 1
    sizes = [len(run) for run in row.runs]
    intervals = intervals and len(sizes) == 1
    cells = []
    if style.natural:
        known = [run.natural for run in row.runs if run.natural is not None]
        cells.append(_share(known, sizes, scale, style.digits) if len(known) == len(sizes) else Cell("–"))
    if style.acr:
        bounds = acr_interval(row.runs[0]) if intervals else None
        cells.append(_number([_exactly(average_certified_radius(run)) for run in row.runs], 3, bounds))
    for counts in zip(*(certified_counts(run, table.radii).tolist() for run in row.runs), strict=True):
        bounds = wilson_interval(counts[0], sizes[0]) if intervals else None
        cells.append(_share(counts, sizes, scale, style.digits, bounds))
    if style.counts:
        abstained = [int(run.abstained.sum()) for run in row.runs]
        cells += [_share(abstained, sizes, 100, 1), Cell(str(sizes[0]))]
    return cells


def _share(
    counts: Sequence[int], sizes: Sequence[int], scale: int, digits: int, bounds: tuple[float, float] | None = None
) -> Cell:
    shares = [scale * Fraction(count, size) for count, size in zip(counts, sizes, strict=True)]
    return _number(shares, digits, bounds, scale)


def _number(values: Sequence[Fraction], digits: int, bounds: tuple[float, float] | None = None, scale: int = 1) -> Cell:
    """Print a value, perhaps with its interval (not scaled yet), or the mean and standard deviation of several."""
    mean = sum(values, Fraction(0)) / len(values)
    if len(values) > 1:
        spread = _exactly(statistics.stdev(map(float, values)))
        return Cell(f"{rounded(mean, digits + 1)} ± {rounded(spread, digits + 1)}", float(mean))
    shown = rounded(mean, digits)
    if bounds is not None:
        shown += f" [{', '.join(_outwards(bounds, digits, scale))}]"
    return Cell(shown, float(mean))


def rounded(value: Fraction, digits: int) -> str:
    """Write a number that is not negative with some decimals, rounded to nearest, ties to even."""
    return _decimal(round(value * 10**digits), digits)


def percent(count: int, total: int) -> str:
    """Write a share in per cent with one decimal."""
    return rounded(Fraction(100 * count, total), 1)


def _outwards(bounds: tuple[float, float], digits: int, scale: int = 1) -> tuple[str, str]:
    low, high = (bound * (scale * 10**digits) for bound in bounds)
    return _decimal(math.floor(low), digits), _decimal(math.ceil(high), digits)


def _decimal(value: int, digits: int) -> str:
    return f"{value // 10**digits}.{value % 10**digits:0{digits}d}"


def _exactly(value: float) -> Fraction:
    """Return the number that the shortest text of a float names, so that ties are those that a reader sees."""
    return Fraction(repr(float(value)))


def _plain_csv(table: AccuracyTable, intervals: bool) -> Sheet:
    """Lay out a table with one number per cell; intervals and standard deviations have separate columns."""
    radii = named_headings(table.norm, table.radii)
    spread = any(len(row.runs) > 1 for row in table.rows)
    sides = ["low", "high"] * intervals + ["sd"] * spread
    headings = ["name", "acr", *(f"acr {side}" for side in sides), *radii]
    headings += [f"{radius} {side}" for radius in radii for side in sides]
    headings += ["abstention", *["abstention sd", "seeds"] * spread, "inputs"]
    lines = []
    for row in table.rows:
        texts = {"name": row.name, "seeds": str(len(row.runs)), "inputs": str(len(row.runs[0]))}
        cells = _cells(table, row, TABLE_STYLES["plain"], intervals)
        for key, cell in zip(("acr", *radii, "abstention"), cells, strict=False):
            number, _, texts[f"{key} sd"] = cell.text.partition(" ± ")
            texts[key], _, bounds = number.partition(" [")
            texts[f"{key} low"], _, texts[f"{key} high"] = bounds.rstrip("]").partition(", ")
        lines.append(Line(tuple(Cell(texts.get(heading, "")) for heading in headings), row.group))
    group = {"σ": "sigma", "λ": "lambda"}.get(table.group_heading, table.group_heading)
    return _with_metadata(Sheet("", tuple(map(Column, headings)), tuple(lines), group), table)
