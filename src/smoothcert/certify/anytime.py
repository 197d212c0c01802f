"""Certify a target radius with a test that may stop at any time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import numpy as np

from smoothcert.certify.base import Task, require_count, require_probability, require_radii
from smoothcert.certify.bounds import BoundedProcedure, require_bound
from smoothcert.certify.forecast import Chance, Forecast, decisions
from smoothcert.certify.targets import PlainTargets, RunnerUpTargets, Targets
from smoothcert.sampling import ESTIMATION, SELECTION, Draw, Steps
from smoothcert.stats import sequential
from smoothcert.stats.sequential import LAST_LOOK, check_times
from smoothcert.stats.two_sided import TwoSided
from smoothcert.types import RUNNER_UP, Certificate, Prediction, UsageError, Votes

FEW, MANY = 20, 100
"""Selection samples with the runner-up bound: at first, and in total unless these suffice."""


@dataclass(frozen=True)
class Anytime(BoundedProcedure):
    """Check the votes repeatedly and stop as soon as they decide; the guarantee holds at any stopping time.

    A mixture of likelihood ratios (Ville, 1939; Robbins, 1970) is compared with a bar at every check. Clear inputs are
    decided after a few dozen samples. There are no selection samples: every vote counts for its class from the first
    on, and no certificate of any class is false, with probability 1 − α; :mod:`smoothcert.stats.sequential` has the
    proof. A radius is refuted only if no class reaches it. Several radii are decided from the same votes: a radius is
    certified only if all smaller ones are, so α need not be split. If a budget or a deadline ends the test, the
    certificate has the radius of the confidence sequence, which is valid at that moment too.

    With the runner-up bound, 20 selection samples, in addition to ``n_max``, choose the bound of the input; 100 without
    a deadline, unless the plain bound will soon certify the targets. The plain bound continues as above, with fresh
    samples. The runner-up bound uses two confidence sequences at α/2 each, for the class that the selection votes put
    first and for the largest count of any other class (:mod:`smoothcert.stats.two_sided`). It refutes a radius if no
    class reaches it by this longer bound either.

    Args:
        radius: The target radius or radii; None to spend the whole budget on the largest radius.
        beta: Probability of refuting a radius that a class reaches.
        n_max: The budget: the most samples of an input, also for PREDICT.
        deadline: The most seconds for an input: from the call for a single input, and from its start in a batch or run.
            The answer is what the votes by then prove, at most one small batch later (two if the deadline passes during
            selection); the machine's speed decides.
    """

    name: ClassVar[str] = "anytime"
    n0: ClassVar[int] = 0  # type: ignore[misc]  # not a setting here

    radius: float | Sequence[float] | None = None
    _: KW_ONLY
    beta: float = 0.001
    n_max: int = 100_000
    deadline: float | None = None

    def __post_init__(self) -> None:
        require_bound(self.bound)
        require_probability("alpha", self.alpha)
        radii = self.targets
        require_radii(*radii)
        if len(set(radii)) < len(radii):
            raise UsageError(f"a target radius is given twice in {radii}.")
        require_count("n_max", self.n_max)
        check_times(self.n_max)  # also checks n_max
        require_probability("beta", self.beta)
        if self.deadline is not None and not self.deadline > 0:
            raise UsageError(f"the deadline must be a positive number of seconds, got {self.deadline!r}.")
        if not isinstance(self.radius, (int, float, type(None))):
            object.__setattr__(self, "radius", radii)

    @property
    def targets(self) -> tuple[float, ...]:
        if self.radius is None:
            return ()
        return (self.radius,) if isinstance(self.radius, (int, float)) else tuple(sorted(self.radius))

    @property
    def expected_samples(self) -> int:
        return min(self.n_max, 1_000) if self.targets else self.n_max

    @property
    def last_look(self) -> float:
        """The share of alpha for the votes at n_max: all of it if nothing else can end the test."""
        return LAST_LOOK if self.targets or self.deadline is not None else 1.0

    @property
    def level(self) -> float:
        return self.last_look * self.alpha

    @property
    def reach(self) -> float:
        return sequential.anytime_lower_bound(self.n_max, self.n_max, self.alpha, self.n_max, last_look=self.last_look)

    def forecast(self, threshold: float, probabilities: Sequence[float]) -> Forecast:
        test = sequential.boundary(threshold, self.alpha, self.beta, self.n_max)
        chances = []
        for p in probabilities:
            ends = sequential.operating_characteristics(test, p)
            wald = sequential.wald_bound(p, threshold, self.alpha, self.beta)
            chances.append(Chance(p, ends.certify, ends.refute, ends.undecided, ends.expected_n, wald))
        return decisions(test.n, test.certify, test.refute), tuple(chances)

    def certify(self, task: Task) -> Steps[Certificate]:
        norm = self.checked_norm(task)
        thresholds = tuple(task.threshold(r, norm) for r in self.targets)
        highest = thresholds[-1] if thresholds else 0.0
        tests = sequential.nested_boundaries(thresholds, self.alpha, self.beta, self.n_max) if 0 < highest < 1 else ()
        if thresholds and (not tests or tests[-1].certify[-1] > self.n_max):
            raise self._unreachable(task, norm, highest, f"a budget of {self.n_max:,}")
        deadline = self._deadline(task) if self.last_look < 1 else None  # else nothing is proved before the last vote
        selection = Votes(n=0, counts=())
        if self.bound == RUNNER_UP:
            selection = yield from self._select(highest, deadline)
        targets: Targets
        if self.bound == RUNNER_UP and self.uses_runner_up(selection, self.n_max, self.alpha):
            both = TwoSided(selection.counts, self.alpha, self.beta, self.n_max, self.last_look)
            targets = RunnerUpTargets(self.targets, thresholds, both, task, norm)
        else:
            targets = PlainTargets(self.targets, tests, self.alpha, self.n_max, self.last_look)
        counts, checkpoints, n = np.zeros(task.num_classes, dtype=np.int64), dict[int, tuple[int, ...]](), 0
        for check, until in enumerate(check_times(self.n_max).tolist() if self.last_look < 1 else [self.n_max]):
            (votes,) = yield Draw(ESTIMATION, until - n, start=n, most=self.n_max, deadline=deadline)
            checkpoints.update(votes.checkpoints if n == 0 else {})
            counts, n = counts + votes.counts, n + votes.n
            late = n < until  # the deadline has passed between two looks
            last = late or n == self.n_max
            targets.look(counts, n, None if late else check, last)
            if last or targets.decided:
                break
            if math.log10(n).is_integer():
                checkpoints[n] = tuple(counts.tolist())
        early = {} if self.last_look == 1 else {"at any time": (1 - self.last_look) * self.alpha}
        split = {**early, "last look": self.level}
        return task.certificate(
            guess=targets.label,
            p_lower=targets.p_lower,
            p_upper=targets.p_upper,
            norm=norm,
            alpha=self.alpha,
            alpha_split={
                when + bound: share / len(targets.bounds) for when, share in split.items() for bound in targets.bounds
            },
            votes=Votes(n=n, counts=tuple(counts.tolist()), checkpoints=checkpoints),
            selection=selection,
            decisions=targets.outcomes,
        )

    def predict(self, task: Task) -> Steps[Prediction]:
        return task.top_class(self.n_max, self.alpha, self._deadline(task))

    def within(self, deadline: float) -> Anytime:
        return replace(self, deadline=deadline)

    def _deadline(self, task: Task) -> float:
        return math.inf if self.deadline is None else task.began + self.deadline

    def _select(self, threshold: float, deadline: float | None) -> Steps[Votes]:
        """Draw the votes that choose the bound: few with a deadline, or if the plain bound will soon certify."""
        (votes,) = yield Draw(SELECTION, FEW, deadline=deadline)
        share = max(votes.counts) / votes.n
        soon = 0 < threshold < share and sequential.wald_bound(share, threshold, self.alpha) <= MANY
        if soon or self.deadline is not None or votes.n < FEW:
            return votes
        (more,) = yield Draw(SELECTION, MANY - FEW, start=FEW, deadline=deadline)
        return Votes(n=votes.n + more.n, counts=tuple(map(sum, zip(votes.counts, more.counts, strict=True))))
