"""What the report page shows, as plain values: everything numeric is computed here, the page only shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from smoothcert.report.metrics import NORM_TEXT, certified_counts
from smoothcert.report.notes import expected_false, markers, name_list, notes, subjects, upwards
from smoothcert.report.page.aces import aces_payload
from smoothcert.report.page.groups import Group
from smoothcert.report.page.overview import known, noise_cell, table_payload
from smoothcert.report.tables.accuracy import percent
from smoothcert.store import Outcomes, Result
from smoothcert.types import ABSTAIN, Norm

DECIMALS = {Norm.L0: 0, Norm.L1: 4, Norm.L2: 4, Norm.LINF: 6, None: 4}
"""Decimals of a radius on the page, where it is rounded down."""

MOST_STEPS = 1200
"""Steps of a curve; of finer ones some are passed over."""

MOST_VOTES = 10
"""Classes whose votes are kept for an input; the others are shown as one."""


def group_payload(group: Group, radii: Sequence[float] | None) -> dict[str, Any]:
    """All that the page shows about a group of runs, but its images.

    Args:
        group: Runs in one norm over the same inputs.
        radii: The radii of the table; by default such as the runs reach.
    """
    decimals = DECIMALS[group.norm]
    table = table_payload(group.results, radii)
    outcomes = [result.outcomes for result in group.results]
    limits = [result.sampling_limit for result in group.results]
    grid = curve_grid(outcomes, table["radii"], limits, decimals)
    shown = subjects(outcomes)
    return {
        "title": group.title,
        "norm": NORM_TEXT[group.norm],
        "decimals": decimals,
        "summary": summary(group, table),
        "notes": [*group.notes, *_differences(group.results), *notes(shown)],
        "index": group.index.tolist(),
        "label": group.label.tolist(),
        "table": table,
        "grid": grid.tolist(),
        "runs": [
            {**run_payload(result, grid, limit, decimals), "marker": marker}
            for result, limit, marker in zip(group.results, limits, markers(shown), strict=True)
        ],
        "aces": aces_payload(group, table["radii"]),
    }


def summary(group: Group, table: Mapping[str, Any]) -> str:
    """Two sentences with the numbers a reader looks for first, no stronger than the guarantee behind them."""
    inputs, norm, several = len(group.index), NORM_TEXT[group.norm], len(group.results) > 1
    where = f" of {group.dataset[0]}" if group.dataset else ""
    which = f"{len(group.results)} runs over the same" if several else "One run over"
    sentence = f"{which} {inputs} inputs{where}."
    if table["radii"][0] != 0 or len(table["radii"]) < 2:
        return sentence
    middle = 2 + len(table["radii"]) // 2
    values = [row[middle][1] for row in table["rows"]]
    best = values.index(max(values))
    result, row = group.results[best], table["rows"][best]
    ahead = "" if not several else ", the most of all" if values.count(max(values)) == 1 else ", and no run more"
    if len({each.rank for each in subjects(each.outcomes for each in group.results)}) > 1:
        ahead = ""  # runs of different guarantees are not ranked
    proved, heading = f"{row[middle][0]} %{ahead}", table["columns"][middle]["heading"]
    right = f"{sentence} {result.name} answers {row[2][0]} % of them right"
    errors = expected_false([result.outcomes])
    if errors is None or not {*result.outcomes.metadata.guarantee} <= {"global", "memory", "routed"}:
        return f"{right}, and certifies {proved}, at {norm} radius {heading}; what that covers is said below."
    return (
        f"{right}, and for {proved}, no perturbation of {norm} length up to {heading} can change that. Of its {inputs} "
        f"statements, one for each input, at most {upwards(errors)} are expected to be false."
    )


def floored(radius: NDArray[np.float64], decimals: int) -> NDArray[np.int64]:
    """Radii in units of the last decimal, rounded down: k is the largest number with k / 10^decimals ≤ radius.

    Counting k ≥ K is then the same as counting radius ≥ K / 10^decimals, as the tables do.

    Example:
        >>> floored(np.array([0.3, 0.24996, 0.25]), 4).tolist()
        [3000, 2499, 2500]
    """
    unit = 10.0**decimals
    lower = np.floor(radius * unit)
    lower = np.where((lower + 1) / unit <= radius, lower + 1, lower)
    return np.where(lower / unit > radius, lower - 1, lower).astype(np.int64)


def curve_grid(
    runs: Sequence[Outcomes], radii: Sequence[float], limits: Sequence[float | None], decimals: int
) -> NDArray[np.int64]:
    """The radii at which all curves are drawn, in units of the last decimal.

    A curve holds the accuracy at a radius of the grid since the one before it, so whatever is passed over makes a curve
    lower, never higher.

    Returns:
        The radii of right answers, thinned out where they are too many; the radii of the table, the largest radius of
        every run and its sampling limit are always there, and the first radius that no run reaches ends the grid.
    """
    proved = [floored(run.radius[run.correct], decimals) for run in runs]
    every = np.unique(np.concatenate(proved))
    if len(every) > MOST_STEPS:
        every = every[np.linspace(0, len(every) - 1, MOST_STEPS).astype(np.int64)]
    always = [0, *(int(values.max()) for values in proved if len(values))]
    always += floored(np.array([*radii, *(limit for limit in limits if limit is not None)]), decimals).tolist()
    end = 1 + max((int(values.max()) for values in proved if len(values)), default=0)
    return np.array(sorted({*every.tolist(), *(value for value in always if value < end), end}), dtype=np.int64)


def run_payload(result: Result, grid: NDArray[np.int64], limit: float | None, decimals: int) -> dict[str, Any]:
    """One run: its curve, its answers, its votes and its configuration."""
    outcomes, table = result.outcomes, result.table()
    counts = certified_counts(outcomes, grid / 10.0**decimals).tolist()
    shown: dict[str, Any] = {
        "name": result.name,
        "guarantees": [kind for kind in outcomes.metadata.guarantee if kind is not None],
        "unknown": None in outcomes.metadata.guarantee,
        "noise": _noise(result),
        "noiseText": noise_cell(result)[0],
        "accuracy": [round(100 * count / len(outcomes), 4) for count in counts],
        "accuracyText": [percent(count, len(outcomes)) for count in counts],
        "limit": None if limit is None else int(floored(np.array([limit]), decimals)[0]),
        "predict": outcomes.predict.tolist(),
        "radius": floored(outcomes.radius, decimals).tolist(),
        "config": configuration(result),
    }
    if known(table, "sigma"):
        shown["sigma"] = [None if sigma is None else round(sigma, 4) for sigma in table["sigma"].to_pylist()]
    if known(table, "p_lower"):
        shown["bound"] = floored(_numbers(table, "p_lower"), 4).tolist()
    if known(table, "counts"):
        shown["votes"] = votes_payload(table)
    if known(table, "choice"):
        shown["choice"] = [ABSTAIN if choice is None else choice for choice in table["choice"].to_pylist()]
        shown["choiceRadius"] = floored(_numbers(table, "choice_radius"), decimals).tolist()
        shown["chooses"] = "experts" if result.settings.experts is not None else "core or certifier"
    return shown


def votes_payload(table: pa.Table) -> dict[str, list[int]]:
    """The votes of every input: samples, and the classes with most votes, in one list each.

    Returns:
        ``n`` and ``kept`` (number of classes listed) by input; ``classes`` and ``counts`` of all inputs in a row.
    """
    found: dict[str, list[int]] = {"n": [], "kept": [], "classes": [], "counts": []}
    for counts, n in zip(table["counts"].to_pylist(), table["n"].to_pylist(), strict=True):
        votes = [(count, -label) for label, count in enumerate(counts or []) if count]
        top = sorted(votes, reverse=True)[:MOST_VOTES]
        found["n"].append(n or 0)
        found["kept"].append(len(top))
        found["classes"].extend(-label for _, label in top)
        found["counts"].extend(count for count, _ in top)
    return found


def configuration(result: Result) -> list[tuple[str, str]]:
    """Everything a run was asked for, and the circumstances of its last session, as names and texts."""
    if result.run is None:
        table = result.table()
        return [("log", result.path.name), ("columns", ", ".join(table.column_names)), ("rows", str(len(table)))]
    last = result.run.sessions[-1] if result.run.sessions else {}
    return [*_flat(result.config), *_flat(last, "last session.")]


def _flat(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    if not isinstance(values, Mapping):
        return [(prefix.rstrip("."), _text(values))]
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        nested = isinstance(value, Mapping) and value
        found += _flat(value, f"{prefix}{key}.") if nested else [(f"{prefix}{key}", _text(value))]
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _noise(result: Result) -> dict[str, Any] | None:
    """Return the noise as the page draws it."""
    noise = result.settings.noise
    settings = {"gaussian": ("sigma",), "uniform": ("lam",), "discrete": ("keep", "levels")}
    if noise is None or noise.name not in settings:
        return None
    values = {key: getattr(noise, key) for key in settings[noise.name]}
    return None if None in values.values() else {"name": noise.name, **values}


def _differences(results: Sequence[Result]) -> list[str]:
    """Why numbers side by side may not mean the same."""
    found = []
    shown = [result.outcomes for result in results]
    for what, meaning in _MEANINGS.items():
        by_text: dict[str, list[str]] = {}
        for outcomes in shown:
            by_text.setdefault(outcomes.metadata.text(what), []).append(outcomes.name)
        if len(by_text) > 1:
            listed = "; ".join(f"{text}: {name_list(names)}" for text, names in by_text.items())
            found.append(f"The runs differ in {what} ({listed}){meaning}.")
    alphas = {alpha for result in results for alpha in _values(result, "alpha")}
    if len(alphas) > 1:
        levels = ", ".join(f"{alpha:g}" for alpha in sorted(alphas))
        found.append(f"The runs accept different probabilities of a wrong statement (α = {levels}).")
    samples = {max(values) for result in results if (values := _values(result, "n"))}
    if len(samples) > 1:
        found.append("The runs drew different numbers of samples; more samples prove larger radii.")
    return found


_MEANINGS = {
    "guarantee": ", so equal radii do not promise the same; see below",
    "arithmetic": "; float arithmetic holds up to rounding only",
    "runtime": "; votes can differ where the top two logits of a model tie within rounding error",
}
"""What to read out of differences between runs."""


def _values(result: Result, column: str) -> list[Any]:
    table = result.table([column])
    return list(table[column].drop_null().to_pylist()) if known(table, column) else []


def _numbers(table: pa.Table, column: str) -> NDArray[np.float64]:
    """A column as numbers, 0 where there is none."""
    return np.array([value or 0.0 for value in table[column].to_pylist()], dtype=np.float64)
