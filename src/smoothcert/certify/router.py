"""Several experts, and a smoothed selector that certifiably chooses between them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from smoothcert.certify.base import Procedure, Task
from smoothcert.certify.cores import core_class
from smoothcert.certify.smoothed import Asked, Smoothed
from smoothcert.classifiers.identity import model_identity
from smoothcert.classifiers.sealed import Sealed
from smoothcert.noise import Noise
from smoothcert.sampling import Answer, Classifier, Draw, Steps
from smoothcert.types import (
    ABSTAIN,
    Arithmetic,
    Certificate,
    Guarantee,
    Outcome,
    Prediction,
    Routing,
    UsageError,
    Votes,
)


class Router(Smoothed):
    """A smoothed selector that chooses, input by input, which expert answers.

    Within the selector's certified radius one and the same expert answers, and within the expert's own it gives one and
    the same class: the certificate's radius is the smaller of the two, and its guarantee is ``routed``. The expert that
    the smoothed selector truly chooses at an input is a fixed one, so the two statements, at α/2 each, are together
    wrong with probability at most α although the votes find out which expert it is, and the experts may see the same
    noise as the selector. Experts at different noise levels make it the sound way to choose σ for each input (Alfarra
    et al., 2022, choose it without a certificate); a core beside one smoothed expert makes it ACES (Horváth et al.,
    2022) with a selection network, except that without a certified choice the router always abstains.

    Any procedure works: it certifies the selector, then the expert chosen, with half its α for each.

    Args:
        selector: A classifier from a batch to one logit for each expert.
        noise: The selector's noise.
        experts: Smoothed classifiers of the same classes, each with a noise of its own; another callable, from a batch
            to logits, is a core: where it is chosen its class stands with radius 0.
        options: As for ``Smoothed``; they concern the selector.

    Raises:
        UsageError: If there are fewer than two experts, or one is itself a router or chooses its noise.

    Example:
        >>> import torch
        >>> from smoothcert import Cohen, Gaussian
        >>> weak, strong = (Smoothed(torch.nn.Linear(4, 3), Gaussian(sigma)) for sigma in (0.25, 0.5))
        >>> router = Router(torch.nn.Linear(4, 2), Gaussian(0.5), [weak, strong])
        >>> router.certify(torch.full((4,), 0.5), Cohen(n=1000)).guarantee.value
        'routed'
    """

    def __init__(
        self, selector: Classifier, noise: Noise, experts: Sequence[Smoothed | Classifier], **options: Any
    ) -> None:
        super().__init__(selector, noise, **options)
        if len(experts) < 2:
            raise UsageError(f"a router needs at least two experts, got {len(experts)}.")
        for expert in experts:
            if isinstance(expert, Smoothed) and type(expert) is not Smoothed:
                raise UsageError(
                    f"an expert must be a plain Smoothed classifier or a core, not a {type(expert).__name__}."
                )
        self.experts = tuple(experts)

    def check(self, x: Any, procedure: Procedure | None = None) -> Tensor:
        """As :meth:`Smoothed.check`, for the selector and every expert.

        Raises:
            UsageError: Also if the selector has not one class for each expert, the experts' classes differ, or an
                expert's noise does not certify the norm asked for, by default that of the selector's noise.
        """
        tensor = super().check(x, procedure)
        if self.num_classes != len(self.experts):
            raise UsageError(
                f"the selector chooses between {self.num_classes}, but there are {len(self.experts)} experts; it needs "
                "one logit for each."
            )
        classes = {self._classes(expert, tensor) for expert in self.experts}
        if len(classes) > 1:
            raise UsageError(f"all experts must have the same classes, but they have {sorted(classes)}.")
        if procedure is not None:
            for expert in self.experts:
                if isinstance(expert, Smoothed):
                    expert.check(tensor, self._half(procedure))
        return tensor

    def begin(self, procedure: Procedure, steps: Callable[[Task], Steps[Answer]], task: Task) -> Steps[Answer]:
        half = self._half(procedure)
        if steps == procedure.certify:
            return self._certify(half, task)  # type: ignore[return-value]
        return self._predict(half, task)  # type: ignore[return-value]

    def extra_config(self) -> dict[str, Any]:
        return {
            "experts": [
                {"noise": expert.noise.config(), "model": model_identity(expert.model)}
                if isinstance(expert, Smoothed)
                else {"noise": None, "model": model_identity(expert)}
                for expert in self.experts
            ]
        }

    def _certify(self, half: Procedure, task: Task) -> Steps[Certificate]:
        choice = yield from half.certify(task)
        if choice.abstained:
            return _composed(choice, replace(choice, counts=(), selection=(), checkpoints={}, stages=(), n=0, n0=0))
        expert = self.experts[choice.label]
        if not isinstance(expert, Smoothed):
            core = self._core_class(expert, task)
            certificate = replace(
                choice, label=core, counts=(), selection=(), checkpoints={}, stages=(), n=0, n0=0, p_lower=0.0, noise=""
            )
            return _composed(choice, certificate, core=core)
        certificate = yield from _asking(1 + choice.label, half.certify(self._expert_task(expert, task)))
        return _composed(choice, certificate)

    def _predict(self, half: Procedure, task: Task) -> Steps[Prediction]:
        choice = yield from half.predict(task)
        if choice.abstained:
            return replace(choice, alpha=2 * choice.alpha, counts=())
        expert = self.experts[choice.label]
        if not isinstance(expert, Smoothed):
            return replace(choice, label=self._core_class(expert, task), alpha=2 * choice.alpha, counts=())
        answer = yield from _asking(1 + choice.label, half.predict(self._expert_task(expert, task)))
        p_value = max(choice.p_value, answer.p_value)
        return replace(answer, alpha=2 * answer.alpha, p_value=p_value, n=choice.n + answer.n)

    def _asked(self, sealed: Sealed, x: Tensor, procedure: Procedure, samples: int) -> list[Asked]:
        self.check(x, procedure)  # before any sampling
        selector = super()._asked(sealed, x, procedure, samples)
        experts = [
            expert._ready(expert.sealed(), x, procedure.statistics, samples)
            if isinstance(expert, Smoothed)
            else replace(selector[0], sealed=self._sealed_beside(expert))  # its votes are never asked for
            for expert in self.experts
        ]
        return selector + experts

    def _expert_task(self, expert: Smoothed, task: Task) -> Task:
        assert expert.num_classes is not None
        return replace(task, noise=expert.noise, num_classes=expert.num_classes)

    def _classes(self, expert: Smoothed | Classifier, x: Tensor) -> int:
        if isinstance(expert, Smoothed):
            expert.check(x)
            assert expert.num_classes is not None
            return expert.num_classes
        sealed = self._sealed_beside(expert)
        return self._reference(sealed, x.to(sealed.device)).num_classes

    def _core_class(self, core: Classifier, task: Task) -> int:
        sealed = self._sealed_beside(core)
        assert task.x is not None
        classes = self._reference(sealed, task.x.to(sealed.device)).num_classes
        return core_class(sealed, replace(task, num_classes=classes))

    def _half(self, procedure: Procedure) -> Procedure:
        """The procedure with half its α, in the one norm that selector and experts are certified in."""
        if procedure.others or len(procedure.statistics) > 1:
            raise UsageError(f"a router cannot be certified by {procedure.name}; use cohen, staged or anytime.")
        return replace(procedure, alpha=procedure.alpha / 2, norm=self.noise.resolve_norm(procedure.norm))


def _asking(source: int, steps: Steps[Answer]) -> Generator[Draw, tuple[Votes, ...], Answer]:
    """The steps of a procedure, put to another classifier of the pool."""
    try:
        request = next(steps)
        while True:
            request = steps.send((yield replace(request, source=source)))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


_WORSE = (Outcome.REFUTED, Outcome.UNDECIDED, Outcome.CERTIFIED)


def _composed(choice: Certificate, answer: Certificate, core: int | None = None) -> Certificate:
    """The certificate of an expert's answer, as far as the choice of the expert holds too.

    Raises:
        UsageError: If the two are in different norms, of which there is no smaller one.
    """
    if choice.norm is not answer.norm:
        raise UsageError(
            f"the selector is certified in {choice.norm.value} and the expert in {answer.norm.value}; choose one norm "
            "that the noises of both certify."
        )
    exact = choice.arithmetic is answer.arithmetic is Arithmetic.EXACT
    label = ABSTAIN if choice.abstained else answer.label
    radius = 0.0 if core is not None or label == ABSTAIN else min(choice.radius, answer.radius)
    decisions = {
        target: min(outcome, answer.decisions[target], key=_WORSE.index) for target, outcome in choice.decisions.items()
    }
    if core is not None:  # nothing is proved around the input
        decisions = dict.fromkeys(decisions, Outcome.UNDECIDED)
    overall = Outcome.CERTIFIED if radius > 0 else Outcome.UNDECIDED
    shares = {"selector": choice, "expert": answer}
    return replace(
        answer,
        label=label,
        radius=radius,
        guarantee=Guarantee.ROUTED,
        arithmetic=Arithmetic.EXACT if exact else Arithmetic.FLOAT,
        offset=max(choice.offset, answer.offset),
        alpha=2 * choice.alpha,
        alpha_split={
            f"{who}: {bound}": share for who, part in shares.items() for bound, share in part.alpha_split.items()
        },
        outcome=decisions[max(decisions)] if decisions else overall,
        decisions=decisions,
        routing=Routing(
            choice=choice.label,
            radius=choice.radius,
            p_lower=choice.p_lower,
            n=choice.n,
            counts=choice.counts,
            n0=choice.n0,
            selection=choice.selection,
            core=core,
        ),
    )
