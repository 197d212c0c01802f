"""A smoothed classifier that chooses the noise scale for every input."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from smoothcert.certify.base import Procedure, Task
from smoothcert.certify.memory import Ball, Memory
from smoothcert.certify.smoothed import Key, Smoothed
from smoothcert.classifiers.sealed import Sealed
from smoothcert.noise import Gaussian, Noise
from smoothcert.sampling import Answer, Classifier, Job, Steps
from smoothcert.sampling.sigma import OptimizeSigma, SigmaSolver, sigma_generator
from smoothcert.types import ABSTAIN, Certificate, Guarantee, Norm, Outcome, Prediction, RunError, UsageError


class PerInput(Smoothed):
    """A classifier under Gaussian noise whose σ is chosen for each input alone (Alfarra et al., 2022, Algorithm 1).

    A certificate under such a σ is about the classifier smoothed with that σ: another input within the radius may get
    another σ and another class. Its guarantee is therefore ``pointwise``. With a memory, answers are cut against those
    given before (see :class:`Memory`) and come in the order of the inputs; then every answer stands for all inputs
    within its radius, and the guarantee is ``memory``. A prediction then stands at its input alone.

    The noise that σ is chosen with depends on (seed, index) only and is used for no vote. Where a procedure cannot
    reach its target radius under the σ chosen, the start value is used instead. Any procedure works.

    Args:
        model: As for ``Smoothed``; differentiable, unless the solver does without.
        noise: The noise σ starts from: that of the training.
        solver: How σ is chosen; ``OptimizeSigma()`` by default.
        memory: The balls of earlier answers, and of those to come.
        options: As for ``Smoothed``.

    Raises:
        UsageError: If the noise is not Gaussian.

    Example:
        >>> from smoothcert import Cohen
        >>> smoothed = PerInput(torch.nn.Linear(4, 2), Gaussian(0.5), OptimizeSigma(steps=10), memory=Memory())
        >>> smoothed.certify(torch.full((4,), 0.5), Cohen(n=1000)).guarantee.value
        'memory'
    """

    def __init__(
        self,
        model: Classifier,
        noise: Noise,
        solver: SigmaSolver | None = None,
        *,
        memory: Memory | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, noise, **options)
        if not isinstance(noise, Gaussian):
            raise UsageError(f"sigma can be chosen for Gaussian noise only, not for {noise!r}.")
        self.solver: SigmaSolver = solver or OptimizeSigma()
        self.memory = memory
        self._start = noise.sigma

    @property
    def guarantee(self) -> Guarantee:
        """What its certificates cover."""
        return Guarantee.POINTWISE if self.memory is None else Guarantee.MEMORY

    def extra_config(self) -> dict[str, Any]:
        return {"sigma": self.solver.config(), "guarantee": self.guarantee.value}

    def check(self, x: Any, procedure: Procedure | None = None) -> Tensor:
        """As :meth:`Smoothed.check`.

        Raises:
            UsageError: Also if a memory is to keep radii of another norm than ℓ2.
            RunError: If the memory belongs to another classifier.
        """
        if procedure is not None:
            self._check_memory(procedure)
        return super().check(x, procedure)

    def resume(self, answered: int) -> None:
        """Refuse to go on without the balls of earlier answers, which later ones could contradict.

        Raises:
            RunError: If there are such answers and the memory is empty.
        """
        if self.memory is not None and not len(self.memory) and answered:
            raise RunError(
                "the run holds answers already, but the memory is empty; give the memory they were made with, or begin "
                "a new run."
            )

    def noise_for(self, index: int, x: Tensor, seed: int) -> Noise:
        """The noise with the σ that the solver finds; a function of (seed, index) and the input."""
        generator = sigma_generator(seed, index, x.device)
        start = torch.tensor([self._start], dtype=torch.float64, device=x.device)
        sigma = float(self.solver(self.sealed(), x[None], start, generator))
        return replace(cast(Gaussian, self.noise), sigma=sigma)

    def finish(self, job: Job[Answer], answer: Answer) -> Answer:
        """The answer with its guarantee; what a memory makes of it follows once its turn has come."""
        if isinstance(answer, Certificate):
            return cast(Answer, replace(answer, guarantee=Guarantee.POINTWISE))
        return answer

    def _job(
        self,
        sealed: Sealed,
        index: int,
        x: Any,
        procedure: Procedure,
        steps: Callable[[Task], Steps[Answer]],
        seed: int,
    ) -> Job[Answer]:
        self._check_memory(procedure)
        begin = time.perf_counter()
        job = super()._job(sealed, index, x, procedure, steps, seed)
        try:
            job.begin()
        except UsageError:  # such as a target that this σ cannot reach; the start value must
            task = self._task(index, job.x, self.noise, seed)
            job = Job(index, job.x, self.begin(procedure, steps, task), self.noise)
            job.begin()
        job.seconds += time.perf_counter() - begin
        return job

    def _answers(
        self,
        inputs: Iterable[tuple[int, Any]],
        procedure: Procedure,
        steps: Callable[[Task], Steps[Answer]],
        seed: int,
        count: int | None = None,
        named: bool = True,
        note: Callable[[Job[Answer]], None] | None = None,
    ) -> Iterator[tuple[Job[Answer], Answer]]:
        """With a memory, answers wait for their turn: what is cut must not depend on who is decided first."""
        order: deque[tuple[Job[Answer], Tensor]] = deque()
        if self.memory is not None:
            note = lambda job: order.append((job, job.x))  # noqa: E731
        yield from self.settled(super()._answers(inputs, procedure, steps, seed, count, named, note), order)

    @property
    def in_order(self) -> bool:
        return self.memory is not None

    def for_workers(self) -> PerInput:
        """As for ``Smoothed``; and without the memory, which :meth:`settled` asks where answers come together."""
        other = super().for_workers()
        assert isinstance(other, PerInput)
        other.memory = None
        return other

    def settled(
        self, decided: Iterator[tuple[Key, Answer]], order: deque[tuple[Key, Tensor]]
    ) -> Iterator[tuple[Key, Answer]]:
        if self.memory is None:
            yield from decided
            return
        early: dict[Key, Answer] = {}
        for key, answer in decided:
            early[key] = answer
            while order and order[0][0] in early:
                turn, x = order.popleft()
                yield turn, _remembered(self.memory, x, early.pop(turn))

    def _check_memory(self, procedure: Procedure) -> None:
        if self.memory is None:
            return
        norm = self.noise.resolve_norm(procedure.norm)
        if norm is not Norm.L2:
            raise UsageError(f"a memory compares l2 balls; certify in l2 or without a memory, not in {norm.value}.")
        self.memory.bind({"model": self.sealed().sealed_identity, "noise": self.noise.config()})


def _remembered(memory: Memory, x: Tensor, answer: Answer) -> Answer:
    """The answer as the memory lets it stand."""
    if isinstance(answer, Certificate):
        ball = memory.admit(x, answer.label, answer.radius, answer.norm)
        decisions = {target: _outcome(target, outcome, ball) for target, outcome in answer.decisions.items()}
        overall = answer.outcome if ball.label == ABSTAIN else Outcome.CERTIFIED
        settled = replace(
            answer,
            label=ball.label,
            radius=ball.radius,
            guarantee=Guarantee.MEMORY,
            decisions=decisions,
            outcome=decisions[max(decisions)] if decisions else overall,
        )
        return cast(Answer, settled)
    assert isinstance(answer, Prediction)
    return cast(Answer, replace(answer, label=memory.admit(x, answer.label, 0.0).label))


def _outcome(target: float, outcome: Outcome, ball: Ball) -> Outcome:
    """What is known about a target once the ball was cut, or another class adopted."""
    if ball.adopted:  # what the votes said was about another class
        return Outcome.CERTIFIED if target <= ball.radius else Outcome.UNDECIDED
    return Outcome.UNDECIDED if outcome is Outcome.CERTIFIED and target > ball.radius else outcome
