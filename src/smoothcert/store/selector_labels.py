"""What a selector should choose, from stored votes: labels to train selection networks and routers with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from smoothcert.store.run import Row, Run
from smoothcert.types import RunError, UsageError

Indices = NDArray[np.int64]


def certifiable(run: Run, eta: float = 0.5) -> tuple[Indices, Indices]:
    """Which inputs a smoothed classifier gets right on more than a share η of their noisy copies.

    The labels of a selection network of ACES (Horváth et al., 2022, App. D.3.2; there n = 1000 and η is 0.5 or 0.95): 1
    for "certify", 0 for "core".

    Args:
        run: A run over training inputs.
        eta: The share η, strictly between 0 and 1.

    Returns:
        The index of each input, and its label.

    Raises:
        UsageError: If η lies outside (0, 1).
        RunError: If the run keeps no votes.
    """
    if not 0 < eta < 1:
        raise UsageError(f"eta must lie strictly between 0 and 1, got {eta}.")
    rows = _rows(run)
    right = [row["counts"][row["label"]] > eta * row["n"] for row in rows]
    return np.array([row["index"] for row in rows]), np.array(right, dtype=np.int64)


def best_of(runs: Sequence[Run]) -> tuple[Indices, Indices]:
    """Which of several runs proves the largest radius for each input.

    The labels of a router's selector: the position of the run with the largest radius of a right answer. Where no run
    has a right answer, the one with the largest share of votes for the true class.

    Args:
        runs: Runs over the same training inputs, one for each expert.

    Returns:
        The index of each input, and the position of its best run.

    Raises:
        UsageError: If there are fewer than two runs, or their inputs, n or α differ.
        RunError: If a run keeps no votes.
    """
    if len(runs) < 2:
        raise UsageError(f"choosing between runs needs at least two of them, got {len(runs)}.")
    tables = [_rows(run) for run in runs]
    first = tables[0]
    for run, rows in zip(runs[1:], tables[1:], strict=True):
        if [(row["index"], row["label"]) for row in rows] != [(row["index"], row["label"]) for row in first]:
            raise UsageError(f"{run.path} is about other inputs than {runs[0].path}; certify the same ones.")
        for key in ("n", "alpha", "norm"):
            if rows[0][key] != first[0][key]:
                raise UsageError(
                    f"{key} is {first[0][key]} in {runs[0].path} and {rows[0][key]} in {run.path}; certify alike."
                )
    scores = np.array([[_score(row) for row in rows] for rows in tables])
    return np.array([row["index"] for row in first]), scores.argmax(axis=0).astype(np.int64)


def _score(row: Row) -> float:
    """The radius of a right answer; below 0 without one, and the more so the fewer votes the true class has."""
    if row["predict"] == row["label"] and row["radius"] > 0:
        return float(row["radius"])
    return float(row["counts"][row["label"]] / row["n"] - 1)


def _keeps_votes(row: Row) -> bool:
    if not row.get("counts") or None in row["counts"]:
        return False
    if any(row.get(key) is None for key in ("label", "predict", "radius", "n")):
        return False
    return bool(0 <= row["label"] < len(row["counts"]) and row["n"] > 0)


def _rows(run: Run) -> list[Row]:
    rows = run.rows()
    if not rows or not all(map(_keeps_votes, rows)):
        raise RunError(f"{run.path} keeps no votes; certify training inputs, for example with --split train --n 1000.")
    return rows
