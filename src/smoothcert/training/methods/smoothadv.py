"""Adversarial training of the smoothed classifier."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.noise import Noise
from smoothcert.training.attacks import ascend, ddn, frozen, smoothed_nll
from smoothcert.training.methods.base import Method, Passes, State, require, run


@dataclass(frozen=True)
class SmoothAdv(Method):
    """Cross-entropy on noisy copies of an input that fools the smoothed classifier (Salman et al., 2019, Eq. 6).

    The attack uses the noise of the update, and all noisy copies share its point.

    Args:
        epsilon: The ℓ2 radius of the attack.
        steps: Its number of steps T.
        m: Noisy copies of each input.
        warmup: Epochs over which epsilon grows from 0.
        attack: ``"pgd"``, with steps of length 2ε/T, or ``"ddn"``.
    """

    epsilon: float = 1.0
    _: KW_ONLY
    steps: int = 10
    m: int = 4
    warmup: float = 10.0
    attack: str = "pgd"

    name: ClassVar[str] = "smoothadv"
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.attack in ("pgd", "ddn"), f"attack must be pgd or ddn, got {self.attack!r}.")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        delta = state.noisy(noise, x, self.m) - x
        logits = run(model, self.adversary(model, x, y, delta, state) + delta)
        return F.cross_entropy(logits.flatten(0, 1), y.repeat(self.m))

    def adversary(self, model: nn.Module, x: Tensor, y: Tensor, delta: Tensor, state: State) -> Tensor:
        """Move the inputs to fool the classifier smoothed over ``delta``."""
        epsilon = self.epsilon if state.epoch >= self.warmup else self.epsilon * state.epoch / self.warmup
        if epsilon == 0:
            return x
        with frozen(model):
            if self.attack == "ddn":
                return ddn(model, delta, x, y, steps=self.steps, radius=epsilon)
            step = 2 * epsilon / self.steps
            return ascend(smoothed_nll(model, delta, y), x, steps=self.steps, step=step, radius=epsilon)

    @property
    def passes(self) -> Passes:
        return Passes(train=self.m, attack=self.m * self.steps if self.epsilon > 0 else 0)
