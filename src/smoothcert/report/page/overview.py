"""The overview table of the report page: one row per run, every cell as text and as the value it is sorted by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smoothcert.report.metrics import (
    NORM_TEXT,
    acr_text,
    average_certified_radius,
    axis_norm,
    certified_counts,
    common_norm,
)
from smoothcert.report.notes import expected_false, subjects, upwards
from smoothcert.report.tables.accuracy import default_radii, percent, radius_headings
from smoothcert.store import Outcomes, Result
from smoothcert.types import Norm

Cell = tuple[str, float | str | None]
"""What is shown, and what is sorted by; None sorts last."""

UNKNOWN: Cell = ("–", None)
_THIN_SPACE = "\u202f"


def table_payload(results: Sequence[Result], radii: Sequence[float] | None) -> dict[str, Any]:
    """The overview of runs over the same inputs.

    Args:
        results: The runs, in one norm.
        radii: The radii of certified accuracy; by default such as the runs reach.

    Returns:
        Radii, columns (key, heading, what it means) and rows of cells; the best ACR and accuracies are marked, among
        runs of the same norm and guarantee.
    """
    outcomes = [result.outcomes for result in results]
    radii = tuple(float(radius) for radius in (usual_radii(outcomes) if radii is None else radii))
    norm = common_norm(outcomes)
    headings, called = radius_headings(norm, radii), NORM_TEXT[norm]
    columns = [
        ("run", "Run", "The folder or the log."),
        ("acr", "ACR", "Average certified radius: the mean radius over all inputs, 0 where the answer is wrong."),
        *(
            (f"r{place}", heading, f"Share of all inputs that stay right within {called} distance {heading}, provably.")
            for place, heading in enumerate(headings)
        ),
        ("abstain", "Abstain %", "Share of inputs that got no answer: the votes were too close."),
        ("samples", "Samples", "Noisy copies per input, on average."),
        ("time", "Time", "Per input, on average, on the machine of the run."),
        ("guarantee", "Guarantee", "What a radius promises; see below."),
        ("sigma", "Noise", "The scale of the noise."),
        ("n", "n", "Estimation samples of an input, at most."),
        (
            "alpha",
            "α",
            "Probability, over the noise, that the statement about one input is wrong.",
        ),
        ("errors", "False ≤", "Expected number of false statements, at most: the sum of α over all inputs."),
        ("norm", "Norm", "The norm of the radii."),
        ("arithmetic", "Arithmetic", "How noise was added: exactly, or in floating point, which holds up to rounding."),
        ("runtime", "Runtime", "How the model was run."),
        ("model", "Model", "The identity of the classifier, the beginning of a SHA-256."),
        ("seed", "Seed", "The seed of the noise."),
    ]
    rows = [_cells(result, radii) for result in results]
    ranked = range(1, 2 + len(radii))
    ranks = [each.rank for each in subjects(outcomes)]
    return {
        "radii": list(radii),
        "headings": headings,
        "columns": [{"key": key, "heading": heading, "help": help_} for key, heading, help_ in columns],
        "rows": rows,
        "best": [
            _best([row[column] for row in rows], ranks) if column in ranked else [] for column in range(len(columns))
        ],
    }


def usual_radii(outcomes: Sequence[Outcomes]) -> tuple[float, ...]:
    """The radii of the other tables as far as any run reaches; finer ones where all are small, as in ℓ∞.

    Example:
        >>> usual_radii([Outcomes("run", [0], [5], [5], [0.021])])
        (0.0, 0.005, 0.01, 0.015, 0.02)
    """
    largest = max(float(each.radius.max()) for each in outcomes)
    if largest >= 0.75 or largest == 0.0 or common_norm(outcomes) is Norm.L0:
        return tuple(radius for radius in default_radii(outcomes) if radius <= largest)
    power = 10.0 ** math.floor(math.log10(largest / 4))
    step = power * max(nice for nice in (1, 2, 2.5, 5) if nice * power <= largest / 4)
    return tuple(float(f"{step * place:.12g}") for place in range(int(largest / step) + 1))


def count_text(value: int) -> str:
    """A whole number with thin spaces between thousands.

    Example:
        >>> count_text(100000).split("\u202f")
        ['100', '000']
    """
    return f"{value:,}".replace(",", _THIN_SPACE)


def share_cell(count: int, total: int) -> Cell:
    """A share in per cent, sorted by the exact count."""
    return percent(count, total), count / total


def _best(cells: Sequence[Cell], ranks: Sequence[str]) -> list[int]:
    """The rows with the highest value as printed among those of the same rank; none where all are the same."""
    best = []
    for rank in dict.fromkeys(ranks):
        shown = {place: float(text) for place, (text, _) in enumerate(cells) if ranks[place] == rank}
        highest = [place for place, value in shown.items() if value == max(shown.values())]
        best += highest if len(highest) < len(shown) else []
    return sorted(best)


def _cells(result: Result, radii: Sequence[float]) -> list[Cell]:
    outcomes, inputs, table = result.outcomes, len(result.outcomes), result.table()
    acr = average_certified_radius(outcomes)
    return [
        (result.name, result.name.casefold()),
        (acr_text(acr), acr),
        *(share_cell(count, inputs) for count in certified_counts(outcomes, radii).tolist()),
        share_cell(int(outcomes.abstained.sum()), inputs),
        _samples(result, table),
        _time(table),
        _text(outcomes.metadata.text("guarantee")),
        noise_cell(result),
        _range(table, "n", lambda n: count_text(int(n)), "up to "),
        _range(table, "alpha", lambda alpha: f"{alpha:g}", "up to "),
        _errors(outcomes),
        _text(axis_norm(outcomes.norm).removeprefix("norm ")),
        *(_text(outcomes.metadata.text(what)) for what in ("arithmetic", "runtime", "model", "seed")),
    ]


def known(table: pa.Table, column: str) -> bool:
    """Whether a column is there and not empty."""
    return column in table.column_names and table[column].null_count < len(table)


def _samples(result: Result, table: pa.Table) -> Cell:
    if not known(table, "n") or not known(table, "n0"):
        return UNKNOWN
    drawn = pc.sum(table["n"]).as_py() + pc.sum(table["n0"]).as_py()
    selector = getattr(result.settings.procedure, "selector", None)
    if result.settings.experts is not None or selector is not None:  # the selector has its own noisy copies
        for column in ("selector", "selector0"):
            if known(table, column):
                drawn += pc.sum(pc.list_flatten(table[column])).as_py() or 0
    mean = drawn / len(table)
    return count_text(round(mean)), mean


def _time(table: pa.Table) -> Cell:
    if not known(table, "seconds"):
        return UNKNOWN
    mean = float(pc.mean(table["seconds"]).as_py())
    return duration_text(mean), mean


def duration_text(seconds: float) -> str:
    """A duration that a reader can grasp.

    Example:
        >>> duration_text(0.0834), duration_text(16.62), duration_text(90)
        ('83 ms', '16.6 s', '1.5 min')
    """
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min"


def _text(text: str) -> Cell:
    return text, None if text == "unknown" else text


def _errors(outcomes: Outcomes) -> Cell:
    total = expected_false([outcomes])
    return ("unknown", None) if total is None else (upwards(total), float(total))


def noise_cell(result: Result) -> Cell:
    """Show the scale of the noise: a number, a range where each input has one, or one for each expert."""
    table = result.table(["sigma"])
    if known(table, "sigma"):
        sigma = table["sigma"].drop_null().to_numpy()
        return f"σ {sigma.min():.3g}–{sigma.max():.3g}", float(np.median(sigma))
    settings = result.settings
    noises = [settings.noise.as_dict()] if settings.noise is not None else []
    if settings.experts is not None:
        noises = [each["noise"] for each in settings.experts if isinstance(each.get("noise"), dict)]
    if not noises:
        return UNKNOWN
    letters = {"sigma": "σ", "lam": "λ", "keep": "a", "levels": "K"}
    texts = [", ".join(f"{letters.get(k, k)} {v}" for k, v in noise.items() if k != "name") for noise in noises]
    scales = [value for noise in noises for value in noise.values() if isinstance(value, (int, float))]
    return " or ".join(texts), float(scales[0]) if scales else None


def _range(table: pa.Table, column: str, text: Any, several: str) -> Cell:
    if not known(table, column):
        return UNKNOWN
    low, high = (float(bound.as_py()) for bound in pc.min_max(table[column]).values())
    return (text(high) if low == high else several + text(high)), high
