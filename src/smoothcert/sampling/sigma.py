"""A noise scale for every input: the σ at which a classifier seems to certify the largest radius around it.

What is found here is a choice, not a claim: any σ gives a valid certificate, of the classifier smoothed with that σ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Generator, Tensor

from smoothcert.classifiers.modes import evaluating
from smoothcert.sampling.lanes import Classifier
from smoothcert.sampling.seeds import MODELLING, block_seed
from smoothcert.types import UsageError

CLAMP = (0.02, 0.98)
"""Where probabilities are kept inside Φ⁻¹, as in the paper's program."""

INTERVAL = (0.01, 10.0)
"""Where σ is kept unless one says otherwise."""

EVALUATIONS = 200
"""Forward passes per input that the paper's grid search may use (App. B)."""

Randomness = Generator | Sequence[Generator]
"""One generator for a batch, or one per input, so that an input's noise does not depend on its company."""


class SigmaSolver(Protocol):
    """Finds the noise scale of each input of a batch."""

    def __call__(self, model: Classifier, x: Tensor, sigma: Tensor, generator: Randomness) -> Tensor:
        """The scales, (batch,), from the inputs (batch, …) and start values (batch,)."""
        ...

    def config(self) -> dict[str, Any]:
        """The solver as plain values, for run files."""
        ...


def optimize_sigma(
    model: Classifier,
    x: Tensor,
    sigma: Tensor,
    *,
    steps: int,
    n: int = 1,
    step: float = 1e-4,
    clamp: tuple[float, float] = CLAMP,
    interval: tuple[float, float] = INTERVAL,
    generator: Randomness,
) -> Tensor:
    """Gradient ascent on the radius σ/2 (Φ⁻¹(p_A) − Φ⁻¹(p_B)) that each input seems to have.

    OptimizeSigma of Alfarra, Bibi, Torr and Ghanem (2022), Algorithm 1 and Eq. 3: p is the mean softmax over copies
    x + σε with fresh ε ~ N(0, I) in every step, p_A and p_B are its two largest entries, and the derivative by σ goes
    through the copies. The model runs in evaluation mode; its weights and their gradients are not touched.

    Args:
        model: Maps a batch to logits (batch, classes).
        x: The inputs, (batch, …).
        sigma: The scales to begin with, (batch,).
        steps: K, the number of steps; 0 gives the start values back.
        n: Noisy copies of each input per step.
        step: α of the paper, the factor of the gradient.
        clamp: Where probabilities are kept inside Φ⁻¹; beyond it they have no slope.
        interval: The smallest and largest σ.
        generator: The randomness, on the device of ``x``: one generator, or one per input.

    Returns:
        The scales, (batch,), in the precision of ``sigma``; an input whose slope is not finite keeps what it had.

    Raises:
        UsageError: If an argument is out of range or the shapes do not fit.

    Example:
        >>> model, x = torch.nn.Linear(4, 3), torch.rand(2, 4)
        >>> generator = torch.Generator().manual_seed(0)
        >>> optimize_sigma(model, x, torch.tensor([0.25, 0.5]), steps=10, generator=generator).shape
        torch.Size([2])
    """
    _check_settings(n, clamp)
    _check_ascent(steps, step, interval)
    _check_batch(x, sigma, generator)
    low, high = interval
    at = sigma.detach().to(x.device)
    if not bool(((at >= low * (1 - 1e-6)) & (at <= high * (1 + 1e-6))).all()):
        raise UsageError(f"the start values of sigma must lie between {low:g} and {high:g}; give another interval.")
    with torch.inference_mode(False), torch.enable_grad(), evaluating(model):
        x = x.detach().clone()  # a tensor of inference mode has no derivatives
        at = at.clone().clamp(low, high)
        for _ in range(steps):
            at = at.requires_grad_(True)
            (slope,) = torch.autograd.grad(_radius(model, x, at, n, clamp, generator).sum(), at)
            moved = (at.detach() + step * slope).clamp(low, high)
            at = torch.where(torch.isfinite(slope), moved, at.detach())
    return at.detach()


