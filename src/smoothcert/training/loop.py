"""The one training loop."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from smoothcert.noise import Noise
from smoothcert.training.methods import METHODS
from smoothcert.types import SmoothcertError, UsageError, unknown_name


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How to train: SGD with Nesterov momentum under a one-cycle schedule.

    Args:
        method: A name in ``METHODS``.
        epochs: Passes over the data.
        batch_size: Inputs per step.
        peak_rate: The largest learning rate of the cycle.
        momentum: Nesterov momentum.
        weight_decay: ℓ2 penalty on the weights.
        seed: Seed of noise and order.
    """

    method: str = "gaussian"
    epochs: int = 20
    batch_size: int = 64
    peak_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown_name("training method", self.method, METHODS)
        if self.epochs < 1 or self.batch_size < 1 or not self.peak_rate > 0:
            raise UsageError("epochs and batch_size must be at least 1 and peak_rate positive.")


def train(
    model: nn.Module, x: Tensor, y: Tensor, noise: Noise, settings: TrainingSettings, *, progress: bool = True
) -> None:
    """Train a model in place.

    Args:
        model: The classifier; left in evaluation mode.
        x: All training inputs, on the model's device.
        y: Their labels.
        noise: The noise the model will be certified with.
        settings: How to train.
        progress: Whether to show a progress bar on stderr.

    Raises:
        UsageError: If there is nothing to train on, or inputs and labels differ in number.
        SmoothcertError: If the loss is no longer a number.
    """
    if len(x) == 0 or len(x) != len(y):
        raise UsageError(f"training needs as many labels as inputs and at least one, got {len(x)} and {len(y)}.")
    loss_of = METHODS[settings.method]
    order = torch.Generator().manual_seed(settings.seed)
    generator = torch.Generator(device=x.device).manual_seed(settings.seed)
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=settings.peak_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.momentum > 0,
    )
    steps = -(-len(x) // settings.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.peak_rate, epochs=settings.epochs, steps_per_epoch=steps
    )
    model.train()
    epochs = range(1, settings.epochs + 1)
    for epoch in track(epochs, "train", console=Console(stderr=True), disable=not progress):
        for batch in torch.split(torch.randperm(len(x), generator=order), settings.batch_size):
            loss = loss_of(model, x[batch], y[batch], noise, generator)
            if not torch.isfinite(loss):
                raise SmoothcertError(f"the loss became {loss.item()} in epoch {epoch}; lower the learning rate.")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    model.eval()
