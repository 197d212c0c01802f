"""The leaderboard: one page that ranks runs, from their votes, at a radius that the reader chooses.

No stored radius counts: every radius is computed again from the stored votes, at one α. As on the report page, all text
from files is untrusted and enters as JSON.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from smoothcert.report.intervals import acr_interval
from smoothcert.report.metrics import acr_text, average_certified_radius, axis_norm, radii_or_default
from smoothcert.report.notes import subjects
from smoothcert.report.page.groups import Group, groups
from smoothcert.report.page.html import asset, embedded_json
from smoothcert.report.page.overview import noise_cell
from smoothcert.report.recompute import recompute
from smoothcert.stats import lower_bound
from smoothcert.store import Outcomes, Result, find_results
from smoothcert.types import ABSTAIN, SmoothcertError, StrPath, UsageError, radius_text

EDGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1.0)
"""The bins of lower bounds on p_A; those of 0.5 and below come first."""

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def leaderboard_html(
    paths: Sequence[StrPath], *, radius: float | None = None, alpha: float = 0.001, title: str | None = None
) -> str:
    """Make the page of runs; those over other inputs, in another norm or of another guarantee are ranked separately.

    Args:
        paths: Run folders, and folders that hold some of them, such as a zoo.
        radius: The radius at which the page ranks first; by default half of the largest of the radii it offers.
        alpha: The probability of a wrong statement at which all runs are computed.
        title: The heading.

    Raises:
        UsageError: If no result has votes, or the radius is negative.
    """
    if radius is not None and not 0 <= radius < float("inf"):
        raise UsageError(f"the radius must be a number, 0 or larger, got {radius}.")
    counted: dict[str, list[Result]] = {}  # by what they may be ranked with
    notes: list[str] = []
    for result in find_results(paths):
        try:
            outcomes = recompute(result, alpha=alpha)
            (subject,) = subjects([outcomes])
            counted.setdefault(subject.rank, []).append(result)
            if outcomes.metadata.chosen:
                notes.append(
                    f"{result.name} was certified at another α; its radii here are valid only if α was chosen before "
                    "looking at the results."
                )
        except SmoothcertError as error:
            notes.append(f"Left out: {str(error).partition(';')[0].rstrip('.')}.")
    if not counted:
        raise UsageError(f"none of the {len(notes)} results has votes to rank. {notes[0]}")
    shown = [group for together in counted.values() for group in groups(together)]
    payload = {
        "title": title or "Leaderboard",
        "version": version("smoothcert"),
        "alpha": f"{alpha:g}",
        "edges": EDGES,
        "notes": [*(note for group in shown for note in group.notes), *notes],
        "groups": [_group(group, radius, alpha) for group in shown],
    }
    values = {
        "title": html.escape(str(payload["title"])),
        "style": asset("look.css") + asset("report.css"),
        "data": embedded_json(payload),
        "script": asset("data.js") + asset("leaderboard.js"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: values[place[1]], asset("leaderboard.html"))


def _group(group: Group, radius: float | None, alpha: float) -> dict[str, Any]:
    outcomes = [recompute(result, alpha=alpha) for result in group.results]
    radii = radii_or_default(outcomes, None)
    return {
        "title": f"{group.title}, {outcomes[0].metadata.text('guarantee')} guarantee",
        "norm": axis_norm(group.norm),
        "inputs": len(group.index),
        "radii": radii,
        "radius": radii[len(radii) // 2] if radius is None else radius,
        "runs": [_run(result, found, alpha) for result, found in zip(group.results, outcomes, strict=True)],
    }


def _run(result: Result, outcomes: Outcomes, alpha: float) -> dict[str, Any]:
    low, high = acr_interval(outcomes)
    p_lower = lower_bounds(result, alpha)
    return {
        "name": result.name,
        "noise": noise_cell(result)[0],
        "n": result.settings.procedure.n,
        "acr": acr_text(average_certified_radius(outcomes)),
        "interval": [radius_text(low), radius_text(-high).removeprefix("-")],
        "radii": np.sort(outcomes.radius[outcomes.correct]).tolist(),
        "abstain": int((outcomes.predict == ABSTAIN).sum()),
        "quantiles": [radius_text(p, 4) for p in np.quantile(p_lower, LEVELS, method="inverted_cdf")],
        "bins": np.bincount(np.searchsorted(EDGES, p_lower, side="left"), minlength=len(EDGES)).tolist(),
        "guarantee": outcomes.metadata.text("guarantee"),
        "arithmetic": outcomes.metadata.text("arithmetic"),
    }


def lower_bounds(result: Result, alpha: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the lower bound on the probability of the class that the selection votes name, for each input."""
    counts, chosen = result.votes("counts"), result.votes("selection").argmax(axis=1)
    found = lower_bound(counts[np.arange(len(counts)), chosen], result.array("n"), alpha)
    return np.asarray(found, dtype=np.float64)
