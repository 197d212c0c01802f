"""ACES on the report page: every threshold of a composition, and single classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smoothcert.report.aces import Components, Single, load_single
from smoothcert.report.metrics import acr_text, average_certified_radius
from smoothcert.report.page.groups import Group
from smoothcert.report.tables.accuracy import percent
from smoothcert.report.tables.aces import aces_table
from smoothcert.store import Result
from smoothcert.types import SmoothcertError


def aces_payload(group: Group, radii: Sequence[float]) -> dict[str, Any] | None:
    """Make the Pareto curves of all compositions in a group, and the points of single classifiers.

    Returns:
        Both, or None where no result is a composition.
    """
    if not group.components:
        return None
    points, curves = [], []
    for place, result in enumerate(group.results):
        parts = group.components.get(result.path)
        if parts is not None:
            curves.append(_curve(result, parts, place, radii))
        single = _single(result)
        if single is not None:
            alone = ", certifier alone" if parts is not None else ""
            natural, acr = single.natural, average_certified_radius(single.outcomes)
            points.append({"name": result.name + alone, "run": place, "natural": round(100 * natural, 4), "acr": acr})
    return {"curves": curves, "points": points}


def _single(result: Result) -> Single | None:
    try:
        return load_single(result)
    except SmoothcertError:
        return None


def _curve(result: Result, parts: Components, run: int, radii: Sequence[float]) -> dict[str, Any]:
    rows = aces_table([parts], parts.thetas.tolist(), radii).rows
    own = getattr(result.settings.procedure, "theta", None)
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