def grid_sigma(
    model: Classifier,
    x: Tensor,
    grid: Sequence[float],
    *,
    n: int,
    clamp: tuple[float, float] = CLAMP,
    generator: Randomness,
) -> Tensor:
    """The scale of a grid at which each input seems to have the largest radius.

    The baseline of Alfarra et al. (2022), App. B, Eq. 4: the objective of :func:`optimize_sigma`, estimated once at
    every scale of the grid from n fresh copies.

    Args:
        model: Maps a batch to logits (batch, classes).
        x: The inputs, (batch, …).
        grid: The scales to try.
        n: Noisy copies of each input per scale.
        clamp: Where probabilities are kept inside Φ⁻¹.
        generator: The randomness, on the device of ``x``: one generator, or one per input.

    Returns:
        The scales, (batch,), in double precision; the smallest of those that do equally well.

    Raises:
        UsageError: If an argument is out of range or the shapes do not fit.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> grid_sigma(torch.nn.Linear(4, 3), torch.rand(2, 4), (0.25, 0.5), n=10, generator=generator).shape
        torch.Size([2])
    """
    _check_settings(n, clamp)
    scales = sorted(_checked_grid(grid))
    best = torch.full((len(x),), scales[0], dtype=torch.float64, device=x.device)
    _check_batch(x, best, generator)
    most = torch.full_like(best, -math.inf)
    with torch.inference_mode(), evaluating(model):
        for scale in scales:
            radius = _radius(model, x, torch.full_like(best, scale), n, clamp, generator)
            better = radius > most  # never for a radius that is not a number
            best, most = torch.where(better, scale, best), torch.where(better, radius, most)
    return best.clone()


