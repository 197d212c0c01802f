"""ACES on the report page: every threshold of a composition, and single classifiers beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smoothcert.report.aces import Components
from smoothcert.report.metrics import acr_text, average_certified_radius
from smoothcert.report.page.sources import Source
from smoothcert.report.tables.accuracy import percent
from smoothcert.report.tables.aces import aces_table


def aces_payload(sources: Sequence[Source], radii: Sequence[float]) -> tuple[dict[str, Any] | None, list[str]]:
    """The Pareto curves of all compositions among some runs over the same inputs.

    Args:
        sources: The runs.
        radii: The radii at which certified accuracy is told for each threshold.

    Returns:
        The curves and the points of single classifiers, None where no run is a composition; and what is left out.
    """
    composed = [(source, source.components) for source in sources if source.components is not None]
    if not composed:
        return None, []
    points, notes = [], []
    for place, source in enumerate(sources):
        if source.single is None:
            continue
        if not np.array_equal(np.sort(source.single.outcomes.index), source.outcomes.index):
            notes.append(f"{source.name} is no point beside the curve of ACES: it was measured over other inputs.")
            continue
        alone = ", certifier alone" if source.components is not None else ""
        natural, acr = source.single.natural, average_certified_radius(source.single.outcomes)
        points.append({"name": source.name + alone, "run": place, "natural": round(100 * natural, 4), "acr": acr})
    curves = [_curve(source, parts, sources.index(source), radii) for source, parts in composed]
    return {"curves": curves, "points": points}, notes


def _curve(source: Source, parts: Components, run: int, radii: Sequence[float]) -> dict[str, Any]:
    rows = aces_table([parts], parts.thetas.tolist(), radii).rows
    procedure = source.config.get("procedure")
    own = procedure.get("theta") if isinstance(procedure, dict) else None
    start = float(own) if isinstance(own, (int, float)) else 0.3
    return {
        "name": parts.name,
        "run": run,
        "start": int(np.argmin(np.abs(parts.thetas - start))),
        "theta": [f"{row.theta:.2f}" for row in rows],
        "natural": [round(100 * row.natural / row.inputs, 4) for row in rows],
        "naturalText": [percent(row.natural, row.inputs) for row in rows],
        "acr": [row.acr for row in rows],
        "acrText": [acr_text(row.acr) for row in rows],
        "certified": [[percent(count, row.inputs) for count in row.certified] for row in rows],
        "selected": [[percent(count, row.inputs) for count in row.selected] for row in rows],
    }
