"""Every kind of classifier that the library can certify, with a given classifier in every place it can have in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from hostile.entry import EDGE, FAR, GRID, LOW, NEAR, SIGMA, Classifier, HalfSpace, first, scores
from smoothcert import (
    Aces,
    Anytime,
    Cohen,
    Consensus,
    Denoised,
    Ensemble,
    Gaussian,
    Procedure,
    Smoothed,
    Staged,
    Uniform,
)
from smoothcert.certify import Task
from smoothcert.certify.recertify import Recertify, StoredVotes
from smoothcert.classifiers import Pair
from smoothcert.sampling.sigma import GridSigma
from smoothcert.types import Votes

ALPHA = 1e-12
"""So small that a right library gives no false certificate in all of these tests, whatever the seeds."""

N = 601
"""Odd, so that batches of 20 leave a batch of one."""

PROCEDURES: dict[str, Procedure] = {
    procedure.name: procedure
    for procedure in (
        Cohen(n0=100, n=N, alpha=ALPHA),
        Staged(radius=0.1, stages=(N,), alpha=ALPHA),
        Anytime(radius=0.1, n_max=N, alpha=ALPHA),
        Aces(theta=0.99, n=N, alpha=ALPHA),
    )
}
"""One of each procedure."""

_FREE = {"input_range": None}


class Painted(nn.Module):
    """A denoiser that paints the margin a classifier gives onto the coordinate that decides."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        logits = self.classifier(x)
        margin = (logits[:, 1] - logits[:, 0]).to(x.dtype) / 2
        kept = x.reshape(len(x), -1)[:, 1:]
        return torch.cat([(margin + EDGE)[:, None], kept], dim=1).reshape(len(x), 2, 2, 2)


def above(x: Tensor) -> Tensor:
    """A selector or core with the same half-space, as a plain function."""
    return scores(first(x) - EDGE)


class TypicalVotes(StoredVotes):
    """The votes that the half-space gives any input, as if they had been stored."""

    def of(self, task: Task) -> tuple[Votes, Votes]:
        p = stats.norm.cdf((float(task.x.double()[0, 0, 0]) - EDGE) / SIGMA)
        selection, counts = ((n - round(n * p), round(n * p)) for n in (self.n0, self.n))
        return Votes(self.n0, selection), Votes(self.n, counts)


def recertified(original: Classifier, new: Classifier) -> Recertify:
    """The procedure that certifies a model from votes of the half-space."""
    none = np.empty((0, 2), dtype=np.int64)
    return Recertify(pair=Pair(original, new), stored=TypicalVotes([], none, 100, none, 10_000), n=N, alpha=ALPHA)


@dataclass(frozen=True)
class Kind:
    """A kind of classifier.

    Attributes:
        build: Makes it around a classifier.
        inputs: Where it is certified.
        adapt: Puts a classifier into a procedure, for kinds in which the procedure asks it.
        procedures: The procedures that certify it; all by default.
    """

    build: Callable[[Classifier], Smoothed]
    inputs: tuple[Tensor, ...] = (FAR, NEAR)
    adapt: Callable[[Procedure, Classifier], Procedure] = lambda procedure, _: procedure
    procedures: tuple[str, ...] = tuple(PROCEDURES)


def _good() -> Smoothed:
    return Smoothed(HalfSpace(), Gaussian(SIGMA), **_FREE)


def _of(make: Callable[[Classifier], Classifier]) -> Callable[[Classifier], Smoothed]:
    return lambda given: Smoothed(make(given), Gaussian(SIGMA), **_FREE)


KINDS: dict[str, Kind] = {
    "plain": Kind(_of(lambda given: given)),
    "small-batches": Kind(lambda given: Smoothed(given, Gaussian(SIGMA), batch_size=20, **_FREE), inputs=(FAR,)),
    "uniform": Kind(lambda given: Smoothed(given, Uniform(0.9), **_FREE)),
    "exact": Kind(lambda given: Smoothed(given, Gaussian(SIGMA, grid=GRID), **_FREE)),
    "ensemble-first": Kind(_of(lambda given: Ensemble([given, given, HalfSpace()]))),
    "ensemble-last": Kind(_of(lambda given: Ensemble([HalfSpace(), given, given], "hard"))),
    "consensus-1": Kind(_of(lambda given: Consensus([given, HalfSpace(), given], first=1, margin=0.4))),
    "consensus-2": Kind(_of(lambda given: Consensus([HalfSpace(), given, given], first=2, margin=0.4))),
    "denoised": Kind(_of(lambda given: Denoised(given, nn.Identity()))),
    "denoiser": Kind(_of(lambda given: Denoised(HalfSpace(), Painted(given)))),
    "per-input": Kind(lambda given: Smoothed(given, Gaussian(SIGMA), sigma=GridSigma(grid=(0.25, 0.5), n=8), **_FREE)),
    "router-selector": Kind(lambda given: Smoothed(given, Gaussian(SIGMA), experts=[_good(), _good()], **_FREE)),
    "router-experts": Kind(
        lambda given: Smoothed(
            HalfSpace(), Gaussian(SIGMA), experts=[Smoothed(given, Gaussian(s), **_FREE) for s in (0.25, 0.5)], **_FREE
        )
    ),
    "router-core": Kind(
        lambda given: Smoothed(HalfSpace(), Gaussian(SIGMA), experts=[given, _good()], **_FREE),
        inputs=(LOW, NEAR),
    ),
    "aces-core": Kind(
        _of(lambda _: HalfSpace()),
        inputs=(LOW, NEAR),
        adapt=lambda procedure, given: replace(procedure, core=given, selector=above, theta=0.5),
        procedures=("aces",),
    ),
    "aces-selector": Kind(
        _of(lambda _: HalfSpace()),
        adapt=lambda procedure, given: replace(procedure, selector=given, theta=0.5),
        procedures=("aces",),
    ),
    "recertified-original": Kind(
        _of(lambda _: HalfSpace()), adapt=lambda _, given: recertified(given, HalfSpace()), procedures=("cohen",)
    ),
    "recertified-new": Kind(
        _of(lambda given: given), adapt=lambda _, given: recertified(HalfSpace(), given), procedures=("cohen",)
    ),
}
"""Every kind by name; most entries of the gallery stand in several places of a kind at once."""


def with_kinds(names: Iterable[str], quick: Callable[[str, str], bool]) -> list[Any]:
    """Every name with every kind, as parameters of a test; those that are not quick are for ``make soundness``."""
    return [
        pytest.param(name, kind, id=f"{name}-{kind}", marks=() if quick(name, kind) else pytest.mark.soundness)
        for name in names
        for kind in KINDS
    ]