@dataclass(frozen=True, kw_only=True)
class OptimizeSigma:
    """The settings of :func:`optimize_sigma`, to be called with (model, x, sigma, generator).

    Args:
        steps: K, the number of steps; more of them find better scales (the paper certifies with 100 to 900).
        n: Noisy copies per step; 1 in the paper, 8 for models trained with MACER.
        step: The factor of the gradient.
        clamp: Where probabilities are kept inside Φ⁻¹.
        interval: The smallest and largest σ.

    Raises:
        UsageError: If a setting is out of range.

    Example:
        >>> OptimizeSigma(steps=300).config()["steps"]
        300
    """

    steps: int = 100
    n: int = 1
    step: float = 1e-4
    clamp: tuple[float, float] = CLAMP
    interval: tuple[float, float] = INTERVAL

    name: ClassVar[str] = "optimize"

    def __post_init__(self) -> None:
        _check_settings(self.n, self.clamp)
        _check_ascent(self.steps, self.step, self.interval)

    def __call__(self, model: Classifier, x: Tensor, sigma: Tensor, generator: Randomness) -> Tensor:
        return optimize_sigma(model, x, sigma, **asdict(self), generator=generator)

    def config(self) -> dict[str, Any]:
        """The solver as plain values, for run files."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class GridSigma:
    """The settings of :func:`grid_sigma`, to be called with (model, x, sigma, generator); start values do not matter.

    Args:
        grid: The scales to try; when not given those of Eq. 4: n/200, 2n/200, …, 1, which take 200 forward passes.
        n: Noisy copies per scale; of 1, 2, 4 and 10, the last did best in the paper.
        clamp: Where probabilities are kept inside Φ⁻¹.

    Raises:
        UsageError: If a setting is out of range.

    Example:
        >>> GridSigma(n=50).grid
        (0.25, 0.5, 0.75, 1.0)
    """

    grid: tuple[float, ...] = ()
    n: int = 10
    clamp: tuple[float, float] = CLAMP

    name: ClassVar[str] = "grid"

    def __post_init__(self) -> None:
        _check_settings(self.n, self.clamp)
        usual = (min(i * self.n / EVALUATIONS, 1.0) for i in range(1, math.ceil(EVALUATIONS / self.n) + 1))
        object.__setattr__(self, "grid", _checked_grid(self.grid or tuple(usual)))

    def __call__(self, model: Classifier, x: Tensor, sigma: Tensor, generator: Randomness) -> Tensor:
        return grid_sigma(model, x, self.grid, n=self.n, clamp=self.clamp, generator=generator).to(sigma.dtype)

    def config(self) -> dict[str, Any]:
        """The solver as plain values, for run files."""
        return {"name": self.name, **asdict(self)}


SOLVERS: dict[str, type[OptimizeSigma] | type[GridSigma]] = {
    OptimizeSigma.name: OptimizeSigma,
    GridSigma.name: GridSigma,
}
"""Every solver by name."""


def sigma_generator(seed: int, index: int, device: torch.device | str = "cpu") -> Generator:
    """The randomness with which an input's scale is chosen: a function of (seed, index), apart from all its votes.

    Args:
        seed: The seed of the run.
        index: The input's index.
        device: Where the noise is drawn.

    Returns:
        The generator; its seed is that of no block of votes of this input, so the votes do not depend on the choice.
    """
    return Generator(device=device).manual_seed(block_seed(seed, index, MODELLING, 0))


def _radius(
    model: Classifier, x: Tensor, sigma: Tensor, n: int, clamp: tuple[float, float], generator: Randomness
) -> Tensor:
    """The radius each input seems to have, from n fresh copies; differentiable by sigma."""
    column = sigma.to(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
    logits = model((x + column * _standard_normal(x, n, generator)).flatten(0, 1))
    if logits.ndim != 2 or len(logits) != n * len(x) or logits.shape[1] < 2:
        raise UsageError(
            f"the model must give (batch, classes) logits of at least 2 classes, got {tuple(logits.shape)}."
        )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    mean = torch.softmax(logits, dim=1).reshape(n, len(x), -1).mean(0)
    quantiles: Tensor = torch.special.ndtri(mean.topk(2, dim=1).values.clamp(*clamp))
    return sigma / 2 * (quantiles[:, 0] - quantiles[:, 1])


def _standard_normal(x: Tensor, n: int, generator: Randomness) -> Tensor:
    """Noise of shape (n, batch, …)."""
    if isinstance(generator, Generator):
        return torch.randn((n, *x.shape), generator=generator, dtype=x.dtype, device=x.device)
    each = [torch.randn((n, *x.shape[1:]), generator=g, dtype=x.dtype, device=x.device) for g in generator]
    return torch.stack(each, dim=1)


def _check_settings(n: int, clamp: tuple[float, float]) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UsageError(f"n must be a whole number of noisy copies, at least 1, got {n!r}.")
    if len(clamp) != 2 or not 0 < clamp[0] < clamp[1] < 1:
        raise UsageError(f"clamp must be (low, high) with 0 < low < high < 1, got {clamp}.")


def _check_ascent(steps: int, step: float, interval: tuple[float, float]) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise UsageError(f"steps must be a whole number, at least 0, got {steps!r}.")
    if not (math.isfinite(step) and step > 0):
        raise UsageError(f"step must be a positive number, got {step!r}.")
    if len(interval) != 2 or not (0 < interval[0] < interval[1] < math.inf):
        raise UsageError(f"interval must be (low, high) with 0 < low < high, got {interval}.")


def _checked_grid(grid: Sequence[float]) -> tuple[float, ...]:
    if len(grid) == 0 or not all(math.isfinite(scale) and scale > 0 for scale in grid):
        raise UsageError(f"a grid must hold positive scales such as 0.25, 0.5 and 1, got {tuple(grid)}.")
    return tuple(float(scale) for scale in grid)


def _check_batch(x: Tensor, sigma: Tensor, generator: Randomness) -> None:
    if not (x.is_floating_point() and sigma.is_floating_point()) or x.ndim < 2 or sigma.shape != (len(x),):
        raise UsageError(
            "x must be a floating-point batch with one floating-point sigma per input, got x of shape "
            f"{tuple(x.shape)} and sigma of shape {tuple(sigma.shape)}."
        )
    if not isinstance(generator, Generator) and len(generator) != len(x):
        raise UsageError(f"there are {len(generator)} generators for {len(x)} inputs; give one for each, or one.")
