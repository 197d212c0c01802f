"""The contract of a procedure: its certificates are false with probability at most alpha."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from smoothcert.certify import Procedure, Task, answer
from smoothcert.noise import Gaussian, Noise
from smoothcert.sampling import Draw, TopClass
from smoothcert.types import ABSTAIN, Certificate, Outcome, UsageError, Votes, is_certified

ALPHA = 0.05
CASES = {
    "two equal classes": (0.5, 0.5),
    "p = 0.6": (0.6, 0.4),
    "p = 0.75": (0.75, 0.25),
    "p = 0.95": (0.95, 0.05),
    "p = 0.6 and a third of the other logits invalid": (0.6, 0.27),
    "p = 0.4, and 0.3 for two other classes": (0.4, 0.3, 0.3),
    "ten classes": (0.5, *[0.5 / 9] * 9),
    "three classes near a tie": (0.34, 0.33, 0.33),
}
"""Probabilities of the classes; the rest are copies with invalid logits."""


def check_procedure(procedure: Procedure, noise: Noise | None = None, *, runs: int = 500, seed: int = 0) -> None:
    """Check that the certificates of a procedure are false with probability at most alpha, and count their samples.

    The procedure certifies simulated votes of classifiers whose true radius is known, with alpha = 0.05. Give it small
    numbers of samples: each of seven classifiers is certified ``runs`` times.

    Args:
        procedure: A procedure that counts top classes of one model, as all but ACES do.
        noise: ``Gaussian(1)`` by default; targets of the procedure are radii of it.

    Raises:
        AssertionError: The procedure violates the contract.
        UsageError: The votes of the procedure cannot be simulated.
    """
    noise = noise or Gaussian(1.0)
    if procedure.statistics != (TopClass(),) or procedure.others:
        raise UsageError(f"{procedure.name} counts more than the votes of one model, which cannot be simulated here.")
    procedure = replace(procedure, alpha=ALPHA)
    norm = noise.resolve_norm(procedure.norm)
    assert procedure.config()["name"] == procedure.name, "config() does not have the name of the procedure"
    assert procedure.expected_samples >= 1, "expected_samples must be at least 1"
    cases: dict[str, tuple[float, ...]] = dict(CASES)
    for target in procedure.targets:  # a hair too unlikely for the target
        p = float(noise.threshold(target, norm, 1)) - 1e-9
        cases[f"p just below the threshold of {target:g}"] = (p, 1 - p)
    for place, (name, shares) in enumerate(cases.items()):
        rng = np.random.default_rng([seed, place])
        top, p = int(np.argmax(shares)), max(shares)
        rival = sorted(shares)[-2] + max(1 - sum(shares), 0)  # invalid copies count for the runner-up
        false = wrong = 0
        for index in range(runs):
            task = Task(noise, len(shares), 1, seed=seed, index=index)
            certificate = _certificate(procedure, task, shares, rng)
            others = 1.0 if certificate.p_upper is None else rival
            truth = float(noise.radius(p, norm, 1, p_upper=others))
            right = is_certified(p, others) and certificate.label == top and certificate.radius <= truth * (1 + 1e-9)
            false += not (certificate.abstained or right)
            if index < runs // 5 and p > 0.5:
                prediction = answer(procedure.predict(task), Simulated(shares, rng).draw)
                wrong += prediction.label not in (ABSTAIN, top)
        _require_rate(false, runs, f"certificates of {procedure.name} for {name}")
        _require_rate(wrong, max(runs // 5, 1), f"predictions of {procedure.name} for {name}")
    sure = _certificate(procedure, Task(noise, 2, 1, seed=seed, index=0), (0.0, 1.0), np.random.default_rng(seed))
    assert sure.label == 1, f"{procedure.name} abstains although every vote agrees"
    assert sure.radius > 0, f"{procedure.name} certifies radius 0 although every vote agrees"


def _require_rate(false: int, runs: int, what: str) -> None:
    plausible = stats.binomtest(false, runs, ALPHA, alternative="greater").pvalue > 1e-4
    assert plausible, f"{false} of {runs} {what} are false, more than alpha = {ALPHA:g} allows"


class Simulated:
    """Votes of a classifier whose classes have these probabilities; the same copies always have the same classes."""

    def __init__(self, shares: tuple[float, ...], rng: np.random.Generator) -> None:
        self._edges, self._classes, self._rng = np.cumsum(shares), len(shares), rng
        self._copies: dict[int, NDArray[np.int64]] = {}
        self.drawn: dict[int, int] = {}

    def draw(self, request: Draw) -> tuple[Votes, ...]:
        assert request.n >= 1, f"a draw requests {request.n} samples"
        assert request.start >= 0, f"a draw starts at copy {request.start}"
        known = self._copies.get(request.stage, np.empty(0, dtype=np.int64))
        if len(known) < request.stop:
            new = np.searchsorted(self._edges, self._rng.random(request.stop - len(known)), side="right")
            known = self._copies[request.stage] = np.concatenate([known, new])
        self.drawn[request.stage] = max(self.drawn.get(request.stage, 0), request.stop)
        counts = np.bincount(known[request.start : request.stop], minlength=self._classes)[: self._classes]
        return (Votes(n=request.n, counts=tuple(counts.tolist())),)


def _certificate(procedure: Procedure, task: Task, shares: tuple[float, ...], rng: np.random.Generator) -> Certificate:
    votes = Simulated(shares, rng)
    found = answer(procedure.certify(task), votes.draw)
    name, drawn = procedure.name, sum(votes.drawn.values())
    assert found.samples == drawn, f"a certificate of {name} counts {found.samples} samples, but {drawn} were drawn"
    assert sum(found.counts) <= found.n, f"a certificate of {name} has more votes than samples"
    assert sum(found.selection) <= found.n0, f"a certificate of {name} has more selection votes than samples"
    assert found.alpha == procedure.alpha, f"a certificate of {name} has alpha = {found.alpha}, not {procedure.alpha}"
    split = math.fsum(found.alpha_split.values())
    assert split <= found.alpha * (1 + 1e-9), f"the shares in alpha_split of {name} sum to {split}, above alpha"
    upper = 1.0 if found.p_upper is None else found.p_upper
    bounds = f"p_lower = {found.p_lower} and p_upper = {found.p_upper}"
    assert found.abstained != is_certified(found.p_lower, upper), f"{name} abstains with {bounds}, or does not"
    proved = [task.radius(found.p_lower, found.norm, upper), *_certified(found.decisions)]
    assert found.radius <= (0 if found.abstained else max(proved)), f"the radius of {name} exceeds that of its bounds"
    return found


def _certified(decisions: Mapping[float, Outcome]) -> list[float]:
    return [target for target, outcome in decisions.items() if outcome is Outcome.CERTIFIED]
