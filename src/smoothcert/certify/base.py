"""The contract of a certification procedure.

A procedure is a generator: it yields the votes it needs next (:class:`Draw`), is sent them, and returns its answer. It
never sees a model, so the same procedure runs on one input, in a pool of inputs, or on recorded votes.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from torch import Tensor

from smoothcert.certify.forecast import Forecast
from smoothcert.certify.runner import Runner
from smoothcert.classifiers.sealed import Sealed
from smoothcert.noise import Noise
from smoothcert.sampling import PREDICTION, Answer, Classifier, Draw, Statistic, Steps, TopClass
from smoothcert.stats import samples_needed
from smoothcert.stats.binomial import MAX_SAMPLES
from smoothcert.stats.decisions import certified_class
from smoothcert.stats.pairs import TopClassTest, looks
from smoothcert.types import (
    ABSTAIN,
    Arithmetic,
    Certificate,
    Guarantee,
    Norm,
    Outcome,
    Prediction,
    UsageError,
    Votes,
    radius_text,
)


@dataclass(frozen=True)
class Task:
    """The input that a procedure certifies; ``dimension`` is its number of coordinates.

    ``x`` is the input itself, for the distance to a grid and for a core, which is called without noise. ``began`` is
    when the answer was requested, by ``time.monotonic()``; a deadline counts from it.
    """

    noise: Noise
    num_classes: int
    dimension: int
    seed: int
    index: int
    x: Tensor | None = None
    began: float = field(default_factory=time.monotonic)

    def offset(self, norm: Norm) -> float:
        """Return the distance from the input to the nearest grid point; 0 without a grid."""
        return 0.0 if self.x is None else self.noise.offset(self.x, norm)

    def radius(self, p: float, norm: Norm, p_upper: float = 1.0) -> float:
        """Return the radius around the input that bounds on probabilities prove; see :meth:`Noise.radius`."""
        return float(self.noise.radius(p, norm, self.dimension, self.offset(norm), p_upper))

    def threshold(self, r: float, norm: Norm) -> float:
        """Return the probability that proves the radius r around the input."""
        return float(self.noise.threshold(r, norm, self.dimension, self.offset(norm)))

    def certificate(
        self,
        guess: int,
        p_lower: float,
        norm: Norm,
        alpha: float,
        alpha_split: Mapping[str, float],
        votes: Votes,
        selection: Votes,
        decisions: Mapping[float, Outcome] | None = None,
        stages: tuple[Votes, ...] = (),
        p_upper: float | None = None,
    ) -> Certificate:
        """Return the certificate that bounds on the probabilities of the guessed class and of the others prove.

        Without ``p_upper``, a bound for every other class, it abstains unless the lower bound exceeds ½.

        A target decided as certified is proved as such: rounding on the way from its threshold to the bound and back
        must not shorten it.
        """
        upper = 1.0 if p_upper is None else p_upper
        label = int(certified_class(guess, p_lower, upper))
        decisions = decisions or {}
        targets = [target for target, outcome in decisions.items() if outcome is Outcome.CERTIFIED]
        overall = Outcome.UNDECIDED if label == ABSTAIN else Outcome.CERTIFIED
        return Certificate(
            label=label,
            radius=0.0 if label == ABSTAIN else max([self.radius(p_lower, norm, upper), *targets]),
            norm=norm,
            guarantee=Guarantee.GLOBAL,
            alpha=alpha,
            alpha_split=alpha_split,
            n=votes.n,
            counts=votes.counts,
            p_lower=p_lower,
            p_upper=p_upper,
            n0=selection.n,
            selection=selection.counts,
            noise=repr(self.noise),
            seed=self.seed,
            index=self.index,
            outcome=decisions[max(decisions)] if decisions else overall,
            checkpoints=votes.checkpoints,
            decisions=decisions,
            stages=stages,
            arithmetic=Arithmetic.EXACT if self.noise.exact else Arithmetic.FLOAT,
            offset=self.offset(norm),
        )

    def top_class(self, n: int, alpha: float, deadline: float = math.inf) -> Steps[Prediction]:
        """Predict the top class from at most ``n`` votes, or abstain; stop as soon as :mod:`stats.pairs` decides.

        The test holds at any time, so it may also be stopped, by a deadline or the caller.
        """
        test = TopClassTest(self.num_classes, n)
        drawn = 0
        for until in looks(n):
            (votes,) = yield Draw(PREDICTION, until - drawn, start=drawn, most=n, deadline=deadline)
            drawn += votes.n
            label, p_value = test.add(votes.counts, last=drawn == n)
            if p_value <= alpha or drawn < until:  # decided, or the deadline has passed
                break
        label = label if p_value <= alpha else ABSTAIN
        return self.prediction(label, p_value, alpha, Votes(drawn, test.counts))

    def prediction(self, label: int, p_value: float, alpha: float, votes: Votes) -> Prediction:
        """Return a prediction about this input."""
        return Prediction(
            label=label,
            p_value=p_value,
            alpha=alpha,
            n=votes.n,
            counts=votes.counts,
            noise=repr(self.noise),
            seed=self.seed,
            index=self.index,
        )


@dataclass(frozen=True, kw_only=True)
class Procedure(ABC):
    """A way to certify; subclasses write :meth:`certify` as a generator.

    Attributes:
        decides_early: Whether clear inputs need fewer samples than others.
        fixed_samples: Whether every input gets ``n`` samples, which prove the largest radius they can without a target.
        alpha: Probability of a wrong statement.
        n0: Selection samples.
        norm: Norm of the radius; by default the first that the noise certifies.
    """

    name: ClassVar[str]
    decides_early: ClassVar[bool] = True
    fixed_samples: ClassVar[bool] = False

    alpha: float = 0.001
    n0: int = 100
    norm: Norm | str | None = None

    def __post_init__(self) -> None:
        require_count("n0", self.n0)
        require_probability("alpha", self.alpha)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """The statistics to count; a draw returns one :class:`Votes` for each."""
        return (TopClass(),)

    @property
    def others(self) -> tuple[tuple[Classifier | Runner, tuple[Statistic, ...]], ...]:
        """Classifiers that are sampled in addition to the smoothed one, and the statistics of each.

        A model is sampled under the same noise, another smoothed classifier under its noise. A draw from the first has
        ``source=1``, and so on.
        """
        return ()

    @property
    def cores(self) -> tuple[Sealed, ...]:
        """Sealed classifiers that are called on inputs without noise."""
        return ()

    def sealed(self, seal: Callable[[Classifier], Sealed]) -> Procedure:
        """Return the procedure with each of its models sealed."""
        return self

    @property
    @abstractmethod
    def expected_samples(self) -> int:
        """The approximate samples of one input, from which it follows whether a faster runtime pays off."""

    @property
    def targets(self) -> tuple[float, ...]:
        """The target radii, smallest first."""
        return ()

    @property
    def level(self) -> float:
        """The alpha of the bound that decides last."""
        return self.alpha

    @property
    def reach(self) -> float:
        """The lower bound on the probability of a class that gets every vote.

        Raises:
            UsageError: If the procedure cannot be planned.
        """
        raise UsageError(f"the cost of {self.name} cannot be planned; use cohen, staged or anytime.")

    def forecast(self, threshold: float, probabilities: Sequence[float]) -> Forecast:
        """Return the counts that decide a target with this threshold, and the chances of each true probability."""
        raise NotImplementedError

    @abstractmethod
    def certify(self, task: Task) -> Steps[Certificate]:
        """Certify an input."""

    def predict(self, task: Task) -> Steps[Prediction]:
        """Predict the smoothed classifier's class, without a radius, from at most 1,000 votes."""
        return task.top_class(1_000, self.alpha)

    def within(self, deadline: float) -> Procedure:
        """Return the procedure with a deadline in seconds, if what it proves holds at any time.

        Raises:
            UsageError: If the procedure must draw all its samples.
        """
        raise UsageError(
            f"{self.name} cannot answer by a deadline, because it proves nothing before its last sample; use anytime."
        )

    def config(self) -> dict[str, Any]:
        """Return the procedure as plain values, for run files."""
        return {"name": self.name, **{f.name: getattr(self, f.name) for f in fields(self)}}

    def run_config(self) -> dict[str, Any]:
        """Return the entries of a run's configuration that the procedure decides."""
        return {"procedure": self.config()}

    def _unreachable(self, task: Task, norm: Norm, threshold: float, samples: str) -> UsageError:
        """Return the error for a largest target that cannot be certified even if every vote agrees."""
        largest = radius_text(task.radius(self.reach, norm), 0 if norm is Norm.L0 else 3)
        needed = samples_needed(threshold, self.level) if threshold < 1 else MAX_SAMPLES + 1
        more = f"{needed:,} or more" if needed <= MAX_SAMPLES else f"more than {MAX_SAMPLES:,}"
        return UsageError(
            f"{norm.value} radius {self.targets[-1]:g} cannot be certified with {samples} samples at alpha = "
            f"{self.alpha:g}: the largest is {largest}, and this one needs {more}; lower the radius, or raise the "
            "samples or the noise."
        )


def answer(steps: Steps[Answer], draw: Callable[[Draw], tuple[Votes, ...]]) -> Answer:
    """Run the steps of :meth:`Procedure.certify` or :meth:`Procedure.predict` on the votes that ``draw`` returns."""
    try:
        request = next(steps)
        while True:
            request = steps.send(draw(request))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def require_count(name: str, value: int) -> None:
    """Refuse a number of samples that is not a whole number in the range for which the bounds are verified."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SAMPLES:
        raise UsageError(f"{name} must be a whole number of samples between 1 and {MAX_SAMPLES:,}, got {value!r}.")


def require_probability(name: str, value: float) -> None:
    """Refuse a failure probability outside (0, 1)."""
    if not (isinstance(value, (int, float)) and 0 < value < 1):
        raise UsageError(f"{name} must lie strictly between 0 and 1, got {value!r}.")


def require_radii(*radii: float) -> None:
    """Refuse a target radius that is not a positive number."""
    for radius in radii:
        if isinstance(radius, bool) or not (isinstance(radius, (int, float)) and 0 < radius < math.inf):
            raise UsageError(f"a target radius must be a positive number, got {radius!r}.")
