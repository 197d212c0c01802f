"""Certify a target radius with a test that may stop at any time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import numpy as np

from smoothcert.certify.base import Procedure, Task, require_count, require_probability, require_radii
from smoothcert.certify.forecast import Chance, Forecast, decisions
from smoothcert.sampling import ESTIMATION, SELECTION, Draw, Steps
from smoothcert.stats import Prior, sequential
from smoothcert.stats.sequential import LAST_LOOK, check_times
from smoothcert.types import Certificate, Outcome, Prediction, UsageError, Votes


@dataclass(frozen=True)
class Anytime(Procedure):
    """Check the votes repeatedly and stop as soon as they decide; the guarantee holds at any stopping time.

    A mixture e-process (Ville, 1939; Robbins, 1970) is compared with 1/α at every check. Clear inputs are decided
    after a few dozen samples. Several radii are decided from the same votes: a radius is certified only if all smaller
    ones are, so α need not be split. If a budget or a deadline ends the test, the certificate has the radius of the
    confidence sequence, which is valid at that moment too. The selection samples also inform the prior of the test.

    Args:
        radius: The target radius or radii; None to spend the whole budget on the largest radius.
        beta: Probability of refuting a radius that could be certified.
        n_max: The budget: the most estimation samples of an input; for PREDICT, the most samples.
        deadline: The most seconds for an input: from the call for a single input, and from its start in a batch or run.
            The answer is what the votes by then prove, at most one small batch later; the machine's speed decides.
    """

    name: ClassVar[str] = "anytime"

    radius: float | Sequence[float] | None = None
    _: KW_ONLY
    beta: float = 0.001
    n_max: int = 100_000
    deadline: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
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
        return self.n0 + (min(self.n_max, 1_000) if self.targets else self.n_max)

    @property
    def level(self) -> float:
        return LAST_LOOK * self.alpha

    @property
    def reach(self) -> float:
        return sequential.anytime_lower_bound(self.n_max, self.n_max, self.alpha, last=True)

    def forecast(self, threshold: float, probabilities: Sequence[float]) -> Forecast:
        test = sequential.boundary(threshold, self.alpha, self.beta, self.n_max)
        chances = []
        for p in probabilities:
            ends = sequential.operating_characteristics(test, p)
            wald = sequential.wald_bound(p, threshold, self.alpha, self.beta)
            chances.append(Chance(p, ends.certify, ends.refute, ends.undecided, ends.expected_n, wald))
        return decisions(test.n, test.certify, test.refute), tuple(chances)

    def certify(self, task: Task) -> Steps[Certificate]:
        norm = task.noise.resolve_norm(self.norm)
        thresholds = tuple(task.threshold(r, norm) for r in self.targets)
        if thresholds:
            highest = thresholds[-1]
            if highest >= 1 or sequential.boundary(highest, self.alpha, None, self.n_max).certify[-1] > self.n_max:
                raise self._unreachable(task, norm, highest, f"a budget of {self.n_max:,}")
        deadline = self._deadline(task)
        (selection,) = yield Draw(SELECTION, self.n0, deadline=deadline)
        guess = int(np.argmax(selection.counts))
        prior = Prior.informed(selection.counts[guess], selection.n)
        tests = sequential.nested_boundaries(thresholds, self.alpha, self.beta, self.n_max, prior) if thresholds else ()
        times = check_times(self.n_max).tolist()
        counts, checkpoints = np.zeros(task.num_classes, dtype=np.int64), dict[int, tuple[int, ...]]()
        certified, refuted, p_lower, n = 0, len(tests), 0.0, 0  # radii below `certified` are, from `refuted` on are not
        for check, until in enumerate(times):
            (votes,) = yield Draw(ESTIMATION, until - n, start=n, most=self.n_max, deadline=deadline)
            checkpoints.update(votes.checkpoints if n == 0 else {})
            counts, n = counts + votes.counts, n + votes.n
            if n < until:  # the deadline has passed
                break
            k = int(counts[guess])
            if certified < refuted and k >= tests[certified].certify[check]:
                p_lower = max(p_lower, self._bound(k, n, prior, thresholds))
                while certified < refuted and p_lower >= thresholds[certified]:
                    certified += 1
            while refuted > certified and k <= tests[refuted - 1].refute[check]:
                refuted -= 1
            if tests and certified == refuted:
                break
            if math.log10(n).is_integer() and n < self.n_max:
                checkpoints[n] = tuple(counts.tolist())
        p_lower = max(p_lower, self._bound(int(counts[guess]), n, prior, thresholds))
        while certified < refuted and p_lower >= thresholds[certified]:  # between two looks, at a deadline
            certified += 1
        outcomes = (
            [Outcome.CERTIFIED] * certified
            + [Outcome.UNDECIDED] * (refuted - certified)
            + [Outcome.REFUTED] * (len(tests) - refuted)
        )
        return task.certificate(
            guess=guess,
            p_lower=p_lower,
            norm=norm,
            alpha=self.alpha,
            alpha_split={"at any time": (1 - LAST_LOOK) * self.alpha, "last look": self.level},
            votes=Votes(n=n, counts=tuple(counts.tolist()), checkpoints=checkpoints),
            selection=selection,
            decisions=dict(zip(self.targets, outcomes, strict=True)),
        )

    def predict(self, task: Task) -> Steps[Prediction]:
        return task.top_class(self.n_max, self.alpha, self._deadline(task))

    def _deadline(self, task: Task) -> float | None:
        return None if self.deadline is None else task.began + self.deadline

    def _bound(self, k: int, n: int, prior: Prior, thresholds: tuple[float, ...]) -> float:
        """Return the anytime bound; the targets are points of its grid, so one α covers it and every decision."""
        return sequential.anytime_lower_bound(k, n, self.alpha, prior, extra=thresholds, last=n == self.n_max)
