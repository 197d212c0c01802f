"""Choose σ for each input: the one at which the radius estimated from a few noisy copies is largest.

This choice claims nothing: any σ gives a valid certificate of the classifier smoothed with that σ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Generator, Tensor

from smoothcert.classifiers.copying import Forward
from smoothcert.classifiers.modes import evaluating
from smoothcert.sampling.seeds import MODELLING, block_seed
from smoothcert.types import UsageError

CLAMP = (0.02, 0.98)
"""Default bounds of probabilities inside Φ⁻¹, as in the paper's program; beyond them the radius has no slope."""

INTERVAL = (0.01, 10.0)
"""Default bounds of σ."""

Randomness = Generator | Sequence[Generator]
"""One generator for a batch, or one per input, so that the noise of an input does not depend on the others."""


class SigmaSolver(Protocol):
    """Finds the σ of each input of a batch."""

    def __call__(self, model: Forward, x: Tensor, sigma: Tensor, generator: Randomness) -> Tensor:
        """Return σ of each input, (batch,), from the inputs (batch, …) and start values (batch,)."""
        ...

    def config(self) -> dict[str, Any]:
        """Return the solver as plain values for run files."""
        ...


@dataclass(frozen=True)
class OptimizeSigma:
    """Gradient ascent on the estimated radius σ/2 (Φ⁻¹(p_A) − Φ⁻¹(p_B)) of each input.

    OptimizeSigma of Alfarra, Bibi, Torr and Ghanem (2022), Algorithm 1 and Eq. 3: p is the mean softmax over copies
    x + σε with fresh ε ~ N(0, I) in every step, p_A and p_B are its two largest entries, and the derivative by σ goes
    through the copies. The model runs in evaluation mode; its weights and their gradients do not change. An input whose
    derivative is not finite keeps its σ.

    Args:
        steps: K, the number of steps; the paper certifies with 100 to 900. 0 returns the start values.
        n: Noisy copies of each input per step; 1 in the paper, 8 for models trained with MACER.
        step: α of the paper, the factor of the gradient.
        clamp: The bounds of probabilities inside Φ⁻¹.
        interval: The smallest and largest σ.

    Raises:
        UsageError: If a setting is out of range; when called, if a start value is, or the shapes do not fit.

    Example:
        >>> x, start = torch.rand(2, 4), torch.tensor([0.25, 0.5])
        >>> OptimizeSigma(steps=10)(torch.nn.Linear(4, 3), x, start, torch.Generator()).shape
        torch.Size([2])
    """

    steps: int = 100
    _: KW_ONLY
    n: int = 1
    step: float = 1e-4
    clamp: tuple[float, float] = CLAMP
    interval: tuple[float, float] = INTERVAL

    name: ClassVar[str] = "optimize"

    def __post_init__(self) -> None:
        _check_settings(self.n, self.clamp)
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 0:
            raise UsageError(f"steps must be a whole number, at least 0, got {self.steps!r}.")
        if not (math.isfinite(self.step) and self.step > 0):
            raise UsageError(f"step must be a positive number, got {self.step!r}.")
        if len(self.interval) != 2 or not 0 < self.interval[0] < self.interval[1] < math.inf:
            raise UsageError(f"interval must be (low, high) with 0 < low < high, got {self.interval}.")

    def __call__(self, model: Forward, x: Tensor, sigma: Tensor, generator: Randomness) -> Tensor:
        """Return σ of each input in the precision of ``sigma``."""
        _check_batch(x, sigma, generator)
        low, high = self.interval
        at = sigma.detach().to(x.device)
        if not bool(((at >= low * (1 - 1e-6)) & (at <= high * (1 + 1e-6))).all()):
            raise UsageError(f"the start values of sigma must lie between {low:g} and {high:g}; give another interval.")
        with torch.inference_mode(False), torch.enable_grad(), evaluating(model):
            x = x.detach().clone()  # a tensor of inference mode has no derivatives
            at = at.clone().clamp(low, high)
            for _ in range(self.steps):
                at = at.requires_grad_(True)
                (slope,) = torch.autograd.grad(_radius(model, x, at, self.n, self.clamp, generator).sum(), at)
                moved = (at.detach() + self.step * slope).clamp(low, high)
                at = torch.where(torch.isfinite(slope), moved, at.detach())
        return at.detach()

    def config(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True)
