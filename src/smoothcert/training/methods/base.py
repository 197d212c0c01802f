"""The contract of a training method: a pure loss, and what it costs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Generator, Tensor, nn

from smoothcert.noise import Gaussian, Noise
from smoothcert.types import UsageError

_UNIT = Gaussian(1.0)


@dataclass(frozen=True, kw_only=True)
class State:
    """What a loss depends on besides its batch: randomness, and how far training is.

    The defaults are those of a training past its warm-up, in one process: ``State(generator=torch.Generator())``.

    Attributes:
        generator: The source of all randomness, on the device of the batch.
        epoch: Epochs done, with fraction.
        rate_dropped: Whether the learning rate has been lowered for the first time.
        soft_labels: A distribution over classes for each input, for the methods that need one.
        place: Where several processes share a batch: the number of its first row that is here, and of rows in all.
        sigma: The Gaussian noise scale of each input, (batch,), where they have their own; None for that of the noise.
    """

    generator: Generator
    epoch: float = math.inf
    rate_dropped: bool = True
    soft_labels: Tensor | None = None
    place: tuple[int, int] | None = None
    sigma: Tensor | None = None

    def noisy(self, noise: Noise, x: Tensor, copies: int = 1) -> Tensor:
        """Noisy copies of a batch, of shape (copies, batch, …)."""
        if self.sigma is None:
            return self._drawn(noise, x, copies)
        column = self.sigma.to(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
        return self._drawn(_UNIT, torch.zeros_like(x), copies).mul_(column).add_(x)

    def _drawn(self, noise: Noise, x: Tensor, copies: int) -> Tensor:
        if self.place is None:
            return noise.sample(x, x.new_empty((copies, *x.shape)), self.generator)
        first, rows = self.place  # draw for all processes and keep what is ours, so that their number changes nothing
        whole = x.new_zeros((rows, *x.shape[1:]))
        whole[first : first + len(x)] = x
        drawn = noise.sample(whole, whole.new_empty((copies, *whole.shape)), self.generator)
        return drawn[:, first : first + len(x)].contiguous()

    def uniform(self, batch: Tensor, copies: int = 1) -> Tensor:
        """Uniform numbers in [0, 1), of shape (copies, batch)."""
        first, rows = (0, len(batch)) if self.place is None else self.place
        drawn = torch.rand((copies, rows), generator=self.generator, device=batch.device)
        return drawn[:, first : first + len(batch)]


@dataclass(frozen=True)
class Passes:
    """What one training input costs at full strength, in single noisy copies.

    Attributes:
        train: Copies run forwards and backwards, for the gradient by the weights.
        attack: Copies run forwards and backwards, for the gradient by the input only.
        forward: Copies run forwards only.
    """

    train: float
    attack: float = 0.0
    forward: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A training method: its settings, and a loss that authors write as :meth:`loss`.

    Attributes:
        name: The name in ``METHODS`` and in recipes.
        moves: Whether it moves inputs or noise by small amounts, which noise that replaces values does not allow.
    """

    name: ClassVar[str]
    moves: ClassVar[bool] = False

    @final
    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        """The mean loss of a batch.

        Args:
            model: The classifier, in training mode; left in the mode it is in.
            x: A batch of inputs.
            y: Their labels.
            noise: The noise to certify with later.
            state: Randomness and the progress of training.

        Returns:
            A scalar to differentiate.

        Raises:
            UsageError: If inputs and labels differ in number, soft labels are needed and missing, or the noise does not
                suit the method.
        """
        self.check(noise)
        if len(x) != len(y):
            raise UsageError(f"a batch needs as many labels as inputs, got {len(x)} inputs and {len(y)} labels.")
        if self.needs_soft_labels and (state.soft_labels is None or len(state.soft_labels) != len(x)):
            raise UsageError(f"{self.name} needs a soft label for each input; give them as State(soft_labels=…).")
        return self.loss(model, x, y, noise, state)

    def check(self, noise: Noise) -> None:
        """Refuse a noise that does not suit the method.

        Raises:
            UsageError: If it does not.
        """
        if self.moves and not noise.additive:
            raise UsageError(
                f"{self.name} moves inputs along a gradient and adds noise to them, but {noise.name} noise replaces "
                "values; use another noise, or the method gaussian."
            )

    @abstractmethod
    def loss(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        """The mean loss; arguments as in the call."""

    @property
    def needs_soft_labels(self) -> bool:
        """Whether ``State.soft_labels`` must be given."""
        return False

    @property
    def copies(self) -> int:
        """Noisy copies of each input; the loop makes its batches smaller by this factor."""
        return 1

    @property
    @abstractmethod
    def passes(self) -> Passes:
        """What one input costs, warm-ups and masks aside."""


def run(model: nn.Module, copies: Tensor) -> Tensor:
    """Logits of shape (copies, batch, classes) for inputs of shape (copies, batch, …), in one forward pass."""
    logits: Tensor = model(copies.flatten(0, 1))
    return logits.reshape(*copies.shape[:2], -1)


def require(holds: bool, sentence: str) -> None:
    """Refuse a setting.

    Raises:
        UsageError: With this sentence, if the condition does not hold.
    """
    if not holds:
        raise UsageError(sentence)
