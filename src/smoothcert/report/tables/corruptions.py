"""Tables of results on suites of corruptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from smoothcert.report.corruptions import (
    ACR,
    IDENTITY,
    Measure,
    SuiteResults,
    accuracy_at,
    place_name,
    severity_mean,
    suite_mean,
    suite_title,
    type_mean,
)
from smoothcert.report.notes import markers, notes
from smoothcert.report.tables.layout import Cell, Column, Line, Sheet
from smoothcert.types import UsageError, unknown_name

LINES = ("type", "severity", "set")
"""What a line of the table can stand for; severities, types or nothing are averaged."""

_NAMES_MNIST = {
    "brightness": "Bright",
    "dotted_line": "Line",
    "glass_blur": "Glass",
    "impulse_noise": "Impulse",
    "rotate": "Rotate",
    "shear": "Shear",
    "spatter": "Spatter",
    "translate": "Translate",
    "canny_edges": "Edges",
    "fog": "Fog",
    "motion_blur": "Motion",
    "scale": "Scale",
    "shot_noise": "Shot",
    "stripe": "Stripe",
    "zigzag": "Zigzag",
}
_NAMES_CIFAR = {
    "gaussian_noise": "Gaussian",
    "shot_noise": "Shot",
    "impulse_noise": "Impulse",
    "defocus_blur": "Defocus",
    "glass_blur": "Glass",
    "motion_blur": "Motion",
    "zoom_blur": "Zoom",
    "snow": "Snow",
    "frost": "Frost",
    "fog": "Fog",
    "brightness": "Bright",
    "contrast": "Contrast",
    "elastic_transform": "Elastic",
    "pixelate": "Pixel",
    "jpeg_compression": "JPEG",
}

Value = Callable[[SuiteResults, Measure], Fraction]


def corruption_sheet(
    methods: Sequence[SuiteResults], *, radii: Sequence[float] = (0.0,), lines: str = "type", style: str | None = None
) -> Sheet:
    """Methods side by side: ACR and certified accuracy by corruption, the mean of each, and the clean set apart.

    Args:
        methods: The results, all on the same sets; see :func:`smoothcert.report.corruptions.comparable`.
        radii: Where certified accuracy is wanted.
        lines: What a line stands for, one of ``LINES``.
        style: ``catrs`` names and orders types as Jeong et al. (2023, Tables 14 to 25) do and leaves out the clean set.

    Returns:
        The table; the best and the runner-up of each line are marked, among methods of the same norm and guarantee.
    """
    if lines not in LINES:
        raise unknown_name("kind of line", lines, LINES)
    if style not in (None, "catrs"):
        raise unknown_name("style", str(style), ["catrs"])
    rows = _rows(methods[0], lines, style)
    found: list[Line] = []
    for measure in (ACR, *map(accuracy_at, radii)):
        clean = [(IDENTITY, _clean)] if (IDENTITY, None) in methods[0].outcomes and style is None else []
        for name, value in [*rows, (measure.mean_name, suite_mean), *clean]:
            numbers = [value(method, measure) for method in methods]
            cells = [Cell(measure.text(number), float(number)) for number in numbers]
            found.append(Line((Cell(name), *cells), measure.name))
    shown = [method.subject for method in methods]
    columns = [
        Column(method.name + marker, better="high", rank=each.rank)
        for method, each, marker in zip(methods, shown, markers(shown), strict=True)
    ]
    said = tuple(notes(shown, ranked=True))
    return Sheet(suite_title(methods), (Column(lines), *columns), tuple(found), "measure", across=True, notes=said)


def _rows(results: SuiteResults, lines: str, style: str | None) -> list[tuple[str, Value]]:
    if lines == "severity":
        if not results.severities:
            raise UsageError("these results have no severities to show; take a line for each type.")
        return [(str(level), _at_severity(level)) for level in results.severities]
    names = _paper_names(results.types) if style else {kind: kind for kind in results.types}
    if lines == "type":
        return [(shown, _of_type(kind)) for kind, shown in names.items()]
    places = [(kind, level) for kind in names for level in (None, *results.severities)]
    return [
        (place_name((names[kind], level)), _of_set(kind, level))
        for kind, level in places
        if (kind, level) in results.outcomes
    ]


def _paper_names(types: Sequence[str]) -> dict[str, str]:
    """The paper's names of types, in its order; a type it does not have keeps its name and comes last."""
    known = max((_NAMES_MNIST, _NAMES_CIFAR), key=lambda names: len(names.keys() & set(types)))
    return {kind: name for kind, name in known.items() if kind in types} | {
        kind: kind for kind in types if kind not in known
    }


def _clean(results: SuiteResults, measure: Measure) -> Fraction:
    return measure.of(results.outcomes[IDENTITY, None])


def _of_type(kind: str) -> Value:
    return lambda results, measure: type_mean(results, kind, measure)


def _at_severity(level: int) -> Value:
    return lambda results, measure: severity_mean(results, level, measure)


def _of_set(kind: str, level: int | None) -> Value:
    return lambda results, measure: measure.of(results.outcomes[kind, level])
