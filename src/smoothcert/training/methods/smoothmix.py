"""Training on mixtures of an input and its adversary."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.noise import Noise
from smoothcert.sampling.soft import mean_log_softmax
from smoothcert.training.attacks import ascend, column, frozen, smoothed_nll
from smoothcert.training.methods.base import Method, Passes, State, require, run


@dataclass(frozen=True)
class SmoothMix(Method):
    """Cross-entropy on noisy copies, and a smoother target towards an adversary (Jeong et al., 2021, Eq. 8–11).

    An unrestricted adversary x̃ of the smoothed classifier is mixed with the input, x_mix = (1−λ)x + λx̃ with λ uniform
    in (0, ½). The target of its prediction is (1−λ)F̂(x) + λ·uniform, where the smoothed classifier F̂ is correct at x.

    Args:
        eta: Weight η of the second term.
        step: Length of the attack's steps.
        steps: Their number T.
        m: Noisy copies of each input.
        one_step: Whether the attack's first point replaces the input, also in the cross-entropy.
        radius: The ℓ2 ball of the attack; None for none.
    """

    eta: float = 5.0
    _: KW_ONLY
    step: float = 1.0
    steps: int = 4
    m: int = 4
    one_step: bool = False
    radius: float | None = None

    name: ClassVar[str] = "smoothmix"
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.step > 0, f"step must be positive, got {self.step}.")
        require(self.radius is None or self.radius > 0, f"radius must be positive, got {self.radius}.")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        delta = state.noisy(noise, x, self.m) - x
        first, last = self.adversaries(model, x, y, delta)
        start = first if self.one_step else x
        clean = run(model, start + delta)
        loss = F.cross_entropy(clean.flatten(0, 1), y.repeat(self.m))
        if self.eta == 0:
            return loss
        log_mean = mean_log_softmax(clean)
        share = 0.5 * state.uniform(x)[0]
        weight = column(share, x)
        mixed = F.log_softmax(run(model, (1 - weight) * start + weight * last + delta), dim=-1)
        target = (1 - share[:, None]) * log_mean.exp() + share[:, None] / clean.shape[-1]
        divergence = F.kl_div(mixed, target.expand_as(mixed), reduction="none").sum(dim=-1).mean(dim=0)
        right = log_mean.argmax(dim=1) == y
        return loss + self.eta * (divergence * right).mean()

    def adversaries(self, model: nn.Module, x: Tensor, y: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attack's first and last point."""
        if self.eta == 0 and not self.one_step:
            return x, x
        with frozen(model):
            objective = smoothed_nll(model, delta, y)
            first = ascend(objective, x, steps=1, step=self.step, radius=self.radius)
            rest = self.steps - 1 if self.eta > 0 else 0
            return first, ascend(objective, first, steps=rest, step=self.step, radius=self.radius, center=x)

    @property
    def passes(self) -> Passes:
        if self.eta == 0:
            return Passes(train=self.m, attack=self.m * self.one_step)
        return Passes(train=2 * self.m, attack=self.m * self.steps)
