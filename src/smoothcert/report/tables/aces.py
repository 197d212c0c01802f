"""Tables of ACES over its threshold: natural accuracy, ACR, certified accuracy and certified selection rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Group

from smoothcert.report.aces import TABULATED, Components, check_comparable, compose, predictions, selection_counts
from smoothcert.report.metrics import (
    NORM_TEXT,
    acr_text,
    average_certified_radius,
    certified_counts,
    common_norm,
    parse_radii,
)
from smoothcert.report.notes import Subject, csv_columns, markers, notes, subjects
from smoothcert.report.tables.accuracy import default_radii, named_headings, percent, radius_headings
from smoothcert.report.tables.layout import Cell, Column, Line, Sheet, render_sheet, rich_sheet
from smoothcert.store import Outcomes
from smoothcert.types import Norm, UsageError

CHOSEN_THETA = (
    "Each line holds at alpha for a threshold that was chosen beforehand; the best of several thresholds on these "
    "inputs is not a certificate at alpha, since the best of k makes up to k times as many errors."
)
"""The sentence for thresholds, which are all computed from the same votes."""


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
        run: Which of the table's runs it is, from 0.
    """

    name: str
    theta: float
    natural: int
    acr: float
    certified: tuple[int, ...]
    selected: tuple[int, ...]
    inputs: int
    run: int = 0


@dataclass(frozen=True)
class AcesTable:
    """Compositions over their thresholds, at common radii.

    Attributes:
        norm: The norm of the radii, as far as a run tells it.
        radii: The radii of the columns.
        rows: For every run in the order given, a row per threshold.
        subjects: The runs, for markers and notes about them.
    """

    norm: Norm | None
    radii: tuple[float, ...]
    rows: tuple[AcesRow, ...]
    subjects: tuple[Subject, ...]

    @property
    def notes(self) -> list[str]:
        """What must be said about the numbers."""
        return [*notes(self.subjects), CHOSEN_THETA]


def parse_thetas(text: str) -> tuple[float, ...]:
    """Thresholds from text: a comma-separated list, or ``first:last:step``.

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
    norm = common_norm([run.certifier for run in runs])
    columns = tuple(float(radius) for radius in (_usual_radii(runs) if radii is None else radii))
    if not columns:
        raise UsageError("a table of certified accuracy needs at least one radius.")
    rows = [
        replace(_row(run, theta, columns), run=number)
        for number, run in enumerate(runs)
        for theta in (_usual_thetas(run) if thetas is None else thetas)
    ]
    if not rows:
        raise UsageError("a table of ACES needs at least one threshold.")
    return AcesTable(norm, columns, tuple(rows), tuple(subjects(run.certifier for run in runs)))


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
    """Write a table as text, rounded as ``tables.render`` does; nothing is marked, for θ is a choice and no contest.

    Args:
        format: ``md``, ``latex`` (needs booktabs) or ``html``: one table of certified accuracy and one of selection
            rates, as the paper's Tables 8 and 9, with notes below the last; ``csv``: both in one row per threshold, and
            what is known about the radii in further columns.
    """
    if format == "csv":
        return render_sheet(_csv_sheet(table), "csv")
    sheets = aces_sheets(table)
    if format == "md":  # the title says what the headings over the radii would
        sheets = [replace(sheet, columns=tuple(Column(c.heading) for c in sheet.columns)) for sheet in sheets]
    return "\n".join(render_sheet(sheet, format) for sheet in sheets)


def rich_aces(table: AcesTable) -> Group:
    """Both tables for the terminal, with the digits of ``render_aces``."""
    return Group(*map(rich_sheet, aces_sheets(table)))


def aces_sheets(table: AcesTable) -> list[Sheet]:
    """The table of certified accuracy and that of certified selection rates, laid out."""
    sheets = []
    marked = markers(table.subjects)
    for what, field in (("Certified accuracy", "certified"), ("Certified selection rate", "selected")):
        title = f"{what} (%) at {NORM_TEXT[table.norm]} radius"
        columns = [Column(heading) for heading in ("run", "θ", "NAC", "ACR")]
        columns += [Column(heading, title) for heading in radius_headings(table.norm, table.radii)]
        lines = []
        for theta, row in zip(_thetas(table), table.rows, strict=True):
            texts = [row.name + marked[row.run], *_numbers(theta, row), *_shares(getattr(row, field), row)]
            lines.append(Line(tuple(map(Cell, texts))))
        sheets.append(Sheet(title, tuple(columns), tuple(lines)))
    return [*sheets[:-1], replace(sheets[-1], notes=tuple(table.notes))]


def _thetas(table: AcesTable) -> list[str]:
    return radius_headings(Norm.L2, [row.theta for row in table.rows])


def _numbers(theta: str, row: AcesRow) -> list[str]:
    return [theta, percent(row.natural, row.inputs), acr_text(row.acr)]


def _shares(counts: Sequence[int], row: AcesRow) -> list[str]:
    return [percent(count, row.inputs) for count in counts]


def _csv_sheet(table: AcesTable) -> Sheet:
    radii = named_headings(table.norm, table.radii)
    kinds = [f"{kind} {radius}" for kind in ("accuracy", "selection") for radius in radii]
    headings, known = csv_columns(table.subjects)
    lines = []
    for theta, row in zip(_thetas(table), table.rows, strict=True):
        texts = [row.name, *_numbers(theta, row), *_shares(row.certified + row.selected, row), str(row.inputs)]
        lines.append(Line(tuple(map(Cell, [*texts, *known[row.run]]))))
    return Sheet("", tuple(map(Column, ["name", "theta", "nac", "acr", *kinds, "inputs", *headings])), tuple(lines))
