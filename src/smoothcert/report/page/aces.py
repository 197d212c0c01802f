"""ACES on the report page: every threshold of a composition, and single classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from smoothcert.report.aces import Components, load_single
from smoothcert.report.metrics import acr_text, average_certified_radius
from smoothcert.report.page.groups import Group
from smoothcert.report.tables.accuracy import percent
from smoothcert.report.tables.aces import aces_table
from smoothcert.store import Result
from smoothcert.types import SmoothcertError


def aces_payload(group: Group, radii: Sequence[float]) -> dict[str, Any] | None:
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
