"""A noise scale for each input, and answers that stay consistent although the scales differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar, cast

import torch
from torch import Tensor

from smoothcert.certify.memory import Ball, Memory
from smoothcert.classifiers.sealed import Sealed
from smoothcert.noise import Gaussian
from smoothcert.sampling import Answer
from smoothcert.sampling.sigma import SigmaSolver, sigma_generator
from smoothcert.types import ABSTAIN, Certificate, Guarantee, Outcome, Prediction

Key = TypeVar("Key")


def chosen_noise(solver: SigmaSolver, sealed: Sealed, noise: Gaussian, x: Tensor, seed: int, index: int) -> Gaussian:
    """Return the noise with the σ that the solver finds, a function of (seed, index) and the input."""
    start = torch.tensor([noise.sigma], dtype=torch.float64, device=x.device)
    return replace(noise, sigma=float(solver(sealed, x[None], start, sigma_generator(seed, index, x.device))))


def remembered(
    memory: Memory, decided: Iterator[tuple[Key, Answer]], order: deque[tuple[Key, Tensor]]
) -> Iterator[tuple[Key, Answer]]:
    """Pass answers through a memory, in the order of the inputs: a cut must not depend on which is decided first.

    Args:
        memory: The memory.
        decided: Answers by a key of the input, in the order decided.
        order: The keys and inputs in their order; may grow meanwhile.
    """
    early: dict[Key, Answer] = {}
    for key, answer in decided:
        early[key] = answer
        while order and order[0][0] in early:
            turn, x = order.popleft()
            yield turn, _remembered(memory, x, early.pop(turn))


def _remembered(memory: Memory, x: Tensor, answer: Answer) -> Answer:
    if isinstance(answer, Certificate):
        ball = memory.admit(x, answer.label, answer.radius, answer.norm)
        decisions = {target: _outcome(target, outcome, ball) for target, outcome in answer.decisions.items()}
        overall = answer.outcome if ball.label == ABSTAIN else Outcome.CERTIFIED
        certificate = replace(
            answer,
            label=ball.label,
            radius=ball.radius,
            guarantee=Guarantee.MEMORY,
            decisions=decisions,
            outcome=decisions[max(decisions)] if decisions else overall,
        )
        return cast(Answer, certificate)
    assert isinstance(answer, Prediction)
    return cast(Answer, replace(answer, label=memory.admit(x, answer.label, 0.0).label))


def _outcome(target: float, outcome: Outcome, ball: Ball) -> Outcome:
    if ball.adopted:  # the votes were about another class
        return Outcome.CERTIFIED if target <= ball.radius else Outcome.UNDECIDED
    return Outcome.UNDECIDED if outcome is Outcome.CERTIFIED and target > ball.radius else outcome
