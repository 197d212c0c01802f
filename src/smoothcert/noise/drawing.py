"""Draw noise in whole numbers; the only module of this package that imports PyTorch, so it is imported to draw."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np
import torch
from torch import Generator, Tensor

from smoothcert.noise.thresholds import BITS, Thresholds

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
def step_table(make: Callable[[float, int], Thresholds], width: float, grid: int) -> StepTable:
    """Return the table of a distribution, which is made once."""
    return StepTable(make(width, grid))


def fill_grid(x: Tensor, out: Tensor, generator: Generator | None, table: StepTable, grid: int) -> Tensor:
    """Overwrite ``out`` with copies of ``x`` moved by whole steps of the grid; a copy with an invalid draw is NaN."""
    steps, invalid = table.draw(out.numel(), out.device, generator)
    kind = out.dtype if out.dtype.itemsize >= 4 else torch.float32
    wide = out if out.dtype == kind else torch.empty_like(out, dtype=kind)
    start = x.detach().to(kind).mul(grid).round_()  # exact for inputs that GridNoise.check accepts, despite rounding
    # Here k and z are exact, so that their rounded sum and the copy are functions of the integer k + z alone.
    wide.copy_(steps.view(out.shape)).add_(start).div_(grid)
    if wide is not out:
        out.copy_(wide)
    if invalid is not None:
        out[invalid // out[0].numel()] = torch.nan
    return out


def fill_levels(x: Tensor, out: Tensor, generator: Generator | None, keep: Fraction, levels: int) -> Tensor:
    """Overwrite ``out`` with copies of ``x`` on the grid 0, 1/K, …, 1, whose values stay with probability ``keep``."""
    whole = 2**BITS
    # A power of two divides the range of the generator's words, so these integers are uniform without bias.
    drawn = torch.empty(out.shape, dtype=torch.int64, device=out.device).random_(0, whole, generator=generator)
    moves = drawn.sub_(math.floor(keep * whole)).ge(0).float()
    if levels > 1:  # the frequencies of the remainders by K differ by at most one integer of 2⁶²
        moves.mul_(drawn.remainder_(levels).add_(1))
    # From any value, 1 … K steps around the circle of K + 1 values lead to each of the others once.
    places = moves.add_(x.float().mul(levels).round_())
    places.sub_(places.div(levels + 1).floor_(), alpha=levels + 1)
    return out.copy_(places).div_(levels)
