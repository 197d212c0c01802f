"""Tables of results on suites of corruptions."""

from __future__ import annotations

from collections.abc import Sequence

from smoothcert.report.corruptions import (
    ACR,
    IDENTITY,
    Place,
    SuiteResults,
    accuracy_at,
    place_name,
    suite_mean,
    suite_norm,
)
from smoothcert.report.metrics import axis_norm
from smoothcert.report.notes import markers, notes
from smoothcert.report.tables.layout import Cell, Column, Line, Sheet
from smoothcert.types import UsageError, unknown_name

LINES = ("type", "severity", "set")
"""What a line of the table is about: a type (mean over severities), a severity (mean over types), or one set."""

# fmt: off
_ORDER_MNIST = (
    "brightness", "dotted_line", "glass_blur", "impulse_noise", "rotate", "shear", "spatter", "translate",
    "canny_edges", "fog", "motion_blur", "scale", "shot_noise", "stripe", "zigzag",
)
_ORDER_CIFAR = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)
# fmt: on
_SPECIAL_NAMES = {
    "brightness": "Bright",
    "dotted_line": "Line",
    "canny_edges": "Edges",
    "pixelate": "Pixel",
    "jpeg_compression": "JPEG",
}


def corruption_sheet(
    methods: Sequence[SuiteResults], *, radii: Sequence[float] = (0.0,), lines: str = "type", style: str | None = None
) -> Sheet:
    """Show methods side by side: ACR and certified accuracy by corruption, their means, and the clean set.

    Best and runner-up of each line are marked, among methods of the same norm and guarantee.

    Args:
        methods: The results, all on the same sets; see :func:`smoothcert.report.corruptions.comparable`.
        lines: One of ``LINES``.
        style: ``catrs`` names and orders types as Jeong et al. (2023, Tables 14 to 25) do and leaves out the clean set.
    """
    if lines not in LINES:
        raise unknown_name("kind of line", lines, LINES)
    if style not in (None, "catrs"):
        raise unknown_name("style", str(style), ["catrs"])
    rows = _rows(methods[0], lines, style)
    clean = [(IDENTITY, [(IDENTITY, None)])] if (IDENTITY, None) in methods[0].outcomes and style is None else []
    found: list[Line] = []
    for measure in (ACR, *map(accuracy_at, radii)):
        for name, places in [*rows, (measure.mean_name, None), *clean]:
            numbers = [suite_mean(method, measure, places) for method in methods]
            cells = [Cell(measure.text(number), float(number)) for number in numbers]
            found.append(Line((Cell(name), *cells), measure.name))
    shown = [method.subject for method in methods]
    columns = [
        Column(method.name + marker, better="high", rank=each.rank)
        for method, each, marker in zip(methods, shown, markers(shown), strict=True)
    ]
    said = tuple(notes(shown, ranked=True))
    types, inputs = len(methods[0].types), len(next(iter(methods[0].outcomes.values())))
    title = f"{types} corruption{'s' * (types != 1)}, {inputs} inputs each, {axis_norm(suite_norm(methods))}"
    return Sheet(title, (Column(lines), *columns), tuple(found), "measure", across=True, notes=said)


def _rows(results: SuiteResults, lines: str, style: str | None) -> list[tuple[str, list[Place] | None]]:
    """List the name of each line and the sets that it is a mean over."""
    if lines == "severity":
        if not results.severities:
            raise UsageError("these results have no severities to show; show a line for each type.")
        return [
            (str(level), [place for place in results.outcomes if place[1] == level]) for level in results.severities
        ]
    names = _paper_names(results.types) if style else {kind: kind for kind in results.types}
    places = [(kind, level) for kind in names for level in (None, *results.severities)]
    places = [place for place in places if place in results.outcomes]
    if lines == "set":
        return [(place_name((names[kind], level)), [(kind, level)]) for kind, level in places]
    return [(shown, [place for place in places if place[0] == kind]) for kind, shown in names.items()]


def _paper_names(types: Sequence[str]) -> dict[str, str]:
    """Return the paper's names of types, in its order; a type it does not have keeps its name and comes last."""
    order = max((_ORDER_MNIST, _ORDER_CIFAR), key=lambda known: len(set(known) & set(types)))
    names = {kind: _SPECIAL_NAMES.get(kind, kind.split("_")[0].capitalize()) for kind in order if kind in types}
    return names | {kind: kind for kind in types if kind not in order}
