"""The interface of a training method: a pure loss and its cost."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Generator, Tensor, nn

from smoothcert.noise import Gaussian, Noise
from smoothcert.sampling.soft import run
from smoothcert.training.attacks import column
from smoothcert.types import UsageError

__all__ = ["Method", "Passes", "State", "require", "run"]


@dataclass(frozen=True, kw_only=True)
class State:
    """The randomness and the progress of training; by default after the warm-up, in one process.

    Attributes:
        generator: The source of all randomness, on the device of the batch.
        epoch: Epochs done, with fraction.
        rate_dropped: Whether the learning rate has been lowered for the first time.
        soft_labels: A distribution over classes for each input, for methods that need it.
        place: The first row of this process and the number of rows, of a batch that several processes share. Each
            draws for the whole batch and keeps its rows, so that the number of processes does not matter.
        sigma: The Gaussian noise scale of each input, (batch,); None for that of the noise.
    """

    generator: Generator
    epoch: float = math.inf
    rate_dropped: bool = True
    soft_labels: Tensor | None = None
    place: tuple[int, int] | None = None
    sigma: Tensor | None = None

    def noisy(self, noise: Noise, x: Tensor, copies: int = 1) -> Tensor:
        """Draw noisy copies of a batch, of shape (copies, batch, …)."""
        if self.sigma is not None:
            unit = replace(self, sigma=None).noisy(Gaussian(1.0), torch.zeros_like(x), copies)
            return unit.mul_(column(self.sigma.to(x.dtype), x)).add_(x)
        first, rows = self.place or (0, len(x))
        whole = x.new_zeros((rows, *x.shape[1:]))
        whole[first : first + len(x)] = x
        drawn = noise.sample(whole, whole.new_empty((copies, *whole.shape)), self.generator)
        return drawn[:, first : first + len(x)].contiguous()

    def uniform(self, batch: Tensor, copies: int = 1) -> Tensor:
        """Draw uniform numbers in [0, 1), of shape (copies, batch)."""
        first, rows = self.place or (0, len(batch))
        drawn = torch.rand((copies, rows), generator=self.generator, device=batch.device)
        return drawn[:, first : first + len(batch)]


@dataclass(frozen=True)
class Passes:
    """The noisy copies of one input that a method runs after its warm-up.

    Attributes:
        train: Forwards and backwards, for the gradient by the weights.
        attack: Forwards and backwards, for the gradient by the input only.
        forward: Forwards only.
    """

    train: float
    attack: float = 0.0
    forward: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A training method: its settings, and a loss that authors write as :meth:`loss`."""

    name: ClassVar[str]
    moves: ClassVar[bool] = False  # whether it moves inputs or noise by small amounts, which requires additive noise

    def __post_init__(self) -> None:
        """Check the settings that several methods share."""
        for name in ("lam", "eta", "epsilon", "late_epsilon", "warmup"):
            value = getattr(self, name, None)
            require(value is None or value >= 0, f"{name} must not be negative, got {value}.")
        for name in ("steps", "m"):
            count = getattr(self, name, 1)
            require(count >= 1, f"{name} must be at least 1, got {count}.")

    @final
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        """Return the mean loss of a batch, a differentiable scalar; the model's mode does not change."""
        self.check(noise)
        if len(x) != len(y):
            raise UsageError(f"a batch needs as many labels as inputs, got {len(x)} inputs and {len(y)} labels.")
        if self.needs_soft_labels and (state.soft_labels is None or len(state.soft_labels) != len(x)):
            raise UsageError(f"{self.name} needs a soft label for each input; pass them as State(soft_labels=…).")
        return self.loss(model, x, y, noise, state)

    def check(self, noise: Noise) -> None:
        """Raise a UsageError if the method does not support the noise."""
        if self.moves and not noise.additive:
            raise UsageError(
                f"{self.name} moves inputs along a gradient and adds noise to them, but {noise.name} noise replaces "
                "values; use another noise, or the method gaussian."
            )

    @abstractmethod
    def loss(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        """Return the mean loss; the arguments are those of the call."""

    @property
    def needs_soft_labels(self) -> bool:
        """Whether the method needs ``State.soft_labels``."""
        return False

    @property
    def copies(self) -> int:
        """Noisy copies of each input, by which the loop divides the batch size: the setting ``m``, or 1."""
        return int(getattr(self, "m", 1))

    @property
    def passes(self) -> Passes:
        """The cost of one input without warm-up and masks."""
        return Passes(train=self.copies)


def require(holds: bool, sentence: str) -> None:
    """Raise a UsageError with this sentence if the condition does not hold."""
    if not holds:
        raise UsageError(sentence)
