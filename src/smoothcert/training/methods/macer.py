"""Training that maximises the certified radius."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.noise import Noise
from smoothcert.sampling.soft import mean_log_softmax
from smoothcert.training.methods.base import Method, State, require, run


@dataclass(frozen=True)
class Macer(Method):
    """Negative log of the mean softmax, and a hinge on a soft certified radius (Zhai et al., 2020, Algorithm 1).

    The radius σ/2 · (Φ⁻¹(p₁) − Φ⁻¹(p₂)) comes from the mean softmax at inverse temperature β. Only inputs that the
    smoothed classifier classifies correctly, with a finite gap of at most γ, contribute to the hinge. For noise that is
    not Gaussian, σ is its standard deviation and the radius a surrogate.

    Args:
        lam: Weight λ of the hinge.
        gamma: The gap γ from which there is no hinge.
        beta: Inverse temperature β.
        m: Noisy copies of each input.
        deferred: Whether λ is 0 until the learning rate is lowered for the first time.
        warmup: Epochs over which λ grows from 0. At full strength from the start, the hinge can drive an untrained
            model to the same class for all inputs.
    """

    lam: float = 16.0
    _: KW_ONLY
    gamma: float = 8.0
    beta: float = 16.0
    m: int = 16
    deferred: bool = False
    warmup: float = 0.0

    name: ClassVar[str] = "macer"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.gamma > 0 and self.beta > 0, f"gamma and beta must be positive, got {self.gamma}, {self.beta}.")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        logits = run(model, state.noisy(noise, x, self.m))
        nll = F.nll_loss(mean_log_softmax(logits), y)
        lam = self.lam if state.epoch >= self.warmup else self.lam * state.epoch / self.warmup
        if lam == 0 or (self.deferred and not state.rate_dropped):
            return nll
        top = torch.softmax(self.beta * logits, dim=-1).mean(dim=0).topk(2, dim=1)
        with torch.no_grad():
            gap = _gap(top.values)
            counts = (top.indices[:, 0] == y) & gap.isfinite() & (gap <= self.gamma)
        missing = self.gamma - _gap(top.values[counts])
        if state.sigma is not None:  # each radius has the scale of its input
            missing = missing * (state.sigma[counts] / noise.scale).to(missing.dtype)
        return nll + lam * noise.scale / 2 * (missing.sum() / len(x))


def _gap(probabilities: Tensor) -> Tensor:
    quantiles: Tensor = torch.special.ndtri(probabilities)
    return quantiles[:, 0] - quantiles[:, 1]
