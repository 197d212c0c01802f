"""The data of the report page as plain values: all numbers are computed here, the page only shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from smoothcert.noise import NOISES
from smoothcert.report.aces import Components, load_single
from smoothcert.report.metrics import NORM_TEXT, acr_text, average_certified_radius, certified_counts
from smoothcert.report.notes import expected_false, markers, name_list, notes, subjects, upwards
from smoothcert.report.page.groups import Group
from smoothcert.report.page.overview import known, noise_cell, table_payload
from smoothcert.report.tables.accuracy import percent
from smoothcert.report.tables.aces import aces_table
from smoothcert.store import Outcomes, Result, flat_config
from smoothcert.types import ABSTAIN, Guarantee, Norm, SmoothcertError

DECIMALS = {Norm.L0: 0, Norm.L1: 4, Norm.L2: 4, Norm.LINF: 6, None: 4}
"""Decimals of a radius on the page, where it is rounded down."""

MOST_STEPS = 1200
"""The most steps of a curve."""

_MOST_VOTES = 10  # classes with votes that are listed for an input

_MEANINGS = {
    "guarantee": ", so equal radii do not mean the same; see below",
    "arithmetic": "; float arithmetic holds up to rounding only",
    "runtime": "; votes can differ where the top two logits of a model tie within rounding error",
}


def group_payload(group: Group, radii: Sequence[float] | None) -> dict[str, Any]:
    """Collect the data of a group of runs, without its images."""
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
        "summary": _summary(group, table),
        "notes": [*group.notes, *_differences(group.results), *notes(shown)],
        "index": group.index.tolist(),
        "label": group.label.tolist(),
        "table": table,
        "grid": grid.tolist(),
        "runs": [
            {**_run_payload(result, grid, limit, decimals), "marker": marker}
            for result, limit, marker in zip(group.results, limits, markers(shown), strict=True)
        ],
        "aces": _aces_payload(group, table["radii"]),
    }


def _summary(group: Group, table: Mapping[str, Any]) -> str:
    """Write two sentences with the main numbers, no stronger than the guarantee behind them."""
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
    right = f"{sentence} {result.name} answers {row[2][0]} % of them correctly"
    errors = expected_false([result.outcomes])
    strong = {Guarantee.GLOBAL.value, Guarantee.MEMORY.value, Guarantee.ROUTED.value}
    if errors is None or not {*result.outcomes.metadata.guarantee} <= strong:
        return f"{right}, and certifies {proved}, at {norm} radius {heading}; the guarantee is explained below."
    return (
        f"{right}, and for {proved}, no perturbation of {norm} length up to {heading} can change that. Of its {inputs} "
        f"statements, one for each input, at most {upwards(errors)} are expected to be false."
    )


def floored(radius: NDArray[np.float64], decimals: int) -> NDArray[np.int64]:
    """Round radii down to units of the last decimal: k is the largest number with k / 10^decimals ≤ radius.

    Counting k ≥ K is then the same as counting radius ≥ K / 10^decimals, as the tables do.
    """
    unit = 10.0**decimals
    lower = np.floor(radius * unit)
    lower = np.where((lower + 1) / unit <= radius, lower + 1, lower)
    return np.where(lower / unit > radius, lower - 1, lower).astype(np.int64)


def curve_grid(
    runs: Sequence[Outcomes], radii: Sequence[float], limits: Sequence[float | None], decimals: int
) -> NDArray[np.int64]:
    """Choose the radii at which all curves are drawn, in units of the last decimal.

    A curve holds the accuracy at a radius of the grid since the one before it, so omitted radii make a curve lower,
    never higher. The radii of correct answers are thinned out where they are too many; the radii of the table, the
    largest radius of every run and its sampling limit are always kept, and the first radius that no run reaches ends
    the grid.
    """
    proved = [floored(run.radius[run.correct], decimals) for run in runs]
    every = np.unique(np.concatenate(proved))
    if len(every) > MOST_STEPS:
        every = every[np.linspace(0, len(every) - 1, MOST_STEPS).astype(np.int64)]
    largest = [int(values.max(initial=0)) for values in proved]
    end = 1 + max(largest)
    always = floored(np.array([0, *radii, *(limit for limit in limits if limit is not None)]), decimals)
    return np.unique(np.concatenate([every, largest, always[always < end], [end]]).astype(np.int64))


def _run_payload(result: Result, grid: NDArray[np.int64], limit: float | None, decimals: int) -> dict[str, Any]:
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
        "config": _configuration(result),
    }
    if known(table, "sigma"):
        shown["sigma"] = [None if sigma is None else round(sigma, 4) for sigma in table["sigma"].to_pylist()]
    if known(table, "p_lower"):
        shown["bound"] = floored(table["p_lower"].fill_null(0.0).to_numpy(), 4).tolist()
    if known(table, "p_upper"):
        upper = table["p_upper"]
        raised = (-floored(-upper.fill_null(1.0).to_numpy(), 4)).tolist()
        shown["upper"] = [
            each if valid else None for each, valid in zip(raised, upper.is_valid().to_pylist(), strict=True)
        ]
    if known(table, "counts"):
        shown["votes"] = votes_payload(table)
    if known(table, "choice"):
        shown["choice"] = table["choice"].fill_null(ABSTAIN).to_pylist()
        shown["choiceRadius"] = floored(table["choice_radius"].fill_null(0.0).to_numpy(), decimals).tolist()
        shown["chooses"] = "experts" if result.settings.experts is not None else "core or certifier"
    return shown


def votes_payload(table: pa.Table) -> dict[str, list[int]]:
    """List ``n`` and ``kept``, the number of classes listed, by input, and these classes and counts of all inputs."""
    found: dict[str, list[int]] = {"n": [], "kept": [], "classes": [], "counts": []}
    for counts, n in zip(table["counts"].to_pylist(), table["n"].to_pylist(), strict=True):
        votes = [(count, -label) for label, count in enumerate(counts or []) if count]
        top = sorted(votes, reverse=True)[:_MOST_VOTES]
        found["n"].append(n or 0)
        found["kept"].append(len(top))
        found["classes"].extend(-label for _, label in top)
        found["counts"].extend(count for count, _ in top)
    return found


def _configuration(result: Result) -> list[tuple[str, str]]:
    """List the settings of a run and the circumstances of its last session as texts."""
    if result.run is None:
        table = result.table()
        return [("log", result.path.name), ("columns", ", ".join(table.column_names)), ("rows", str(len(table)))]
    last = result.run.sessions[-1] if result.run.sessions else {}
    values = flat_config({**result.config, "last session": last})
    return [
        (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in values.items()
    ]


def _noise(result: Result) -> dict[str, Any] | None:
    """Return the noise as the page draws it."""
    noise = result.settings.noise
    if noise is None or noise.name not in NOISES.own:
        return None
    settings = (field.name for field in fields(NOISES.own[noise.name]))
    values = {key: getattr(noise, key, None) for key in settings if key != "grid"}
    return None if None in values.values() else {"name": noise.name, **values}


def _differences(results: Sequence[Result]) -> list[str]:
    """Explain why numbers side by side may not mean the same."""
    found = []
    for what, meaning in _MEANINGS.items():
        by_text: dict[str, list[str]] = {}
        for result in results:
            by_text.setdefault(result.outcomes.metadata.text(what), []).append(result.name)
        if len(by_text) > 1:
            listed = "; ".join(f"{text}: {name_list(names)}" for text, names in by_text.items())
            found.append(f"The runs differ in {what} ({listed}){meaning}.")
    tables = [result.table(["alpha", "n"]) for result in results]
    alphas = {alpha for table in tables if known(table, "alpha") for alpha in table["alpha"].drop_null().to_pylist()}
    if len(alphas) > 1:
        levels = ", ".join(f"{alpha:g}" for alpha in sorted(alphas))
        found.append(f"The runs accept different probabilities of a wrong statement (α = {levels}).")
    if len({max(table["n"].drop_null().to_pylist()) for table in tables if known(table, "n")}) > 1:
        found.append("The runs drew different numbers of samples; more samples prove larger radii.")
    return found


def _aces_payload(group: Group, radii: Sequence[float]) -> dict[str, Any] | None:
    """Compute the Pareto curves of compositions and the points of single classifiers; None without compositions."""
    if not group.components:
        return None
    points, curves = [], []
    for place, result in enumerate(group.results):
        parts = group.components.get(result.path)
        if parts is not None:
            curves.append({"run": place, **_curve(result, parts, radii)})
        with suppress(SmoothcertError):  # without natural accuracy there is no point
            single = load_single(result)
            name = result.name + (", certifier alone" if parts is not None else "")
            natural, acr = round(100 * single.natural, 4), average_certified_radius(single.outcomes)
            points.append({"name": name, "run": place, "natural": natural, "acr": acr})
    return {"curves": curves, "points": points}


def _curve(result: Result, parts: Components, radii: Sequence[float]) -> dict[str, Any]:
    rows = aces_table([parts], parts.thetas.tolist(), radii).rows
    theta = getattr(result.settings.procedure, "theta", None)
    start = float(theta) if isinstance(theta, (int, float)) else 0.3
    return {
        "name": parts.name,
        "start": int(np.argmin(np.abs(parts.thetas - start))),
        "theta": [f"{row.theta:.2f}" for row in rows],
        "natural": [round(100 * row.natural / row.inputs, 4) for row in rows],
        "naturalText": [percent(row.natural, row.inputs) for row in rows],
        "acr": [row.acr for row in rows],
        "acrText": [acr_text(row.acr) for row in rows],
        "certified": [[percent(count, row.inputs) for count in row.certified] for row in rows],
        "selected": [[percent(count, row.inputs) for count in row.selected] for row in rows],
    }