class GridSigma:
    """The σ of a grid with the largest estimated radius, the smallest of equally good ones; start values are not used.

    The baseline of Alfarra et al. (2022), App. B, Eq. 4: the objective of :class:`OptimizeSigma`, estimated once at
    every σ of the grid.

    Args:
        grid: The σ to try; by default those of Eq. 4: n/200, 2n/200, …, 1, which take 200 forward passes.
        n: Noisy copies of each input per σ; of 1, 2, 4 and 10, the last was best in the paper.
        clamp: The bounds of probabilities inside Φ⁻¹.

    Raises:
        UsageError: If a setting is out of range; when called, if the shapes do not fit.

    Example:
        >>> GridSigma(n=50).grid
        (0.25, 0.5, 0.75, 1.0)
    """

    grid: tuple[float, ...] = ()
    _: KW_ONLY
    n: int = 10
    clamp: tuple[float, float] = CLAMP

    name: ClassVar[str] = "grid"

    def __post_init__(self) -> None:
        _check_settings(self.n, self.clamp)
        grid = self.grid or [min(i * self.n / 200, 1.0) for i in range(1, math.ceil(200 / self.n) + 1)]
        if not all(math.isfinite(sigma) and sigma > 0 for sigma in grid):
            raise UsageError(f"a grid must hold positive scales such as 0.25, 0.5 and 1, got {self.grid}.")
        object.__setattr__(self, "grid", tuple(map(float, grid)))

    def __call__(self, model: Forward, x: Tensor, sigma: Tensor, generator: Randomness) -> Tensor:
        """Return σ of each input in the precision of ``sigma``."""
        _check_batch(x, sigma, generator)
        best = torch.full((len(x),), min(self.grid), dtype=torch.float64, device=x.device)
        most = torch.full_like(best, -math.inf)
        with torch.inference_mode(), evaluating(model):
            for each in sorted(self.grid):
                radius = _radius(model, x, torch.full_like(best, each), self.n, self.clamp, generator)
                better = radius > most  # never for NaN
                best, most = torch.where(better, each, best), torch.where(better, radius, most)
        return best.clone().to(sigma.dtype)

    def config(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


def sigma_generator(seed: int, index: int, device: torch.device | str = "cpu") -> Generator:
    """Return the generator with which the σ of an input is chosen.

    Its seed follows from the seed of the run and the index of the input. No block of votes of this input has the same
    seed, so the votes do not depend on the choice.
    """
    return Generator(device=device).manual_seed(block_seed(seed, index, MODELLING, 0))


def _radius(
    model: Forward, x: Tensor, sigma: Tensor, n: int, clamp: tuple[float, float], generator: Randomness
) -> Tensor:
    """Estimate the radius of each input from n fresh copies; differentiable by sigma."""
    column = sigma.to(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
    logits = model((x + column * _standard_normal(x, n, generator)).flatten(0, 1))
    if logits.ndim != 2 or len(logits) != n * len(x) or logits.shape[1] < 2:
        raise UsageError(
            f"the model must return (batch, classes) logits of at least 2 classes, got {tuple(logits.shape)}."
        )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    mean = torch.softmax(logits, dim=1).reshape(n, len(x), -1).mean(0)
    quantiles: Tensor = torch.special.ndtri(mean.topk(2, dim=1).values.clamp(*clamp))
    return sigma / 2 * (quantiles[:, 0] - quantiles[:, 1])


def _standard_normal(x: Tensor, n: int, generator: Randomness) -> Tensor:
    """Draw noise of shape (n, batch, …)."""
    if isinstance(generator, Generator):
        return torch.randn((n, *x.shape), generator=generator, dtype=x.dtype, device=x.device)
    each = [torch.randn((n, *x.shape[1:]), generator=g, dtype=x.dtype, device=x.device) for g in generator]
    return torch.stack(each, dim=1)


def _check_settings(n: int, clamp: tuple[float, float]) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UsageError(f"n must be a whole number of noisy copies, at least 1, got {n!r}.")
    if len(clamp) != 2 or not 0 < clamp[0] < clamp[1] < 1:
        raise UsageError(f"clamp must be (low, high) with 0 < low < high < 1, got {clamp}.")


def _check_batch(x: Tensor, sigma: Tensor, generator: Randomness) -> None:
    if not (x.is_floating_point() and sigma.is_floating_point()) or x.ndim < 2 or sigma.shape != (len(x),):
        raise UsageError(
            "x must be a floating-point batch with one floating-point sigma per input, got x of shape "
            f"{tuple(x.shape)} and sigma of shape {tuple(sigma.shape)}."
        )
    if not isinstance(generator, Generator) and len(generator) != len(x):
        raise UsageError(f"there are {len(generator)} generators for {len(x)} inputs; give one for each, or one.")
