"""A smoothed selector that certifiably chooses between experts."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from smoothcert.certify.base import Procedure, Task
from smoothcert.certify.choice import composed, core_class, doubled, num_classes
from smoothcert.certify.runner import Runner
from smoothcert.classifiers.identity import model_identity
from smoothcert.classifiers.sealed import Sealed
from smoothcert.noise import Noise
from smoothcert.sampling import Answer, Classifier, Draw, Statistic, Steps
from smoothcert.types import ABSTAIN, Certificate, Norm, Outcome, Prediction, UsageError, Votes

if TYPE_CHECKING:
    from smoothcert.certify.smoothed import Smoothed


@dataclass(frozen=True)
class Routed(Procedure):
    """Certify which expert answers an input, then certify that expert's answer, each with half of α.

    The classifier that it runs on is the selector: a model from a batch to one logit for each expert. See
    :mod:`smoothcert.certify.choice` for why the answer holds. Experts at different noise levels are the sound way to
    choose σ for each input (Alfarra et al., 2022, choose it without a certificate). A core next to one smoothed expert
    is ACES (Horváth et al., 2022) with a selection network, except that a router always abstains if no choice is
    certified.

    Args:
        experts: Smoothed classifiers of the same classes, each with its noise. Any other callable, from a batch to
            logits, is a core: if it is chosen, its class is answered with radius 0.
        procedure: How selector and expert are certified; its alpha is that of the answer.

    Raises:
        UsageError: If the procedure samples several classifiers itself.
    """

    name: ClassVar[str] = "router"

    experts: tuple[Smoothed | Classifier, ...] = field(kw_only=False)
    procedure: Procedure = field(kw_only=False)
    alpha: float = field(init=False)
    n0: int = field(init=False)
    norm: Norm | str | None = field(init=False)

    def __post_init__(self) -> None:
        for name in ("alpha", "n0", "norm"):
            object.__setattr__(self, name, getattr(self.procedure, name))
        if self.procedure.others or len(self.procedure.statistics) > 1:
            raise UsageError(f"a router cannot be certified by {self.procedure.name}; use cohen, staged or anytime.")

    @property
    def decides_early(self) -> bool:  # type: ignore[override]
        return self.procedure.decides_early

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        return self.procedure.statistics

    @property
    def others(self) -> tuple[tuple[Smoothed, tuple[Statistic, ...]], ...]:
        return tuple((expert, self.statistics) for expert in self.experts if isinstance(expert, Runner))

    @property
    def cores(self) -> tuple[Sealed, ...]:
        return tuple(expert for expert in self.experts if isinstance(expert, Sealed))

    def sealed(self, seal: Callable[[Classifier], Sealed]) -> Routed:
        return replace(self, experts=tuple(each if isinstance(each, Runner) else seal(each) for each in self.experts))

    @property
    def expected_samples(self) -> int:
        return self.procedure.expected_samples

    def certify(self, task: Task) -> Steps[Certificate]:
        half, classes = self._check(task)
        choice = yield from half.certify(task)
        unsampled = replace(choice, counts=(), selection=(), checkpoints={}, stages=(), n=0, n0=0)
        if choice.abstained:
            return _composed(choice, unsampled, label=ABSTAIN, proved=False)
        expert = self.experts[choice.label]
        if not isinstance(expert, Runner):
            core = core_class(expert, replace(task, num_classes=classes))
            undecided = dict.fromkeys(choice.decisions, Outcome.UNDECIDED)  # nothing is proved around the input
            choice = replace(choice, decisions=undecided)
            answer = replace(unsampled, decisions=undecided, p_lower=0.0, p_upper=None, noise="")
            return _composed(choice, answer, label=core, proved=False, core=core)
        answer = yield from self._asking(expert, half.certify(_expert_task(expert, task)))
        return _composed(choice, answer, label=answer.label, proved=not answer.abstained)

    def predict(self, task: Task) -> Steps[Prediction]:
        half, classes = self._check(task)
        choice = yield from half.predict(task)
        if choice.abstained:
            return replace(choice, counts=(), alpha=self.alpha, p_value=doubled(choice.p_value))
        expert = self.experts[choice.label]
        if not isinstance(expert, Runner):
            label = core_class(expert, replace(task, num_classes=classes))
            return replace(choice, label=label, counts=(), alpha=self.alpha, p_value=doubled(choice.p_value))
        answer = yield from self._asking(expert, half.predict(_expert_task(expert, task)))
        p_value = doubled(max(choice.p_value, answer.p_value))
        return replace(answer, alpha=self.alpha, p_value=p_value, n=choice.n + answer.n)

    def run_config(self) -> dict[str, Any]:
        experts = [
            {"noise": expert.noise.config(), "model": model_identity(expert.model)}
            if isinstance(expert, Runner)
            else {"noise": None, "model": model_identity(expert)}
            for expert in self.experts
        ]
        return {**self.procedure.run_config(), "experts": experts}

    def _check(self, task: Task) -> tuple[Procedure, int]:
        """Check selector and experts; return the procedure with half of α in their common norm, and the classes."""
        assert task.x is not None
        half = _half(self.procedure, task.noise)
        if task.num_classes != len(self.experts):
            raise UsageError(
                f"the selector chooses between {task.num_classes}, but there are {len(self.experts)} experts; it needs "
                "one logit for each."
            )
        found = set()
        for expert in self.experts:
            if isinstance(expert, Runner):
                expert.check(task.x, half)
                found.add(expert.num_classes or 0)
            else:
                found.add(num_classes(expert if isinstance(expert, Sealed) else Sealed(expert), task))
        if len(found) > 1:
            raise UsageError(f"all experts must have the same classes, but they have {sorted(found)}.")
        return half, found.pop()

    def _asking(self, expert: Smoothed, steps: Steps[Answer]) -> Generator[Draw, tuple[Votes, ...], Answer]:
        """Sample an expert instead of the selector."""
        source = 1 + next(place for place, (other, _) in enumerate(self.others) if other is expert)
        try:
            request = next(steps)
            while True:
                request = steps.send((yield replace(request, source=source)))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def _half(procedure: Procedure, noise: Noise) -> Procedure:
    return replace(procedure, alpha=procedure.alpha / 2, norm=noise.resolve_norm(procedure.norm))


def _expert_task(expert: Smoothed, task: Task) -> Task:
    assert expert.num_classes is not None
    return replace(task, noise=expert.noise, num_classes=expert.num_classes)


def _composed(choice: Certificate, answer: Certificate, **options: Any) -> Certificate:
    def named(who: str, part: Certificate) -> Certificate:
        return replace(part, alpha_split={f"{who}: {bound}": share for bound, share in part.alpha_split.items()})

    return composed(named("selector", choice), named("expert", answer), **options)
