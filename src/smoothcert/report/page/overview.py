"""The overview table of the report page: one row per run, every cell as text and as the value it is sorted by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    radii_or_default,
)
from smoothcert.report.notes import expected_false, subjects, upwards
from smoothcert.report.tables.accuracy import percent, radius_headings
from smoothcert.store import Outcomes, Result

Cell = tuple[str, float | str | None]
"""The text, and the value for sorting; None sorts last."""

UNKNOWN: Cell = ("–", None)


def table_payload(results: Sequence[Result], radii: Sequence[float] | None) -> dict[str, Any]:
    """Make the overview of runs in one norm over the same inputs; the best are found in each norm and guarantee."""
    outcomes = [result.outcomes for result in results]
    shown = radii_or_default(outcomes, radii)
    norm = common_norm(outcomes)
    headings, called = radius_headings(norm, shown), NORM_TEXT[norm]
    columns = [
        ("run", "Run", "The folder or the log."),
        ("acr", "ACR", "Average certified radius: the mean radius over all inputs, 0 where the answer is wrong."),
        *(
            (f"r{place}", heading, f"Share of all inputs that stay right within {called} distance {heading}, provably.")
            for place, heading in enumerate(headings)
        ),
        ("abstain", "Abstain %", "Share of inputs without an answer: the votes were too close."),
        ("samples", "Samples", "Noisy copies per input, on average."),
        ("time", "Time", "Per input, on average, on the machine of the run."),
        ("guarantee", "Guarantee", "What a radius guarantees; see below."),
        ("sigma", "Noise", "The scale of the noise."),
        ("n", "n", "Estimation samples of an input, at most."),
        ("alpha", "α", "Probability, over the noise, that the statement about one input is wrong."),
        ("errors", "False ≤", "Expected number of false statements, at most: the sum of α over all inputs."),
        ("norm", "Norm", "The norm of the radii."),
        ("arithmetic", "Arithmetic", "How noise was added: exactly, or in floating point, which holds up to rounding."),
        ("runtime", "Runtime", "How the model was run."),
        ("model", "Model", "The identity of the classifier, the beginning of a SHA-256."),
        ("seed", "Seed", "The seed of the noise."),
    ]
    rows = [_cells(result, shown) for result in results]
    ranks = [each.rank for each in subjects(outcomes)]
    ranked = range(1, 2 + len(shown))
    return {
        "radii": list(shown),
        "headings": headings,
        "columns": [{"key": key, "heading": heading, "help": help_} for key, heading, help_ in columns],
        "rows": rows,
        "best": [
            _best([row[place][0] for row in rows], ranks) if place in ranked else [] for place in range(len(columns))
        ],
    }


def _best(texts: Sequence[str], ranks: Sequence[str]) -> list[int]:
    """Find the rows with the highest printed value among those of the same rank; none where all are equal."""
    best = []
    for rank in dict.fromkeys(ranks):
        shown = {place: float(text) for place, text in enumerate(texts) if ranks[place] == rank}
        highest = [place for place, value in shown.items() if value == max(shown.values())]
        best += highest if len(highest) < len(shown) else []
    return sorted(best)


def _cells(result: Result, radii: Sequence[float]) -> list[Cell]:
    outcomes, inputs, table = result.outcomes, len(result.outcomes), result.table()
    acr = average_certified_radius(outcomes)
    counts = [*certified_counts(outcomes, radii).tolist(), int(outcomes.abstained.sum())]
    return [
        (result.name, result.name.casefold()),
        (acr_text(acr), acr),
        *((percent(count, inputs), count / inputs) for count in counts),
        _samples(result, table),
        _time(table),
        _text(outcomes.metadata.text("guarantee")),
        noise_cell(result),
        _most(table, "n", lambda n: _count(int(n))),
        _most(table, "alpha", lambda alpha: f"{alpha:g}"),
        _errors(outcomes),
        _text(axis_norm(outcomes.norm).removeprefix("norm ")),
        *(_text(outcomes.metadata.text(what)) for what in ("arithmetic", "runtime", "model", "seed")),
    ]


def known(table: pa.Table, column: str) -> bool:
    """Return whether a column is present and not empty."""
    return column in table.column_names and table[column].null_count < len(table)


def _count(value: int) -> str:
    return f"{value:,}".replace(",", "\u202f")  # a thin space


def _samples(result: Result, table: pa.Table) -> Cell:
    if not known(table, "n") or not known(table, "n0"):
        return UNKNOWN
    drawn = pc.sum(table["n"]).as_py() + pc.sum(table["n0"]).as_py()
    if result.settings.experts is not None or getattr(result.settings.procedure, "selector", None) is not None:
        for column in ("selector", "selector0"):  # the selector has separate noisy copies
            if known(table, column):
                drawn += pc.sum(pc.list_flatten(table[column])).as_py() or 0
    mean = drawn / len(table)
    return _count(round(mean)), mean


def _time(table: pa.Table) -> Cell:
    if not known(table, "seconds"):
        return UNKNOWN
    mean = float(pc.mean(table["seconds"]).as_py())
    if mean < 0.9995:
        return f"{1000 * mean:.0f} ms", mean
    return f"{mean:.1f} s" if mean < 60 else f"{mean / 60:.1f} min", mean


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


def _most(table: pa.Table, column: str, text: Callable[[float], str]) -> Cell:
    if not known(table, column):
        return UNKNOWN
    low, high = (float(bound.as_py()) for bound in pc.min_max(table[column]).values())
    return ("" if low == high else "up to ") + text(high), high
