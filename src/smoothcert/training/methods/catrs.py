"""Confidence-aware training."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.noise import Noise
from smoothcert.training.attacks import ascend, frozen
from smoothcert.training.methods.base import Method, Passes, State, require, run

_CHOICES = {"count": ("votes", "soft", "all"), "target": ("soft", "mean", "label"), "worst": ("max", "mean")}


@dataclass(frozen=True)
class CatRS(Method):
    """Train on the easiest copies of uncertain inputs and the worst of confident ones (Jeong et al., 2023, Eq. 6–8).

    L_low + λ · 1[K⁺ = M] · L_high, where K is binomial with the share of copies that are classified correctly,
    K⁺ = max(1, K), L_low is the sum of the K⁺ smallest cross-entropies over M, and L_high the largest divergence
    KL(ŷ ‖ F(x+δ*)) from a soft label, over noise δ* that is attacked within a ball and then rescaled to the mean and
    size of δ.

    Args:
        lam: Weight λ of L_high.
        m: Noisy copies M of each input.
        steps: Steps T of the attack on the noise, each of length 2ε/T.
        epsilon: Its ℓ2 radius ε.
        late_epsilon: The radius from epoch ``late_from`` on; None for the same.
        late_from: That epoch.
        low: Whether L_low is part of the loss.
        mask: Whether only inputs with K⁺ = M have L_high.
        count: The source of K: ``"votes"`` of the copies, the ``"soft"`` label of the class, or ``"all"`` for K = M.
        target: ŷ: the ``"soft"`` label, the ``"mean"`` prediction over the copies, or the ``"label"`` itself.
        worst: Whether L_high is the ``"max"`` or the ``"mean"`` over the copies.
    """

    lam: float = 1.0
    _: KW_ONLY
    m: int = 4
    steps: int = 4
    epsilon: float = 1.0
    late_epsilon: float | None = None
    late_from: float = 0.0
    low: bool = True
    mask: bool = True
    count: str = "votes"
    target: str = "soft"
    worst: str = "max"

    name: ClassVar[str] = "catrs"
    moves: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.low or self.lam > 0, "without L_low, lam must be positive.")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            require(value in choices, f"{name} must be one of {', '.join(choices)}, got {value!r}.")

    @property
    def needs_soft_labels(self) -> bool:
        return self.count == "soft" or (self.lam > 0 and self.target == "soft")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        delta = state.noisy(noise, x, self.m) - x
        logits = run(model, x + delta)
        easy = self._easy(logits, y, state)
        loss = 0 * logits.sum()  # differentiable even if nothing is added
        if self.low:
            losses = F.cross_entropy(logits.flatten(0, 1), y.repeat(self.m), reduction="none").reshape(self.m, -1)
            rank = torch.arange(self.m, device=x.device)[:, None]
            loss = (losses.sort(dim=0).values * (rank < easy)).sum() / (self.m * len(x))
        chosen = (easy == self.m).nonzero()[:, 0] if self.mask else torch.arange(len(x), device=x.device)
        if self.lam == 0 or len(chosen) == 0:
            return loss
        target = self._target(logits, y, state)[chosen]
        high = self._high(model, x[chosen], delta[:, chosen], target, state)
        return loss + self.lam * high.sum() / len(x)

    def _easy(self, logits: Tensor, y: Tensor, state: State) -> Tensor:
        """Return K⁺ of each input."""
        if self.count == "all":
            return torch.full_like(y, self.m)
        if self.count == "soft":
            assert state.soft_labels is not None
            share = state.soft_labels.gather(1, y[:, None])[:, 0]
        else:
            share = (logits.argmax(dim=-1) == y).float().mean(dim=0)
        return (state.uniform(y, self.m) < share).sum(dim=0).clamp(min=1)

    def _target(self, logits: Tensor, y: Tensor, state: State) -> Tensor:
        """Return ŷ of each input, without gradients."""
        if self.target == "label":
            return F.one_hot(y, logits.shape[-1]).to(logits.dtype)
        if self.target == "mean":
            return logits.detach().softmax(dim=-1).mean(dim=0)
        assert state.soft_labels is not None
        return state.soft_labels.to(logits.dtype)

    def _high(self, model: nn.Module, x: Tensor, delta: Tensor, target: Tensor, state: State) -> Tensor:
        """Return L_high of each input."""
        epsilon = self.epsilon
        if self.late_epsilon is not None and state.epoch >= self.late_from:
            epsilon = self.late_epsilon

        def divergence(noise: Tensor) -> Tensor:
            logs = F.log_softmax(run(model, x + noise.reshape(delta.shape)), dim=-1)
            return F.kl_div(logs, target.expand_as(logs), reduction="none").sum(dim=-1).flatten()

        with frozen(model):
            flat = delta.flatten(0, 1)
            step = 2 * epsilon / self.steps
            moved = ascend(divergence, flat, steps=self.steps, step=step, radius=epsilon, clamp=None)
        worst = divergence(_like(moved, flat)).reshape(len(delta), -1)
        return worst.max(dim=0).values if self.worst == "max" else worst.mean(dim=0)

    @property
    def passes(self) -> Passes:
        if self.lam == 0:
            return Passes(train=self.m)
        return Passes(train=2 * self.m, attack=self.m * self.steps)


def _like(moved: Tensor, original: Tensor) -> Tensor:
    """Shift and scale each row of ``moved`` to the mean and standard deviation of the row of ``original``."""
    rows, goal = moved.flatten(1), original.flatten(1)
    centred = rows - rows.mean(dim=1, keepdim=True)
    spread = goal.std(dim=1, keepdim=True, correction=0) / rows.std(dim=1, keepdim=True, correction=0).clamp(min=1e-12)
    return (centred * spread + goal.mean(dim=1, keepdim=True)).reshape(moved.shape)
