"""Decide target radii from a growing stream of votes, by the plain or by the runner-up bound."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from smoothcert.certify.base import Task
from smoothcert.stats import sequential
from smoothcert.stats.two_sided import TwoSided
from smoothcert.types import Norm, Outcome


class Targets(ABC):
    """What the votes so far decide and prove.

    Attributes:
        bounds: The names of the bounds that share alpha.
        radii: The targets, smallest first; there may be none.
        certified, refuted: Targets below ``certified`` are certified, from ``refuted`` on they are refuted.
        label, p_lower, p_upper: The class with the best bounds and these bounds, for :meth:`Task.certificate`.
    """

    bounds: ClassVar[tuple[str, ...]]

    def __init__(self, radii: Sequence[float]) -> None:
        self.radii = radii
        self.certified, self.refuted = 0, len(radii)
        self.label, self.p_lower = 0, 0.0
        self.p_upper: float | None = None

    @abstractmethod
    def look(self, counts: NDArray[np.int64], n: int, check: int | None, last: bool) -> None:
        """Use all votes so far; ``check`` is the number of the look, None between two, and none follows the last."""

    @property
    def open(self) -> bool:
        """Whether a target is undecided."""
        return self.certified < self.refuted

    @property
    def decided(self) -> bool:
        """Whether there are targets and all are decided."""
        return bool(self.radii) and not self.open

    @property
    def outcomes(self) -> Mapping[float, Outcome]:
        """The outcome of every target."""
        found = [Outcome.CERTIFIED] * self.certified + [Outcome.UNDECIDED] * (self.refuted - self.certified)
        return dict(zip(self.radii, found + [Outcome.REFUTED] * (len(self.radii) - self.refuted), strict=True))


class PlainTargets(Targets):
    """Decisions of :mod:`~smoothcert.stats.sequential`: every class is tested with every vote.

    The targets are points of the grid of the anytime bound, so one alpha covers it and every decision.
    """

    bounds = ("",)

    def __init__(
        self,
        radii: Sequence[float],
        tests: tuple[sequential.Boundary, ...],
        alpha: float,
        n_max: int,
        last_look: float,
    ) -> None:
        super().__init__(radii)
        self._tests, self._alpha, self._n_max, self._last_look = tests, alpha, n_max, last_look

    def look(self, counts: NDArray[np.int64], n: int, check: int | None, last: bool) -> None:
        leader, tests = int(np.argmax(counts)), self._tests
        k = int(counts[leader])
        while check is not None and self.open and k <= tests[self.refuted - 1].refute[check]:
            self.refuted -= 1
        last = last or self.decided
        if last or (check is not None and self.open and k >= tests[self.certified].certify[check]):
            p = sequential.anytime_lower_bound(k, n, self._alpha, self._n_max, tests, last_look=self._last_look)
            if p > self.p_lower:
                self.label, self.p_lower = leader, p
            while self.open and self.p_lower >= tests[self.certified].threshold:
                self.certified += 1


class RunnerUpTargets(Targets):
    """Decisions of :mod:`~smoothcert.stats.two_sided`, with the classes that the selection votes put first and second.

    The bounds hold at all looks, so the best of them are kept. They are computed only where rough ones suggest that
    they decide a target.
    """

    bounds = (", top class", ", runner-up")

    def __init__(
        self, radii: Sequence[float], thresholds: Sequence[float], test: TwoSided, task: Task, norm: Norm
    ) -> None:
        super().__init__(radii)
        self._test, self._task, self._norm = test, task, norm
        self._needed = (2 * special.ndtri(np.asarray(thresholds))).tolist()  # Φ⁻¹(p) − Φ⁻¹(q) of each target
        self.label, self.p_upper = test.guess, 1.0
        self._top, self._second = 1.0, 0.0

    def look(self, counts: NDArray[np.int64], n: int, check: int | None, last: bool) -> None:
        votes, test = counts.tolist(), self._test
        if self.open and (last or _distance(*test.possible(votes, n, roughly=True)) < self._needed[self.refuted - 1]):
            top, second = test.possible(votes, n)
            self._top, self._second = min(top, self._top), max(second, self._second)
            longest = self._task.radius(self._top, self._norm, self._second)
            while self.open and longest < self.radii[self.refuted - 1]:
                self.refuted -= 1
        last = last or self.decided
        if last or (self.open and _distance(*test.proved(votes, n, roughly=True)) >= self._needed[self.certified]):
            lower, upper = test.proved(votes, n)
            self.p_lower, self.p_upper = max(lower, self.p_lower), min(upper, self.p_upper or 0.0)
            proved = self._task.radius(self.p_lower, self._norm, self.p_upper)
            while self.open and proved >= self.radii[self.certified]:
                self.certified += 1


def _distance(p: float, q: float) -> float:
    first, second = special.ndtri((p, min(q, 1.0 - p)))
    return float(first - second)
