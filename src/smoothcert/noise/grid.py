"""Noise in whole steps of a grid: the computed noisy copies are exactly those that the theorem is about."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smoothcert.noise.base import Noise, is_whole, off_grid
from smoothcert.noise.thresholds import Thresholds
from smoothcert.stats.binomial import FloatArray
from smoothcert.types import Norm, UsageError

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from smoothcert.noise.drawing import StepTable

FINEST = 65_535
"""The largest number of grid steps per unit."""

LARGEST_SCALE = 1 << 17
"""The largest noise scale in steps; the tables of larger ones take long to compute."""

_FARTHEST = 1 << 20
"""The largest number of steps from 0 to an input: up to there, neighbours are well separated in single precision."""


class GridNoise(Noise):
    """An additive noise that can be drawn in whole steps of a grid.

    With a ``grid`` G, a copy of an input x = k/G is (k + z)/G, where z = round(G·ε) for the continuous noise ε and
    round(y) = ⌊y + ½⌋ for every real y. Since round(k + y) = k + round(y) for whole k, the copy is round(G(x + ε))/G: a
    classifier f on the copy equals f̃: y ↦ f(round(Gy)/G) on x + ε. The theorem of the continuous noise holds for f̃, a
    function on all of ℝᵈ, exactly and at every real input (Voráček and Hein, ICLR 2023). The rounding of ties does not
    matter, because ε hits a tie with probability 0.

    z comes from a :class:`~smoothcert.noise.drawing.StepTable`, k + z is exact, and one division turns k + z into the
    copy. An invalid draw, of probability about 2⁻⁵⁰ for a coordinate, makes its whole copy NaN; such a copy counts as a
    sample and votes for no class. Copies are not clamped.

    An input within two units in the last place (of single precision, at 1/G or above) of k/G is replaced by k/G, and
    its distance from there, :meth:`offset`, must be subtracted from the radius. Any other input is refused.

    Subclasses implement ``_sample`` and ``_thresholds``; their fields are the width of the noise and ``grid``.
    """

    grid: int | None

    @staticmethod
    @abstractmethod
    def _thresholds(width: float, grid: int, /) -> Thresholds:
        """Return the distribution of the noise in steps of the grid."""

    @abstractmethod
    def _sample(self, x: Tensor, out: Tensor, generator: Generator | None) -> Tensor:
        """Implement :meth:`sample` without a grid."""

    def __post_init__(self) -> None:
        name, width = fields(self)[0].name, self._width
        if not (isinstance(width, (int, float)) and math.isfinite(width) and width > 0):
            raise UsageError(f"{name} must be a positive number, got {width!r}.")
        object.__setattr__(self, name, float(width))
        if self.grid is None:
            return
        if not (is_whole(self.grid) and 1 <= self.grid <= FINEST):
            raise UsageError(
                f"grid must be a whole number of steps from 1 to {FINEST} (255 for 8-bit images), or None for noise in "
                f"floating point, got {self.grid!r}."
            )
        if width * self.grid > LARGEST_SCALE:
            raise UsageError(
                f"noise of {width:g} with a grid of {self.grid} spans {width * self.grid:.3g} steps, more than the "
                f"{LARGEST_SCALE} that can be drawn exactly; choose a coarser grid, or noise in floating point "
                "(grid=None; on the command line --float)."
            )

    @property
    def _width(self) -> float:
        return getattr(self, fields(self)[0].name)  # type: ignore[no-any-return]

    @cached_property
    def _steps(self) -> StepTable:  # kept with the noise: a pool of inputs may use more noises than the cache holds
        from smoothcert.noise.drawing import step_table

        assert self.grid is not None
        return step_table(self._thresholds, self._width, self.grid)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}  # without the table

    def __repr__(self) -> str:
        settings = (f"{key}={value!r}" for key, value in self.config().items() if key != "name")
        return f"{type(self).__name__}({', '.join(settings)})"

    @property
    def exact(self) -> bool:
        return self.grid is not None

    def sample(self, x: Tensor, out: Tensor, generator: Generator | None = None) -> Tensor:
        if self.grid is None:
            return self._sample(x, out, generator)
        from smoothcert.noise.drawing import fill_grid

        return fill_grid(x, out, generator, self._steps, self.grid)

    def check(self, x: Tensor) -> None:
        if self.grid is None:
            return
        places, distances = self._nearest(x)
        values = np.maximum(np.abs(places), 1) / self.grid
        with np.errstate(over="ignore"):
            limits = 2 * np.spacing(values.astype(np.float32)).astype(np.float64)
        off = ~((distances <= limits) & (np.abs(places) <= _FARTHEST))
        if off.any():
            advice = (
                f"round the input with (x * {self.grid}).round() / {self.grid}, choose another grid, or use noise in "
                "floating point (grid=None; on the command line --float)."
            )
            needed = f"multiples of 1/{self.grid} up to {_FARTHEST // self.grid}, which {self!r} needs"
            raise off_grid(x, off, needed, advice)

    def offset(self, x: Tensor, norm: Norm | str | None = None) -> float:
        norm = self.resolve_norm(norm)
        if self.grid is None:
            return 0.0
        distances = self._nearest(x)[1].flatten()
        largest = float(distances.max(initial=0.0))
        if largest == 0:
            return 0.0
        if norm is Norm.LINF:
            length = largest
        elif norm is Norm.L1:
            length = float(distances.sum())
        else:
            length = largest * float(np.sqrt(np.square(distances / largest).sum()))
        # Every operation is off by one part in 2⁵³ at most, and a sum has as many as it has terms.
        return 2.0 ** math.frexp(length * (1 + (len(distances) + 16) * 2.0**-52) + len(distances) * 5e-324)[1]

    def nearest(self, x: Tensor) -> Tensor:
        return x if self.grid is None else x.double().mul(self.grid).round_().div_(self.grid).to(x.dtype)

    def _nearest(self, x: Tensor) -> tuple[FloatArray, FloatArray]:
        """Return the whole numbers k nearest to grid·x, and |x − k/grid| with relative errors below 2⁻⁵⁰."""
        assert self.grid is not None
        values: NDArray[np.float64] = x.detach().cpu().double().numpy()
        places = np.rint(values * self.grid)
        # The grid has 16 bits, each part of a value at most 29: their products are exact, and so is a difference
        # with k, as both are near each other.
        with np.errstate(over="ignore", invalid="ignore"):
            high = values.astype(np.float32).astype(np.float64)
            return places, np.abs((high * self.grid - places) + (values - high) * self.grid) / self.grid
