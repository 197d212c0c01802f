"""Training methods: one short file each, a pure loss over (model, x, y, noise, generator)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Generator, Tensor, nn

from smoothcert.noise import Noise
from smoothcert.training.methods.gaussian import gaussian

Loss = Callable[[nn.Module, Tensor, Tensor, Noise, Generator], Tensor]

METHODS: dict[str, Loss] = {"gaussian": gaussian}
"""Every method by name; a new one is one file and one entry here."""

__all__ = ["METHODS", "Loss", "gaussian"]
