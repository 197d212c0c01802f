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
    radii_or_default,
)
from smoothcert.report.notes import Subject, csv_columns, markers, notes, subjects
from smoothcert.report.tables.accuracy import named_headings, percent, radius_headings
from smoothcert.report.tables.layout import Column, Sheet, render_sheet, rich_sheet, text_line
from smoothcert.types import Norm, UsageError

CHOSEN_THETA = (
    "Each line holds at alpha for a threshold that was chosen beforehand; the best of several thresholds on these "
    "inputs is not a certificate at alpha, since the best of k makes up to k times as many errors."
)
"""The sentence for thresholds, which are all computed from the same votes."""


@dataclass(frozen=True)
class AcesRow:
    """One composition at one threshold."""

    name: str
    theta: float
    natural: int  # inputs that PREDICT classifies correctly
    acr: float
    certified: tuple[int, ...]  # inputs that are certified correctly, at each radius of the table
    selected: tuple[int, ...]  # inputs whose selector is certified to choose the certifier
    inputs: int
    run: int  # the number of the run

    def texts(self, counts: Sequence[int]) -> list[str]:
        """Write NAC, ACR and the shares that counts are of all inputs."""
        shares = [percent(count, self.inputs) for count in (self.natural, *counts)]
        return [shares[0], acr_text(self.acr), *shares[1:]]


@dataclass(frozen=True)
class AcesTable:
    """Compositions over their thresholds at common radii: a row per run and threshold."""

    norm: Norm | None
    radii: tuple[float, ...]
    rows: tuple[AcesRow, ...]
    subjects: tuple[Subject, ...]

    @property
    def notes(self) -> list[str]:
        return [*notes(self.subjects), CHOSEN_THETA]

    @property
    def thetas(self) -> list[str]:
        """The thresholds of all rows as text."""
        return radius_headings(Norm.L2, [row.theta for row in self.rows])


def parse_thetas(text: str) -> tuple[float, ...]:
    """Parse thresholds: a comma-separated list, or ``first:last:step``."""
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

    The thresholds are by default those of the paper's tables that are stored.
    """
    check_comparable(runs)
    certifiers = [run.certifier for run in runs]
    columns = radii_or_default(certifiers, radii)
    rows = []
    for number, run in enumerate(runs):
        stored = [theta for theta in TABULATED if np.isclose(run.thetas, theta, rtol=0, atol=1e-9).any()]
        for theta in (stored or run.thetas.tolist()) if thetas is None else thetas:
            outcomes = compose(run, theta)
            row = AcesRow(
                name=run.name,
                theta=float(theta),
                natural=int((predictions(run, theta) == outcomes.label).sum()),
                acr=average_certified_radius(outcomes),
                certified=tuple(certified_counts(outcomes, columns).tolist()),
                selected=tuple(selection_counts(run, theta, columns).tolist()),
                inputs=len(outcomes),
                run=number,
            )
            rows.append(row)
    if not rows:
        raise UsageError("a table of ACES needs at least one threshold.")
    return AcesTable(common_norm(certifiers), columns, tuple(rows), tuple(subjects(certifiers)))


def render_aces(table: AcesTable, format: str) -> str:
    """Write a table as text, rounded as ``tables.render`` does; θ is a choice, so nothing is ranked.

    ``md``, ``latex`` (needs booktabs) and ``html`` have one table of certified accuracy and one of selection rates, as
    the paper's Tables 8 and 9, with notes below the last; ``csv`` has both in one row per threshold, and metadata.
    """
    if format == "csv":
        return render_sheet(_csv_sheet(table), "csv")
    sheets = _sheets(table)
    if format == "md":  # the title has the text of the headings over the radii
        sheets = [replace(sheet, columns=tuple(Column(c.heading) for c in sheet.columns)) for sheet in sheets]
    return "\n".join(render_sheet(sheet, format) for sheet in sheets)


def rich_aces(table: AcesTable) -> Group:
    """Draw both tables for the terminal, with the digits of ``render_aces``."""
    return Group(*map(rich_sheet, _sheets(table)))


def _sheets(table: AcesTable) -> list[Sheet]:
    sheets = []
    marked = markers(table.subjects)
    for what, field in (("Certified accuracy", "certified"), ("Certified selection rate", "selected")):
        title = f"{what} (%) at {NORM_TEXT[table.norm]} radius"
        columns = [Column(heading) for heading in ("run", "θ", "NAC", "ACR")]
        columns += [Column(heading, title) for heading in radius_headings(table.norm, table.radii)]
        lines = [
            text_line([row.name + marked[row.run], theta, *row.texts(getattr(row, field))])
            for theta, row in zip(table.thetas, table.rows, strict=True)
        ]
        sheets.append(Sheet(title, tuple(columns), tuple(lines)))
    return [*sheets[:-1], replace(sheets[-1], notes=tuple(table.notes))]


def _csv_sheet(table: AcesTable) -> Sheet:
    radii = named_headings(table.norm, table.radii)
    kinds = [f"{kind} {radius}" for kind in ("accuracy", "selection") for radius in radii]
    headings, known = csv_columns(table.subjects)
    lines = [
        text_line([row.name, theta, *row.texts(row.certified + row.selected), str(row.inputs), *known[row.run]])
        for theta, row in zip(table.thetas, table.rows, strict=True)
    ]
    return Sheet("", tuple(map(Column, ["name", "theta", "nac", "acr", *kinds, "inputs", *headings])), tuple(lines))
