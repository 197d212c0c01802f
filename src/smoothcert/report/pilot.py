"""Estimates from a small run for planning a large one: class probabilities under noise, and sampling speed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from smoothcert.noise import Noise
from smoothcert.report.metrics import NORM_TEXT
from smoothcert.store import LogKind, Result, find_results
from smoothcert.store.outcomes import read_norm
from smoothcert.types import ABSTAIN, StrPath, UsageError


def find_pilot(path: StrPath) -> Result:
    """Find the one run or certification log at a path."""
    found = find_results([path])
    if len(found) != 1:
        raise UsageError(f"a plan is made from one pilot, but {path} holds {len(found)}; name one of them.")
    if found[0].kind != LogKind.CERTIFICATION.value:
        raise UsageError(f"{path} is not a log of a certification; a pilot must have radii.")
    if not len(found[0].table(["index"])):
        raise UsageError(f"{path} holds no input yet; certify some first.")
    return found[0]


def guess_probabilities(pilot: Result, noise: Noise) -> NDArray[np.float64]:
    """Estimate the probability of the guessed class of each input.

    A run has votes; without selection votes, the guessed class is the one with the most. A log has rounded radii only:
    the probability is then the threshold of the radius, and one half for an abstention. A log without a norm is assumed
    to be in that of the noise, which is good enough for a plan.
    """
    if pilot.has("counts", "selection", "n"):
        votes, guesses = pilot.column("counts").to_pylist(), pilot.column("selection").to_pylist()
        right = [counts[int(np.argmax(guess or counts))] for counts, guess in zip(votes, guesses, strict=True)]
        return np.asarray(np.array(right) / np.maximum(pilot.array("n"), 1))
    norm = read_norm(pilot.table(["index", "norm"]))
    if norm not in (None, noise.norms[0]):
        raise UsageError(
            f"{pilot.path} has {NORM_TEXT[norm]} radii, which do not determine probabilities under {noise.name} noise; "
            "give a run folder, which keeps its votes."
        )
    answers = zip(pilot.array("predict").tolist(), pilot.array("radius").tolist(), strict=True)
    return np.array([0.5 if label == ABSTAIN else float(noise.threshold(radius)) for label, radius in answers])


def sampling_rate(pilot: Result, samples: int) -> float | None:
    """Compute the samples per second of one worker; None without times. A log has ``samples`` for each input."""
    drawn = samples * len(pilot.table(["index"]))
    if pilot.has("counts", "selection", "n", "n0"):
        drawn = int(pilot.array("n").sum() + pilot.array("n0").sum())
    seconds = float(pilot.array("seconds").sum()) if pilot.has("seconds") else 0.0
    return drawn / seconds if seconds > 0 else None
