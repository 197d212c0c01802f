"""Training with consistency regularization."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.noise import Noise
from smoothcert.sampling.soft import mean_log_softmax
from smoothcert.training.methods.base import Method, State, require, run

FORMS = ("default", "xent", "kl", "mse")


@dataclass(frozen=True)
class Consistency(Method):
    """Cross-entropy on noisy copies and a penalty on their different predictions (Jeong and Shin, 2020, Eq. 9).

    With F̂ the mean prediction F_i over the copies, the forms of the penalty are

    - ``"default"``: λ · mean KL(F̂ ‖ F_i) + η · H(F̂),
    - ``"xent"``: λ · mean cross-entropy from F̂ to F_i,
    - ``"kl"``: λ · mean KL(F̂ ‖ F_i),
    - ``"mse"``: λ · mean ‖F_i − F_j‖² over pairs of copies.

    Args:
        lam: Weight λ.
        eta: Weight η of the entropy.
        m: Noisy copies of each input.
        form: The form of the penalty.
    """

    lam: float = 5.0
    _: KW_ONLY
    eta: float = 0.5
    m: int = 2
    form: str = "default"

    name: ClassVar[str] = "consistency"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.form in FORMS, f"form must be one of {', '.join(FORMS)}, got {self.form!r}.")
        require(self.m >= 2, f"m must be at least 2, as predictions are compared, got {self.m}.")

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        logits = run(model, state.noisy(noise, x, self.m))
        return F.cross_entropy(logits.flatten(0, 1), y.repeat(self.m)) + self.penalty(logits).mean()

    def penalty(self, logits: Tensor) -> Tensor:
        """Return the penalty of each input, from logits of shape (copies, batch, classes)."""
        log_mean = mean_log_softmax(logits)
        mean = log_mean.exp()
        log_each = F.log_softmax(logits, dim=-1)
        if self.form == "mse":
            spread = (log_each.exp() - mean).square().sum(dim=-1).mean(dim=0)
            return self.lam * 2 * self.m / (self.m - 1) * spread  # the mean over pairs, from the spread
        entropy = -torch.sum(mean * log_mean, dim=-1)
        cross_entropy = -torch.sum(mean * log_each, dim=-1).mean(dim=0)
        if self.form == "xent":
            return self.lam * cross_entropy
        eta = self.eta if self.form == "default" else 0.0
        return self.lam * (cross_entropy - entropy) + eta * entropy
