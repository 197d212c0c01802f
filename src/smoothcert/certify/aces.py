"""A certified choice between a smoothed classifier and an accurate one (ACES)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from smoothcert.certify.base import Procedure, Task, require_count, require_probability
from smoothcert.certify.choice import composed, core_class
from smoothcert.classifiers.identity import model_identity
from smoothcert.classifiers.sealed import Sealed
from smoothcert.sampling import (
    ESTIMATION,
    PREDICTION,
    SELECTION,
    Classifier,
    Draw,
    Entropy,
    FirstShare,
    Statistic,
    Steps,
    TopClass,
)
from smoothcert.stats import lower_bound
from smoothcert.stats.decisions import (
    choice_votes,
    guess_and_bound,
    guessed_choice,
    predicted_choice,
    predicted_class,
    routed_class,
)
from smoothcert.types import (
    ABSTAIN,
    CERTIFIER,
    CORE,
    Certificate,
    Prediction,
    UsageError,
    Votes,
)


@dataclass(frozen=True, kw_only=True)
class Aces(Procedure):
    """Certify where a smoothed selector certifiably trusts the smoothed classifier; elsewhere ask a core model.

    CERTIFY and PREDICT of Horváth, Müller, Fischer and Vechev (2022), ACES, Algorithms 1 and 4. The selector votes on
    each noisy copy: for the smoothed classifier if the entropy of its softmax is at most θ, or, with a selection
    network, if the network's probability of "core" is. Class and choice are bounded from the same samples, at α/2 each,
    so the answer, of whichever of the two, is wrong with probability at most α. PREDICT returns the core's class only
    where the test is sure of it, as Theorem B.2 needs; printed is "or".

    The certificate keeps the votes at every threshold 0, 1/steps, …, 1: any other θ, and any other core, can be
    evaluated afterwards from a run (``smoothcert aces``).

    Args:
        core: An accurate classifier without a guarantee: any callable from a batch to logits. Without one, inputs
            that the selector does not give to the smoothed classifier are abstentions.
        selector: A selection network, from a batch to logits of "core" and "certify"; by default the entropy selects.
        theta: The threshold θ, a multiple of 1/steps.
        n0: Selection samples.
        n: Estimation samples; for PREDICT, all samples.
        alpha: Probability of a wrong statement.
        norm: Norm of the radius; the noise's own by default.
        steps: How many thresholds above 0 are kept.

    Raises:
        UsageError: If theta lies outside [0, 1] or between two thresholds, or a number is out of range.

    Example:
        >>> Aces(core=lambda x: x, theta=0.3).theta
        0.3
    """

    name: ClassVar[str] = "aces"
    decides_early: ClassVar[bool] = False

    core: Classifier | None = None
    selector: Classifier | None = None
    theta: float = 0.3
    n: int = 100_000
    steps: int = 100

    def __post_init__(self) -> None:
        require_count("n0", self.n0)
        require_count("n", self.n)
        require_count("steps", self.steps)
        require_probability("alpha", self.alpha)
        if not (isinstance(self.theta, (int, float)) and 0 <= self.theta <= 1):
            raise UsageError(f"theta must lie between 0 and 1, got {self.theta!r}.")
        if abs(self.theta * self.steps - self._bin) > 1e-9:
            raise UsageError(
                f"theta {self.theta:g} is none of the thresholds kept, which are multiples of {1 / self.steps:g}; "
                "choose one of them, or more steps."
            )

    @property
    def _bin(self) -> int:
        return round(self.theta * self.steps)

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        return (TopClass(), Entropy(self.steps)) if self.selector is None else (TopClass(),)

    @property
    def others(self) -> tuple[tuple[Classifier, tuple[Statistic, ...]], ...]:
        return () if self.selector is None else ((self.selector, (FirstShare(self.steps),)),)

    @property
    def cores(self) -> tuple[Sealed, ...]:
        return (self.core,) if isinstance(self.core, Sealed) else ()

    def sealed(self, seal: Callable[[Classifier], Sealed]) -> Aces:
        core, selector = (None if model is None else seal(model) for model in (self.core, self.selector))
        return replace(self, core=core, selector=selector)

    @property
    def expected_samples(self) -> int:
        return self.n0 + self.n

    def certify(self, task: Task) -> Steps[Certificate]:
        norm = task.noise.resolve_norm(self.norm)
        core = self._core_class(task)
        selection, scores0 = yield from self._draw(SELECTION, self.n0)
        votes, scores = yield from self._draw(ESTIMATION, self.n)
        guess, p_class = guess_and_bound(selection.counts, votes.counts, votes.n, self.alpha / 2)
        guessed = int(guessed_choice(choice_votes(scores0.counts)[:, self._bin]))
        for_guessed = int(choice_votes(scores.counts)[guessed, self._bin])
        p_choice = lower_bound(for_guessed, scores.n, self.alpha / 2)
        answer = task.certificate(
            guess=int(guess),
            p_lower=float(p_class),
            norm=norm,
            alpha=self.alpha / 2,
            alpha_split={"top class": self.alpha / 2},
            votes=votes,
            selection=selection,
        )
        choice = task.certificate(
            guess=guessed,
            p_lower=p_choice,
            norm=norm,
            alpha=self.alpha / 2,
            alpha_split={"selector": self.alpha / 2},
            votes=scores,
            selection=scores0,
        )
        label = int(routed_class(choice.label, answer.label, ABSTAIN if core is None else core))
        proved = choice.label == CERTIFIER and not answer.abstained
        return composed(choice, answer, label=label, proved=proved, core=core, shared=self.selector is None)

    def predict(self, task: Task) -> Steps[Prediction]:
        core = self._core_class(task)
        votes, scores = yield from self._draw(PREDICTION, self.n)
        smoothed, p_class = predicted_class(votes.counts, self.alpha / 2)
        choice, p_choice = predicted_choice(choice_votes(scores.counts)[:, self._bin], self.alpha / 2)
        label = int(routed_class(choice, smoothed, ABSTAIN if core is None else core))
        p_value = max(float(p_class), float(p_choice))
        if label != ABSTAIN and choice != CERTIFIER:  # one of the two tests is enough
            p_value = float(p_choice if choice == CORE else p_class)
        return task.prediction(label, p_value, self.alpha, votes)

    def config(self) -> dict[str, Any]:
        models = {name: None if model is None else model_identity(model) for name, model in self._models().items()}
        return {**super().config(), **models}

    def _models(self) -> dict[str, Classifier | None]:
        return {"core": self.core, "selector": self.selector}

    def _draw(self, stage: int, n: int) -> Steps[tuple[Votes, Votes]]:
        """The votes for classes and the scores of the same noisy copies."""
        given = yield Draw(stage, n)
        if self.selector is None:
            votes, scores = given
            return votes, scores
        (scores,) = yield Draw(stage, n, source=1)
        return given[0], scores

    def _core_class(self, task: Task) -> int | None:
        """What the core says of the input.

        Raises:
            UsageError: If it does not give one logit for each class.
        """
        if self.core is None:
            return None
        return core_class(self.core, task)
