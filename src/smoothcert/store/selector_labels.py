"""Training labels for selection networks and routers, from stored votes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from smoothcert.store.rows import Row
from smoothcert.store.run import Run
from smoothcert.types import RunError, UsageError

Indices = NDArray[np.int64]


def certifiable(run: Run, eta: float = 0.5) -> tuple[Indices, Indices]:
    """Label inputs 1 ("certify") where the true class gets more than a share η of the votes, else 0 ("core").

    These are the labels of a selection network of ACES (Horváth et al., 2022, App. D.3.2, with n = 1000 and η = 0.5
    or 0.95).

    Returns:
        The index of each input, and its label.
    """
    if not 0 < eta < 1:
        raise UsageError(f"eta must lie strictly between 0 and 1, got {eta}.")
    rows = _rows(run)
    right = [row["counts"][row["label"]] > eta * row["n"] for row in rows]
    return np.array([row["index"] for row in rows]), np.array(right, dtype=np.int64)


def best_of(runs: Sequence[Run]) -> tuple[Indices, Indices]:
    """Label inputs with the position of the run that proves the largest radius.

    These are the labels of a router's selector, from a run over the same inputs for each expert. Where no run has a
    correct answer, the run with the largest share of votes for the true class is the best.

    Returns:
        The index of each input, and the position of its best run.
    """
    if len(runs) < 2:
        raise UsageError(f"choosing between runs needs at least two of them, got {len(runs)}.")
    tables = [_rows(run) for run in runs]
    first = tables[0]
    for run, rows in zip(runs[1:], tables[1:], strict=True):
        if [(row["index"], row["label"]) for row in rows] != [(row["index"], row["label"]) for row in first]:
            raise UsageError(f"{run.path} has other inputs than {runs[0].path}; certify the same ones.")
        for key in ("n", "alpha", "norm"):
            if rows[0][key] != first[0][key]:
                raise UsageError(
                    f"{key} is {first[0][key]} in {runs[0].path} and {rows[0][key]} in {run.path}; use the same {key}."
                )
    scores = np.array([[_score(row) for row in rows] for rows in tables])
    return np.array([row["index"] for row in first]), scores.argmax(axis=0).astype(np.int64)


def _score(row: Row) -> float:
    """Return the radius of a correct answer; otherwise the share of votes for the true class, minus 1."""
    if row["predict"] == row["label"] and row["radius"] > 0:
        return float(row["radius"])
    return float(row["counts"][row["label"]] / row["n"] - 1)


def _rows(run: Run) -> list[Row]:
    rows = run.rows()
    if not rows or not all(map(_has_votes, rows)):
        raise RunError(f"{run.path} has no votes; certify training inputs, for example with --split train --n 1000.")
    return rows


def _has_votes(row: Row) -> bool:
    known = all(row.get(key) is not None for key in ("label", "predict", "radius", "n", "counts"))
    return known and row["n"] > 0 and row["label"] < len(row["counts"])
