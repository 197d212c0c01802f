"""What a small run tells about a large one: how likely classes are under noise, and how fast samples are."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from smoothcert.noise import Noise
from smoothcert.report.load import find_results
from smoothcert.report.metadata import read_norm
from smoothcert.report.metrics import NORM_TEXT
from smoothcert.store import Log, LogKind
from smoothcert.types import ABSTAIN, UsageError


@dataclass(frozen=True, eq=False)
class Pilot:
    """Inputs certified before others like them.

    Attributes:
        name: The name of the run or log.
        probabilities: The probability of the guessed class of each input, as far as it is known.
        rate: Samples per second of one worker; None where nothing was timed.
    """

    name: str
    probabilities: NDArray[np.float64]
    rate: float | None


def read_pilot(path: str | os.PathLike[str], noise: Noise, samples: int) -> Pilot:
    """Read a run, or a log of an earlier system.

    A run has its votes. A log has radii alone, rounded: the probability is then the one that the radius stands for, and
    one half where it abstains, of which an input that is wrong about it costs at most a few samples more. A log that
    does not tell its norm is taken to be in that of the noise, which is good enough for a plan.

    Args:
        path: The run folder or log file.
        noise: The noise it was certified with, for a log.
        samples: The samples of each input, for a log.

    Returns:
        What it tells.

    Raises:
        UsageError: If there is not one run or certification log at the path, it holds no input, or a log is in another
            norm than that of the noise.
    """
    found = find_results([path])
    if len(found) != 1:
        raise UsageError(f"a plan is made from one pilot, but {path} holds {len(found)}; name one of them.")
    ((name, result),) = found
    if isinstance(result, Log) and result.kind is not LogKind.CERTIFICATION:
        raise UsageError(f"{path} is no log of a certification; a pilot must have radii.")
    table: pa.Table = result.table if isinstance(result, Log) else result.table()
    if not table.num_rows:
        raise UsageError(f"{path} holds no input yet; certify some first.")
    names = set(table.column_names)
    if {"counts", "selection", "n"} <= names and not table["counts"].null_count and not table["selection"].null_count:
        votes, guesses = table["counts"].to_pylist(), table["selection"].to_pylist()
        n = np.array(table["n"].to_pylist(), float)
        right = [counts[int(np.argmax(guess))] for counts, guess in zip(votes, guesses, strict=True)]
        probabilities = np.array(right) / np.maximum(n, 1)
        drawn = float(n.sum() + sum(table["n0"].to_pylist()))
    else:
        norm = read_norm(table)
        if norm not in (None, noise.norms[0]):
            raise UsageError(
                f"{path} has {NORM_TEXT[norm]} radii, which do not tell probabilities under {noise.name} noise; give a "
                "run folder, which keeps its votes."
            )
        answers = zip(table["predict"].to_pylist(), table["radius"].to_pylist(), strict=True)
        probabilities = np.array([0.5 if label == ABSTAIN else float(noise.threshold(r)) for label, r in answers])
        drawn = float(samples * table.num_rows)
    seconds = float(sum(table["seconds"].to_pylist())) if "seconds" in names else 0.0
    return Pilot(name, probabilities, drawn / seconds if seconds > 0 else None)
