"""Inputs near another one, for the page: moved by a distance at random, or by an attack."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from smoothcert.certify import Smoothed
from smoothcert.noise import Discrete, Noise
from smoothcert.types import Norm, UsageError

_HALVINGS = 30
_LONGEST = 64.0  # times the size: how far a direction is followed where the range of inputs cuts most of it off


def distance(x: Tensor, other: Tensor, norm: Norm) -> float:
    """Return the distance of two inputs."""
    change = (other.double() - x.double()).flatten()
    if norm is Norm.L0:
        return float(change.count_nonzero())
    return float(torch.linalg.vector_norm(change, {Norm.L1: 1, Norm.L2: 2, Norm.LINF: torch.inf}[norm]))


def random_change(smoothed: Smoothed, x: Tensor, size: float, norm: Norm, seed: int) -> Tensor:
    """Move an input in a random direction by at most ``size``, and by nearly as much where range and grid allow it.

    The direction depends on seed and shape only. The result is an input that the classifier accepts.
    """
    source = Generator().manual_seed(seed)
    if norm is Norm.L0:
        return _replaced(smoothed.noise, x, int(size), source)
    direction = _DIRECTIONS[norm](torch.empty(x.shape, dtype=torch.float64), source)
    direction *= size / distance(torch.zeros_like(direction), direction, norm)
    low, high, found = 0.0, _LONGEST, x
    for _ in range(_HALVINGS):  # each value moves further with the factor, also after cutting and rounding
        factor = (low + high) / 2
        moved = _accepted(smoothed, x.double() + factor * direction).to(x.dtype)
        if distance(x, moved, norm) <= size:
            low, found = factor, moved
        else:
            high = factor
    return found


def _accepted(smoothed: Smoothed, x: Tensor) -> Tensor:
    limits = smoothed.input_range
    return smoothed.noise.nearest(x if limits is None else x.clamp(*limits))


def _replaced(noise: Noise, x: Tensor, count: int, source: Generator) -> Tensor:
    """Replace some values by other levels of the noise."""
    if not isinstance(noise, Discrete):
        raise UsageError(f"inputs of {noise.name} noise have no levels to replace; choose a norm other than l0.")
    places = torch.randperm(x.numel(), generator=source)[:count]
    steps = torch.randint(1, noise.levels + 1, (x.numel(),), generator=source)[: len(places)]
    moved = x.double().flatten()
    levels = (moved[places] * noise.levels).round_() + steps
    moved[places] = (levels % (noise.levels + 1)) / noise.levels
    return moved.reshape(x.shape).to(x.dtype)


def _normal(out: Tensor, source: Generator) -> Tensor:
    return out.normal_(generator=source)


def _signs(out: Tensor, source: Generator) -> Tensor:
    return out.uniform_(-1, 1, generator=source).sign()


def _few(out: Tensor, source: Generator) -> Tensor:
    """Most of the length in few values, as a direction of a fixed ℓ1 length is otherwise lost to rounding."""
    return out.uniform_(-1, 1, generator=source).sign() * torch.empty_like(out).exponential_(generator=source) ** 4


_DIRECTIONS: dict[Norm, Callable[[Tensor, Generator], Tensor]] = {
    Norm.L2: _normal,
    Norm.L1: _few,
    Norm.LINF: _signs,
}
