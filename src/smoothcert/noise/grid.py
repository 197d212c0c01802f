"""Noise in whole steps of a grid: the computed noisy copies are exactly those that the theorem is about."""

from __future__ import annotations

import math
import threading
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from smoothcert.noise.base import Noise, is_whole, off_grid
from smoothcert.noise.thresholds import BITS, Thresholds
from smoothcert.stats.binomial import FloatArray
from smoothcert.types import Norm, UsageError

FINEST = 65_535
"""The largest number of grid steps per unit."""

LARGEST_SCALE = 1 << 17
"""The largest noise scale in steps; the tables of larger ones take long to compute."""

_FARTHEST = 1 << 20
"""The largest number of steps from 0 to an input: up to there, neighbours are well separated in single precision."""

_CELL_BITS = 16
_REST_BITS = BITS - _CELL_BITS


class StepTable:
    """Draws whole numbers of steps by comparing 62-bit random words with thresholds.

    A word u stands for the real numbers from u to u + 1 in units of 2⁻⁶². Where a threshold may lie among these, or
    where u is beyond the last threshold, the draw is invalid; anywhere else it equals the draw that a real number
    uniform on [0, 1) would give. The first 16 bits decide about 99 % of the draws; only the others get the remaining 46
    bits and a search among the thresholds.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        kind = np.int16 if thresholds.reach < 1 << 15 else np.int32
        self.none = int(np.iinfo(kind).min)
        # Lower and upper bounds alternate: a word is inside a pair where the number of bounds below it is odd.
        bounds = np.stack([thresholds.lower, thresholds.upper], axis=1).reshape(-1)
        values = np.full(len(bounds) + 1, self.none, kind)
        values[2:-1:2] = np.arange(-thresholds.reach, thresholds.reach + 1)
        cells = np.arange(1 << _CELL_BITS, dtype=np.int64) << _REST_BITS
        first, last = (np.searchsorted(bounds, cells + more, side="right") for more in (0, (1 << _REST_BITS) - 1))
        self.arrays = (np.where(first == last, values[first], kind(self.none)), bounds, values)
        self._tensors: dict[torch.device, list[Tensor]] = {}

    def draw(self, count: int, device: torch.device, generator: Generator | None) -> tuple[Tensor, Tensor | None]:
        """Draw ``count`` steps on a device.

        Returns:
            The steps, ``none`` where the draw is invalid, in memory that the thread's next draw overwrites; and the
            positions of the invalid ones, None if there are none.
        """
        if device not in self._tensors:
            with torch.inference_mode(False):
                self._tensors[device] = [torch.from_numpy(array).to(device) for array in self.arrays]
        settled, bounds, values = self._tensors[device]
        words, cells, steps = _scratch(count, device, settled.dtype)
        words.random_(-(2**63), None, generator=generator)  # four times 16 bits
        cells.copy_(words.view(torch.uint16)[:count])
        torch.index_select(settled, 0, cells, out=steps)
        unsettled = _places(steps, self.none)
        full = torch.empty_like(unsettled).random_(0, 1 << _REST_BITS, generator=generator)
        full.add_(cells.index_select(0, unsettled), alpha=1 << _REST_BITS)
        found = values.index_select(0, torch.searchsorted(bounds, full, right=True))
        steps.index_copy_(0, unsettled, found)
        failed = len(found) > 0 and int(found.min()) == self.none
        return steps, unsettled[_places(found, self.none)] if failed else None


class _Scratch(threading.local):
    """Reusable memory for the draws of a thread: to allocate it for each draw takes longer than the draw."""

    def __init__(self) -> None:
        self._kept: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor, Tensor]] = {}

    def __call__(self, count: int, device: torch.device, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        kept = self._kept.get((device, kind))
        if kept is None or len(kept[1]) != count:
            with torch.inference_mode(False):  # usable inside and outside of inference mode
                words = torch.empty(-(-count // 4), dtype=torch.int64, device=device)
                cells, steps = (torch.empty(count, dtype=dtype, device=device) for dtype in (torch.int32, kind))
            kept = self._kept[device, kind] = words, cells, steps
        return kept


_scratch = _Scratch()


def _places(values: Tensor, value: int) -> Tensor:
    if values.device.type == "cpu":  # where NumPy is several times as fast
        return torch.from_numpy(np.flatnonzero(values.numpy() == value))
    return (values == value).nonzero()[:, 0]


@lru_cache(maxsize=32)
def _table(make: Callable[[float, int], Thresholds], width: float, grid: int) -> StepTable:
    return StepTable(make(width, grid))


class GridNoise(Noise):
    """An additive noise that can be drawn in whole steps of a grid.

    With a ``grid`` G, a copy of an input x = k/G is (k + z)/G, where z = round(G·ε) for the continuous noise ε and
    round(y) = ⌊y + ½⌋ for every real y. Since round(k + y) = k + round(y) for whole k, the copy is round(G(x + ε))/G: a
    classifier f on the copy equals f̃: y ↦ f(round(Gy)/G) on x + ε. The theorem of the continuous noise holds for f̃, a
    function on all of ℝᵈ, exactly and at every real input (Voráček and Hein, ICLR 2023). The rounding of ties does not
    matter, because ε hits a tie with probability 0.

    z comes from a :class:`StepTable`, k + z is exact, and one division turns k + z into the copy. An invalid draw, of
    probability about 2⁻⁵⁰ for a coordinate, makes its whole copy NaN; such a copy counts as a sample and votes for no
    class. Copies are not clamped.

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
        assert self.grid is not None
        return _table(self._thresholds, self._width, self.grid)

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
        steps, invalid = self._steps.draw(out.numel(), out.device, generator)
        kind = out.dtype if out.dtype.itemsize >= 4 else torch.float32
        wide = out if out.dtype == kind else torch.empty_like(out, dtype=kind)
        start = x.detach().to(kind).mul(self.grid).round_()  # exact up to _FARTHEST, despite rounding
        # Here k and z are exact, so that their rounded sum and the copy are functions of the integer k + z alone.
        wide.copy_(steps.view(out.shape)).add_(start).div_(self.grid)
        if wide is not out:
            out.copy_(wide)
        if invalid is not None:
            out[invalid // out[0].numel()] = torch.nan
        return out

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
            raise off_grid(x, torch.from_numpy(off), needed, advice)

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


def invalid_rows(batch: Tensor) -> Tensor:
    """Return which rows of a batch of noisy copies come from an invalid draw, and so may not vote for any class.

    Inputs are finite, so only such a copy contains NaN; all its values are NaN, so its first value is enough.

    Example:
        >>> invalid_rows(torch.tensor([[0.5, 1.0], [torch.nan, torch.nan]])).tolist()
        [False, True]
    """
    return batch.reshape(len(batch), -1)[:, 0].isnan()
