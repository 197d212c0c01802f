"""The contract of a certification procedure.

A procedure is a generator: it yields the votes it wants next (:class:`Draw`), is sent them, and returns its answer.
It never sees a model, so the same procedure runs on one input, in a pool of inputs, or on recorded votes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from torch import Tensor

from smoothcert.certify.forecast import Forecast
from smoothcert.certify.runner import Runner
from smoothcert.classifiers.sealed import Sealed
from smoothcert.noise import Noise
from smoothcert.sampling import PREDICTION, Answer, Classifier, Draw, Statistic, Steps, TopClass
from smoothcert.stats.binomial import MAX_SAMPLES
from smoothcert.stats.decisions import is_majority, predicted_class
from smoothcert.types import ABSTAIN, Arithmetic, Certificate, Guarantee, Norm, Outcome, Prediction, UsageError, Votes

PREDICTION_SAMPLES = 1_000
"""Samples of PREDICT where a procedure has no number of its own."""


@dataclass(frozen=True)
class Task:
    """What a procedure knows of the input it certifies.

    Attributes:
        noise: The noise.
        num_classes: The number of classes.
        dimension: The number of coordinates of the input.
        seed: The seed of the run.
        index: The input's index.
        x: The input itself, for a procedure that asks a classifier about it without noise.
    """

    noise: Noise
    num_classes: int
    dimension: int
    seed: int
    index: int
    x: Tensor | None = None

    def offset(self, norm: Norm) -> float:
        """How far the input is from the grid point that stands for it; 0 without a grid."""
        return 0.0 if self.x is None else self.noise.offset(self.x, norm)

    def radius(self, p: float, norm: Norm) -> float:
        """The radius around the input that a lower bound on a probability proves."""
        return float(self.noise.radius(p, norm, self.dimension, self.offset(norm)))

    def threshold(self, r: float, norm: Norm) -> float:
        """The probability that proves the radius r around the input."""
        return float(self.noise.threshold(r, norm, self.dimension, self.offset(norm)))

    def certificate(
        self,
        *,
        guess: int,
        p_lower: float,
        norm: Norm,
        alpha: float,
        alpha_split: Mapping[str, float],
        votes: Votes,
        selection: Votes,
        decisions: Mapping[float, Outcome] | None = None,
        stages: tuple[Votes, ...] = (),
    ) -> Certificate:
        """The certificate that a lower bound on the guessed class's probability proves; abstains at ½ and below.

        A target decided as certified is proved as such: rounding on the way from its threshold to the bound and back
        must not shorten it.
        """
        proved = bool(is_majority(p_lower))
        decisions = decisions or {}
        targets = [target for target, outcome in decisions.items() if outcome is Outcome.CERTIFIED]
        radius = max([self.radius(p_lower, norm), *targets])
        overall = Outcome.CERTIFIED if proved else Outcome.UNDECIDED
        return Certificate(
            label=guess if proved else ABSTAIN,
            radius=radius if proved else 0.0,
            norm=norm,
            guarantee=Guarantee.GLOBAL,
            alpha=alpha,
            alpha_split=alpha_split,
            n=votes.n,
            counts=votes.counts,
            p_lower=p_lower,
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

    def top_class(self, n: int, alpha: float) -> Steps[Prediction]:
        """PREDICT: the class with most of ``n`` votes, if the test of Hung and Fithian (2019) is sure of it."""
        (votes,) = yield Draw(PREDICTION, n)
        label, p_value = predicted_class(votes.counts, alpha)
        return self.prediction(int(label), float(p_value), alpha, votes)

    def prediction(self, label: int, p_value: float, alpha: float, votes: Votes) -> Prediction:
        """A prediction about this input."""
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
    """A way to certify; subclasses write :meth:`certify` and :meth:`predict` as generators.

    Attributes:
        name: The name in the registry, on the command line and in run files.
        decides_early: Whether clear inputs take fewer samples than others.
        alpha: Probability of a wrong statement.
        n0: Selection samples.
        norm: Norm of the radius; the noise's own by default.
    """

    name: ClassVar[str]
    decides_early: ClassVar[bool] = True

    alpha: float = 0.001
    n0: int = 100
    norm: Norm | str | None = None

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """What must be tallied; each draw is answered with one :class:`Votes` per entry."""
        return (TopClass(),)

    @property
    def others(self) -> tuple[tuple[Classifier | Runner, tuple[Statistic, ...]], ...]:
        """Classifiers that are sampled in addition to the smoothed one, and what is tallied of each.

        A model is sampled under the same noise, another smoothed classifier under its own. A draw from the first has
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
        """Roughly what one input costs; decides whether it pays to prepare a faster runtime."""

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
        """Tell which counts decide a target, and how inputs end.

        Args:
            threshold: The probability that the target needs.
            probabilities: True probabilities of the guessed class.

        Raises:
            UsageError: If the procedure cannot be planned.
        """
        raise UsageError(f"the cost of {self.name} cannot be planned; use cohen, staged or anytime.")

    @abstractmethod
    def certify(self, task: Task) -> Steps[Certificate]:
        """The steps to a certificate."""

    @abstractmethod
    def predict(self, task: Task) -> Steps[Prediction]:
        """The steps to the smoothed classifier's class, without a radius."""

    def config(self) -> dict[str, Any]:
        """The procedure as plain values, for run files."""
        return {"name": self.name, **{f.name: getattr(self, f.name) for f in fields(self)}}

    def run_config(self) -> dict[str, Any]:
        """Return the entries of a run's configuration that the procedure decides."""
        return {"procedure": self.config()}


def answer(steps: Steps[Answer], draw: Callable[[Draw], tuple[Votes, ...]]) -> Answer:
    """Run a procedure's steps to the end.

    Args:
        steps: What :meth:`Procedure.certify` or :meth:`Procedure.predict` returned.
        draw: Answers a request for votes.

    Returns:
        What the steps return.
    """
    try:
        request = next(steps)
        while True:
            request = steps.send(draw(request))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def require_count(name: str, value: int) -> None:
    """Refuse a number of samples that is not a whole number in the range the bounds are verified for."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SAMPLES:
        raise UsageError(f"{name} must be a whole number of samples between 1 and {MAX_SAMPLES:,}, got {value!r}.")


def require_probability(name: str, value: float) -> None:
    """Refuse a failure probability outside (0, 1)."""
    if not (isinstance(value, (int, float)) and 0 < value < 1):
        raise UsageError(f"{name} must lie strictly between 0 and 1, got {value!r}.")
