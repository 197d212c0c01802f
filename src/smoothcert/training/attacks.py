"""Attacks by gradient: shared by the training methods and by the attack on the smoothed classifier."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.classifiers.modes import evaluating

Objective = Callable[[Tensor], Tensor]
"""Maps a batch of inputs to a loss for each, to be made large."""


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients by the weights while the context lasts."""
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
    """−log of the mean softmax of the labels over fixed noise (Salman et al., 2019, Eq. 6).

    Args:
        model: The classifier.
        noise: What to add to every input, of shape (copies, batch, …).
        y: The labels.

    Returns:
        The objective.
    """

    def objective(x: Tensor) -> Tensor:
        logits: Tensor = model((x + noise).flatten(0, 1))
        return F.nll_loss(mean_log_softmax(logits.reshape(*noise.shape[:2], -1)), y, reduction="none")

    return objective


def mean_log_softmax(logits: Tensor) -> Tensor:
    """The logarithm of the mean softmax over the first dimension."""
    return torch.logsumexp(F.log_softmax(logits, dim=-1), dim=0) - math.log(len(logits))


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
    """Projected gradient ascent from ``x`` with steps of fixed ℓ2 length (Madry et al., 2018).

    Args:
        objective: What to make large.
        x: The inputs.
        steps: The number of steps.
        step: Their length.
        radius: The ℓ2 ball to stay in, or None for no ball.
        center: Its center; ``x`` by default.
        clamp: The smallest and largest value of an input, or None for any; the ball is applied after it.

    Returns:
        The moved inputs, detached.
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
    """The decoupled direction and norm attack (Rony et al., 2019) on the smoothed classifier (Salman et al., 2019).

    The norm begins at ``radius``, shrinks by ``factor`` after each success and grows by it after each failure, never
    above ``radius``; the step length falls from 1 to 0.01 along a cosine.

    Args:
        model: The classifier.
        noise: What to add to every input, of shape (copies, batch, …).
        x: The inputs.
        y: Their labels.
        steps: The number of steps.
        radius: The largest norm.
        factor: How fast the norm changes.
        clamp: The smallest and largest value of an input.

    Returns:
        For each input the nearest point found that is misclassified, or the input itself where none is.
    """
    delta = torch.zeros_like(x)
    norm = x.new_full((len(x),), radius)
    best, best_norm = torch.zeros_like(x), x.new_full((len(x),), math.inf)
    for number in range(steps):
        at = (x + delta).detach().requires_grad_(True)
        with torch.enable_grad():
            logits: Tensor = model((at + noise).flatten(0, 1))
            log_mean = mean_log_softmax(logits.reshape(*noise.shape[:2], -1))
            (slope,) = torch.autograd.grad(F.nll_loss(log_mean, y, reduction="sum"), at)
        fooled = log_mean.detach().argmax(1) != y
        length = delta.flatten(1).norm(dim=1)
        better = fooled & (length < best_norm)
        best = torch.where(_column(better, x), delta, best)
        best_norm = torch.where(better, length, best_norm)
        pace = 0.01 + 0.99 * (1 + math.cos(math.pi * number / steps)) / 2
        delta = delta + pace * unit(slope)
        norm = torch.where(fooled, norm * (1 - factor), norm * (1 + factor)).clamp(max=radius)
        delta = (x + unit(delta) * _column(norm, x)).clamp(*clamp) - x
    return (x + best).detach()


def gradient(objective: Objective, x: Tensor) -> Tensor:
    """The gradient of each input's objective by that input."""
    at = x.detach().requires_grad_(True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(objective(at).sum(), at)
    return slope


def unit(vectors: Tensor) -> Tensor:
    """Each row scaled to ℓ2 length 1; rows of zeros stay."""
    return vectors / _column(vectors.flatten(1).norm(dim=1).clamp(min=1e-12), vectors)


def shorten(vectors: Tensor, radius: float) -> Tensor:
    """Each row scaled to at most this ℓ2 length."""
    return vectors * _column((radius / vectors.flatten(1).norm(dim=1).clamp(min=1e-12)).clamp(max=1.0), vectors)


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.ndim - 1))
