"""Tables of ACES over its threshold: natural accuracy, ACR, certified accuracy and certified selection rate."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import rich.box
import rich.table
from rich.console import Group
from rich.text import Text

from smoothcert.report.aces import TABULATED, Components, check_comparable, compose, predictions, selection_counts
from smoothcert.report.metrics import (
    NORM_TEXT,
    Outcomes,
    acr_text,
    average_certified_radius,
    certified_counts,
    parse_radii,
)
from smoothcert.report.tables import (
    AccuracyTable,
    default_radii,
    latex_name,
    markdown_name,
    named_headings,
    percent,
    radius_headings,
)
from smoothcert.types import Norm, UsageError, unknown_name


@dataclass(frozen=True)
class AcesRow:
    """One composition at one threshold.

    Attributes:
        name: The name of the run.
        theta: The threshold.
        natural: The number of inputs that PREDICT classifies correctly.
        acr: The average certified radius.
        certified: The number of inputs certified and right at each radius of the table.
        selected: The number of inputs certified to go to the certifier at each radius of the table.
        inputs: The number of all inputs.
    """

    name: str
    theta: float
    natural: int
    acr: float
    certified: tuple[int, ...]
    selected: tuple[int, ...]
    inputs: int


@dataclass(frozen=True)
class AcesTable:
    """Compositions over their thresholds, at common radii.

    Attributes:
        norm: The norm of the radii.
        radii: The radii of the columns.
        rows: For every run in the order given, a row per threshold.
    """

    norm: Norm
    radii: tuple[float, ...]
    rows: tuple[AcesRow, ...]


def parse_thetas(text: str) -> tuple[float, ...]:
    """Thresholds from text: a comma-separated list, or ``first:last:step``.

    Raises:
        UsageError: If the text is malformed, or a threshold lies outside [0, 1] or is given twice.

    Example:
        >>> parse_thetas("0.1,0.3")
        (0.1, 0.3)
    """
    try:
        thetas = parse_radii(text)
    except UsageError:
        thetas = (np.inf,)
    if max(thetas) > 1:
        raise UsageError(f"theta {text!r} must read like 0.1,0.3 or 0:1:0.1, with numbers in [0, 1], each given once.")
    return thetas


def aces_table(
    runs: Sequence[Components], thetas: Sequence[float] | None = None, radii: Sequence[float] | None = None
) -> AcesTable:
    """Measure compositions at thresholds and radii (Horváth et al., 2022, Tables 1 to 14).

    Args:
        runs: The components of one or several compositions over the same inputs.
        thetas: The thresholds; without them those of the paper's tables that are stored.
        radii: The radii of the columns; without them 0, 0.25, … up to the largest radius present.

    Returns:
        The table, to be shown by ``render_aces`` or ``rich_aces``.

    Raises:
        UsageError: If the runs cannot be compared, a threshold is not stored, or a radius is negative.

    Example:
        >>> certifier = Outcomes("run", [0, 1, 2], [5, 5, 5], [5, 5, 5], [0.5, 0.2, 0.9])
        >>> parts = Components(
        ...     certifier=certifier, predicted=[5, 5, 5], core=[5, 5, 7], thetas=[0.1], choice=[[1, -1, 0]],
        ...     choice_radius=[[0.3, 0.0, 0.8]], choice_predicted=[[1, 1, 0]],
        ... )
        >>> print(render_aces(aces_table([parts], radii=[0, 0.25]), "csv"), end="")
        name,theta,nac,acr,accuracy 0.00,accuracy 0.25,selection 0.00,selection 0.25,inputs
        run,0.10,66.7,0.100,66.7,33.3,33.3,33.3,3
    """
    check_comparable(runs)
    norm = runs[0].norm
    columns = tuple(float(radius) for radius in (_usual_radii(runs) if radii is None else radii))
    if not columns:
        raise UsageError("a table of certified accuracy needs at least one radius.")
    rows = [_row(run, theta, columns) for run in runs for theta in (_usual_thetas(run) if thetas is None else thetas)]
    if not rows:
        raise UsageError("a table of ACES needs at least one threshold.")
    return AcesTable(norm, columns, tuple(rows))


def _row(run: Components, theta: float, radii: tuple[float, ...]) -> AcesRow:
    outcomes = compose(run, theta)
    return AcesRow(
        name=run.name,
        theta=float(theta),
        natural=int((predictions(run, theta) == run.label).sum()),
        acr=average_certified_radius(outcomes),
        certified=tuple(certified_counts(outcomes, radii).tolist()),
        selected=tuple(selection_counts(run, theta, radii).tolist()),
        inputs=len(outcomes),
    )


def _usual_thetas(run: Components) -> list[float]:
    stored = [theta for theta in TABULATED if np.isclose(run.thetas, theta, rtol=0, atol=1e-9).any()]
    return stored or run.thetas.tolist()


def _usual_radii(runs: Sequence[Components]) -> tuple[float, ...]:
    largest = max(max(float(run.certifier.radius.max()), float(run.choice_radius.max())) for run in runs)
    zero = np.zeros(1, dtype=np.int64)
    return default_radii([Outcomes("largest", zero, zero, zero, np.array([largest]), runs[0].norm)])


def render_aces(table: AcesTable, format: str) -> str:
    """Write a table as text, rounded as ``tables.render`` does.

    Args:
        table: The table.
        format: ``md`` or ``latex`` (needs booktabs): one table of certified accuracy and one of selection rates, as the
            paper's Tables 8 and 9; ``csv``: both in one row per threshold.

    Returns:
        The text, with a line end.

    Raises:
        UsageError: If the format is unknown.
    """
    if format not in _FORMATS:
        raise unknown_name("table format", format, _FORMATS)
    return _FORMATS[format](table)


def rich_aces(table: AcesTable) -> Group:
    """Both tables for the terminal, with the digits of ``render_aces``."""
    shown = []
    for title, part in _parts(table).items():
        drawn = rich.table.Table(title=f"{title} (%) at {NORM_TEXT[table.norm]} radius", box=rich.box.SIMPLE_HEAD)
        drawn.add_column("run", overflow="fold", min_width=8)
        headings = ["θ", "NAC", "ACR", *radius_headings(_columns(table))]
        for heading, *column in zip(headings, *part, strict=True):
            # Names may wrap in a narrow terminal, numbers may not.
            drawn.add_column(heading, justify="right", min_width=max(map(len, [heading, *column])))
        for row, cells in zip(table.rows, part, strict=True):
            drawn.add_row(Text(row.name), *cells)
        shown.append(drawn)
    return Group(*shown)


def _parts(table: AcesTable) -> dict[str, list[list[str]]]:
    """The cells of both tables, without the names."""
    thetas = radius_headings(AccuracyTable(Norm.L2, tuple(row.theta for row in table.rows), ()))

    def cells(theta: str, row: AcesRow, counts: Sequence[int]) -> list[str]:
        natural, *shares = (percent(count, row.inputs) for count in (row.natural, *counts))
        return [theta, natural, acr_text(row.acr), *shares]

    return {
        "Certified accuracy": [cells(t, row, row.certified) for t, row in zip(thetas, table.rows, strict=True)],
        "Certified selection rate": [cells(t, row, row.selected) for t, row in zip(thetas, table.rows, strict=True)],
    }


def _columns(table: AcesTable) -> AccuracyTable:
    return AccuracyTable(table.norm, table.radii, ())


def _markdown(table: AcesTable) -> str:
    headings = ["run", "θ", "NAC", "ACR", *radius_headings(_columns(table))]
    rules = ["---", *["---:"] * (len(headings) - 1)]
    texts = []
    for title, part in _parts(table).items():
        body = [[markdown_name(row.name), *cells] for row, cells in zip(table.rows, part, strict=True)]
        lines = "".join(f"| {' | '.join(line)} |\n" for line in [headings, rules, *body])
        texts.append(f"{title} (%) at {NORM_TEXT[table.norm]} radius\n\n{lines}")
    return "\n".join(texts)


def _latex(table: AcesTable) -> str:
    norm = {Norm.LINF: r"\infty"}.get(table.norm, table.norm.value[1:])
    count = len(table.radii)
    texts = []
    for title, part in _parts(table).items():
        lines = [
            rf"\begin{{tabular}}{{l{'r' * (count + 3)}}}",
            r"\toprule",
            rf" &  &  &  & \multicolumn{{{count}}}{{c}}{{{title} (\%) at $\ell_{norm}$ radius}} \\",
            rf"\cmidrule(lr){{5-{count + 4}}}",
            " & ".join(["run", r"$\theta$", "NAC", "ACR", *radius_headings(_columns(table))]) + r" \\",
            r"\midrule",
            *(" & ".join([latex_name(row.name), *cells]) + r" \\" for row, cells in zip(table.rows, part, strict=True)),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        texts.append("\n".join(lines) + "\n")
    return "\n".join(texts)


def _csv(table: AcesTable) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    radii = named_headings(_columns(table), table.norm.value)
    kinds = [f"{kind} {radius}" for kind in ("accuracy", "selection") for radius in radii]
    writer.writerow(["name", "theta", "nac", "acr", *kinds, "inputs"])
    accuracy, selection = _parts(table).values()
    for row, first, second in zip(table.rows, accuracy, selection, strict=True):
        writer.writerow([row.name, *first, *second[3:], row.inputs])
    return text.getvalue()


_FORMATS: dict[str, Callable[[AcesTable], str]] = {"md": _markdown, "latex": _latex, "csv": _csv}
