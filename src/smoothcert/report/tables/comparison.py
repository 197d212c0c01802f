"""A comparison of two runs on one screen: the verdict, what to know besides, and three small tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from smoothcert.report.comparison import Comparison, p_text, signed, verdict
from smoothcert.report.metrics import NORM_TEXT, acr_text
from smoothcert.report.tables.accuracy import percent, radius_headings
from smoothcert.report.tables.layout import Cell, Column, Line, Sheet, render_sentence, render_sheet, rich_sheet
from smoothcert.types import ABSTAIN, radius_text


def comparison_sheets(comparison: Comparison) -> list[Sheet]:
    """The tables of a comparison: both runs as a whole, radius by radius, and the inputs that differ most."""
    sheets = [_overall(comparison), _by_radius(comparison)]
    return [*sheets, _inputs(comparison)] if comparison.largest else sheets


def render_comparison(comparison: Comparison, format: str) -> str:
    """Write a comparison as text, the verdict first.

    Args:
        format: ``md``, ``latex``, ``csv`` or ``html``.
    """
    sentences = [verdict(comparison), *comparison.remarks]
    parts = [render_sentence(sentence, format) for sentence in sentences]
    return "\n".join([*parts, *(render_sheet(sheet, format) for sheet in comparison_sheets(comparison))])


def rich_comparison(comparison: Comparison) -> Group:
    """The same for the terminal."""
    parts: list[RenderableType] = [Text(verdict(comparison), "bold"), *map(Text, comparison.remarks)]
    return Group(*parts, *map(rich_sheet, comparison_sheets(comparison)))


def _overall(comparison: Comparison) -> Sheet:
    columns = [Column(f"over {comparison.inputs} inputs"), *map(Column, comparison.names)]
    columns += [Column("difference"), Column("95 % interval"), Column("p")]
    low, high = map(signed, comparison.interval)
    difference = signed(comparison.acr[0] - comparison.acr[1])
    lines = [
        ["ACR", *map(acr_text, comparison.acr), difference, f"{low} to {high}", p_text(comparison.acr_p_value)],
        ["inputs with the larger radius", *_counts(comparison.longer), "", p_text(comparison.sign_p_value)],
        ["abstentions", *_counts(comparison.abstained), "", ""],
    ]
    return Sheet("", tuple(columns), tuple(Line(tuple(map(Cell, line))) for line in lines))


def _counts(counts: tuple[int, int]) -> list[str]:
    return [str(counts[0]), str(counts[1]), str(counts[0] - counts[1])]


def _by_radius(comparison: Comparison) -> Sheet:
    norm = comparison.norm
    columns = [Column(f"{NORM_TEXT[norm]} radius", align="right")]
    columns += [
        Column(name, over) for over in ("certified accuracy (%)", "certified by it alone") for name in comparison.names
    ]
    columns += [Column("p"), Column("p (Holm)")]
    lines = []
    headings = radius_headings(norm, [found.radius for found in comparison.radii])
    for heading, found in zip(headings, comparison.radii, strict=True):
        accuracies = [percent(count, comparison.inputs) for count in found.certified]
        texts = [heading, *accuracies, *map(str, found.only), p_text(found.p_value), p_text(found.corrected)]
        lines.append(Line(tuple(map(Cell, texts))))
    return Sheet("", tuple(columns), tuple(lines))


def _inputs(comparison: Comparison) -> Sheet:
    columns = [Column("input", align="right"), Column("label")]
    columns += [Column(name, over) for over in ("answer", "radius") for name in comparison.names]
    lines = []
    for found in comparison.largest:
        answers = ["abstain" if answer == ABSTAIN else str(answer) for answer in found.predict]
        texts = [str(found.index), str(found.label), *answers, *(radius_text(radius) for radius in found.radius)]
        lines.append(Line(tuple(map(Cell, texts))))
    return Sheet("Inputs that differ most", tuple(columns), tuple(lines))
