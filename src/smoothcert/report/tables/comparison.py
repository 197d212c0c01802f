"""A comparison of two runs on one screen: the verdict, remarks, and three small tables."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from smoothcert.report.comparison import Comparison, p_text, signed, verdict
from smoothcert.report.metrics import NORM_TEXT, acr_text
from smoothcert.report.tables.accuracy import percent, radius_headings
from smoothcert.report.tables.layout import Column, Sheet, render_sentence, render_sheet, rich_sheet, text_line
from smoothcert.types import ABSTAIN, radius_text


def render_comparison(comparison: Comparison, format: str) -> str:
    """Write a comparison as ``md``, ``latex``, ``csv`` or ``html``, the verdict first."""
    parts = [render_sentence(sentence, format) for sentence in (verdict(comparison), *comparison.remarks)]
    return "\n".join([*parts, *(render_sheet(sheet, format) for sheet in _sheets(comparison))])


def rich_comparison(comparison: Comparison) -> Group:
    """Draw a comparison for the terminal."""
    parts: list[RenderableType] = [Text(verdict(comparison), "bold"), *map(Text, comparison.remarks)]
    return Group(*parts, *map(rich_sheet, _sheets(comparison)))


def _sheets(comparison: Comparison) -> list[Sheet]:
    sheets = [_overall(comparison), _by_radius(comparison)]
    return [*sheets, _inputs(comparison)] if comparison.largest else sheets


def _overall(comparison: Comparison) -> Sheet:
    headings = [f"over {comparison.inputs} inputs", *comparison.names, "difference", "95 % interval", "p"]
    low, high = map(signed, comparison.interval)
    difference = signed(comparison.acr[0] - comparison.acr[1])
    lines = [
        ["ACR", *map(acr_text, comparison.acr), difference, f"{low} to {high}", p_text(comparison.acr_p_value)],
        ["inputs with the larger radius", *_counts(comparison.longer), "", p_text(comparison.sign_p_value)],
        ["abstentions", *_counts(comparison.abstained), "", ""],
    ]
    return Sheet("", tuple(map(Column, headings)), tuple(map(text_line, lines)))


def _counts(counts: tuple[int, int]) -> list[str]:
    return [str(counts[0]), str(counts[1]), str(counts[0] - counts[1])]


def _by_radius(comparison: Comparison) -> Sheet:
    columns = [Column(f"{NORM_TEXT[comparison.norm]} radius", align="right")]
    for over in ("certified accuracy (%)", "certified by it alone"):
        columns += [Column(name, over) for name in comparison.names]
    lines = []
    headings = radius_headings(comparison.norm, [found.radius for found in comparison.radii])
    for heading, found in zip(headings, comparison.radii, strict=True):
        accuracies = [percent(count, comparison.inputs) for count in found.certified]
        lines.append([heading, *accuracies, *map(str, found.only), p_text(found.p_value), p_text(found.corrected)])
    return Sheet("", (*columns, Column("p"), Column("p (Holm)")), tuple(map(text_line, lines)))


def _inputs(comparison: Comparison) -> Sheet:
    columns = [Column("input", align="right"), Column("label")]
    columns += [Column(name, over) for over in ("answer", "radius") for name in comparison.names]
    lines = []
    for found in comparison.largest:
        answers = ["abstain" if answer == ABSTAIN else str(answer) for answer in found.predict]
        lines.append([str(found.index), str(found.label), *answers, *map(radius_text, found.radius)])
    return Sheet("Inputs that differ most", tuple(columns), tuple(map(text_line, lines)))
