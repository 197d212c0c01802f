"""The interface of a training method: a pure loss and its cost."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Generator, Tensor, nn

from smoothcert.noise import Gaussian, Noise
from smoothcert.training.attacks import column
from smoothcert.types import UsageError

_UNIT = Gaussian(1.0)


@dataclass(frozen=True, kw_only=True)
class State:
    """The randomness and the progress of training, on which a loss depends in addition to its batch.

    The defaults are those of a training after its warm-up, in one process: ``State(generator=torch.Generator())``.

    Attributes:
        generator: The source of all randomness, on the device of the batch.
        epoch: Epochs done, with fraction.
        rate_dropped: Whether the learning rate has been lowered for the first time.
        soft_labels: A distribution over classes for each input, for methods that need it.
        place: The first row of this process and the number of rows, of a batch that several processes share.
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
        if self.sigma is None:
            return self._drawn(noise, x, copies)
        return self._drawn(_UNIT, torch.zeros_like(x), copies).mul_(column(self.sigma.to(x.dtype), x)).add_(x)

    def _drawn(self, noise: Noise, x: Tensor, copies: int) -> Tensor:
        if self.place is None:
            return noise.sample(x, x.new_empty((copies, *x.shape)), self.generator)
        first, rows = self.place  # draw for all processes and keep our rows, so that their number does not matter
        whole = x.new_zeros((rows, *x.shape[1:]))
        whole[first : first + len(x)] = x
        drawn = noise.sample(whole, whole.new_empty((copies, *whole.shape)), self.generator)
        return drawn[:, first : first + len(x)].contiguous()

    def uniform(self, batch: Tensor, copies: int = 1) -> Tensor:
        """Draw uniform numbers in [0, 1), of shape (copies, batch)."""
        first, rows = (0, len(batch)) if self.place is None else self.place
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
    """A training method: its settings, and a loss that authors write as :meth:`loss`.

    Attributes:
        name: The name in ``METHODS`` and in recipes.
        moves: Whether it moves inputs or noise by small amounts, which requires additive noise.
    """

    name: ClassVar[str]
    moves: ClassVar[bool] = False

    @final
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        """Return the mean loss of a batch, a differentiable scalar.

        Args:
            model: The classifier, in training mode; its mode does not change.
            x: A batch of inputs.
            y: Their labels.
            noise: The noise of the later certification.
            state: Randomness and the progress of training.
        """
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


def run(model: nn.Module, copies: Tensor) -> Tensor:
    """Return logits of shape (copies, batch, classes) of inputs of shape (copies, batch, …), in one forward pass."""
    logits: Tensor = model(copies.flatten(0, 1))
    return logits.reshape(*copies.shape[:2], -1)


def require(holds: bool, sentence: str) -> None:
    """Raise a UsageError with this sentence if the condition does not hold."""
    if not holds:
        raise UsageError(sentence)
