"""A certified choice between a smoothed classifier and an accurate one (ACES)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

from smoothcert.certify.base import Task, require_count
from smoothcert.certify.bounds import BoundedProcedure
from smoothcert.certify.choice import composed, core_class, doubled
from smoothcert.classifiers.identity import model_identity
from smoothcert.classifiers.sealed import Sealed
from smoothcert.sampling import ESTIMATION, PREDICTION, SELECTION, Classifier, Draw, Steps
from smoothcert.sampling.statistics import Entropy, FirstShare, Statistic, TopClass
from smoothcert.stats import decisions, lower_bound
from smoothcert.stats.pairs import TopClassTest, looks
from smoothcert.types import ABSTAIN, CERTIFIER, CORE, Certificate, Prediction, UsageError, Votes


@dataclass(frozen=True)
class Aces(BoundedProcedure):
    """Certify where a smoothed selector certifiably chooses the smoothed classifier; elsewhere call a core.

    CERTIFY and PREDICT of Horváth, Müller, Fischer and Vechev (2022), ACES, Algorithms 1 and 4. The selector votes on
    each noisy copy: for the smoothed classifier if the entropy of its softmax is at most θ, or, with a selection
    network, if the network's probability of "core" is. Class and choice are bounded from the same samples, at α/2 each,
    so the answer, of whichever of the two, is wrong with probability at most α. PREDICT stops as soon as its tests of
    class and choice decide the answer (:mod:`smoothcert.stats.pairs`, at α/2 each), and returns the core's class only
    if the test is sure of it, as Theorem B.2 needs; the printed algorithm has "or".

    The certificate keeps the votes at every threshold 0, 1/steps, …, 1, so that a run can be evaluated for any other θ
    and any other core (``smoothcert aces``).

    Args:
        core: An accurate classifier without a guarantee: any callable from a batch to logits. Without one, inputs
            for which the selector does not choose the smoothed classifier are abstentions.
        selector: A selection network, from a batch to logits of "core" and "certify"; by default the entropy selects.
        theta: The threshold θ, a multiple of 1/steps.
        n: Estimation samples; for PREDICT, the most samples.
        steps: The number of thresholds above 0.

    Example:
        >>> Aces(core=lambda x: x, theta=0.3).theta
        0.3
    """

    name: ClassVar[str] = "aces"
    decides_early: ClassVar[bool] = False

    core: Classifier | None = None
    _: KW_ONLY
    selector: Classifier | None = None
    theta: float = 0.3
    n: int = 100_000
    steps: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("n", self.n)
        require_count("steps", self.steps)
        if not (isinstance(self.theta, (int, float)) and 0 <= self.theta <= 1):
            raise UsageError(f"theta must lie between 0 and 1, got {self.theta!r}.")
        if abs(self.theta * self.steps - self._bin) > 1e-9:
            raise UsageError(
                f"theta must be a multiple of {1 / self.steps:g}, got {self.theta:g}; choose one, or more steps."
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
        norm = self.checked_norm(task)
        core = None if self.core is None else core_class(self.core, task)
        selection, scores0 = yield from self._draw(SELECTION, self.n0)
        votes, scores = yield from self._draw(ESTIMATION, self.n)
        half = self.alpha / 2
        guessed = int(decisions.guessed_choice(decisions.choice_votes(scores0.counts)[:, self._bin]))
        p_choice = lower_bound(int(decisions.choice_votes(scores.counts)[guessed, self._bin]), scores.n, half)
        answer = self.certificate(task, norm, half, selection, votes)
        choice = task.certificate(guessed, p_choice, norm, half, {"selector": half}, scores, scores0)
        label = int(decisions.routed_class(choice.label, answer.label, ABSTAIN if core is None else core))
        proved = choice.label == CERTIFIER and not answer.abstained
        return composed(choice, answer, label=label, proved=proved, core=core, shared=self.selector is None)

    def predict(self, task: Task) -> Steps[Prediction]:
        core = ABSTAIN if self.core is None else core_class(self.core, task)
        half = self.alpha / 2
        classes, choices = TopClassTest(task.num_classes, self.n), TopClassTest(2, self.n)
        drawn = 0
        for until in looks(self.n):
            votes, scores = yield from self._draw(PREDICTION, until - drawn, drawn, self.n)
            drawn = until
            smoothed, p_class = classes.add(votes.counts, drawn == self.n)
            choosing = decisions.choice_votes(scores.counts)[:, self._bin]
            choice, p_choice = choices.add(choosing.tolist(), drawn == self.n)
            chosen = choice if p_choice <= half else ABSTAIN
            label = int(decisions.routed_class(chosen, smoothed if p_class <= half else ABSTAIN, core))
            if label != ABSTAIN:
                break
        p_value = max(p_class, p_choice)
        if label != ABSTAIN and chosen != CERTIFIER:  # one of the two tests is enough
            p_value = p_choice if chosen == CORE else p_class
        return task.prediction(label, doubled(p_value), self.alpha, Votes(drawn, classes.counts))

    def config(self) -> dict[str, Any]:
        core, selector = (None if each is None else model_identity(each) for each in (self.core, self.selector))
        return {**super().config(), "core": core, "selector": selector}

    def _draw(self, stage: int, n: int, start: int = 0, most: int = 0) -> Steps[tuple[Votes, Votes]]:
        """Draw the votes for classes and the scores of the same noisy copies."""
        if self.selector is None:
            votes, scores = yield Draw(stage, n, start, most)
            return votes, scores
        given = yield Draw(stage, n, start)  # copies ahead would be lost when the next draw is from the selector
        (scores,) = yield Draw(stage, n, start, source=1)
        return given[0], scores
