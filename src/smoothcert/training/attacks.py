"""Gradient attacks of the training methods and of ``smoothcert.attack``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.classifiers.modes import evaluating
from smoothcert.sampling.soft import mean_log_softmax, run

Objective = Callable[[Tensor], Tensor]
"""Maps a batch of inputs to the loss of each, which an attack maximises."""


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode and disable gradients by the weights while the context lasts."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in weights:
        weight.requires_grad_(False)
    try:
        with evaluating(model):
            yield
    finally:
        for weight in weights:
            weight.requires_grad_(True)


def smoothed_nll(model: Callable[[Tensor], Tensor], noise: Tensor, y: Tensor) -> Objective:
    """Return the objective −log of the mean softmax of the labels over fixed noise (Salman et al., 2019, Eq. 6).

    The noise has the shape (copies, batch, …).
    """

    def objective(x: Tensor) -> Tensor:
        return F.nll_loss(mean_log_softmax(run(model, x + noise)), y, reduction="none")

    return objective


def ascend(
    objective: Objective,
    x: Tensor,
    *,
    steps: int,
    step: float,
    radius: float | None = None,
    center: Tensor | None = None,
    clamp: tuple[float, float] | None = (0.0, 1.0),
) -> Tensor:
    """Move inputs by projected gradient ascent with steps of fixed ℓ2 length (Madry et al., 2018).

    Args:
        radius: The radius of an ℓ2 ball that limits the inputs, or None.
        center: Its center; ``x`` by default.
        clamp: The smallest and largest value of an input, or None; applied before the ball.
    """
    at = x.detach()
    center = at if center is None else center
    for _ in range(steps):
        at = at + step * unit(gradient(objective, at))
        if clamp is not None:
            at = at.clamp(*clamp)
        if radius is not None:
            at = center + shorten(at - center, radius)
    return at.detach()


def ddn(
    model: nn.Module,
    noise: Tensor,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    radius: float,
    factor: float = 0.05,
    clamp: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """Attack the smoothed classifier by decoupled direction and norm (Rony et al., 2019; Salman et al., 2019).

    The norm starts at ``radius``, shrinks by ``factor`` after each success and grows by it after each failure, up to
    ``radius``; the step length falls from 1 to 0.01 along a cosine. The noise has the shape (copies, batch, …).

    Returns:
        For each input the nearest misclassified point found, or the input itself if there is none.
    """
    delta = torch.zeros_like(x)
    norm = x.new_full((len(x),), radius)
    best, best_norm = torch.zeros_like(x), x.new_full((len(x),), math.inf)
    for number in range(steps):
        at = (x + delta).detach().requires_grad_(True)
        with torch.enable_grad():
            log_mean = mean_log_softmax(run(model, at + noise))
            (slope,) = torch.autograd.grad(F.nll_loss(log_mean, y, reduction="sum"), at)
        fooled = log_mean.detach().argmax(1) != y
        length = delta.flatten(1).norm(dim=1)
        better = fooled & (length < best_norm)
        best = torch.where(column(better, x), delta, best)
        best_norm = torch.where(better, length, best_norm)
        pace = 0.01 + 0.99 * (1 + math.cos(math.pi * number / steps)) / 2
        delta = delta + pace * unit(slope)
        norm = torch.where(fooled, norm * (1 - factor), norm * (1 + factor)).clamp(max=radius)
        delta = (x + unit(delta) * column(norm, x)).clamp(*clamp) - x
    return (x + best).detach()


def gradient(objective: Objective, x: Tensor) -> Tensor:
    """Return the gradient of each input's objective by that input."""
    at = x.detach().requires_grad_(True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(objective(at).sum(), at)
    return slope


def unit(vectors: Tensor) -> Tensor:
    """Scale each row to ℓ2 length 1; rows of zeros stay."""
    return vectors / column(vectors.flatten(1).norm(dim=1).clamp(min=1e-12), vectors)


def shorten(vectors: Tensor, radius: float) -> Tensor:
    """Scale each row to at most this ℓ2 length."""
    return vectors * column((radius / vectors.flatten(1).norm(dim=1).clamp(min=1e-12)).clamp(max=1.0), vectors)


def column(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one value per row so that it broadcasts over the rows of ``like``."""
    return values.reshape(-1, *[1] * (like.ndim - 1))
