"""Noisy copies of inputs, which do not depend on the batches they are drawn in."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smoothcert.noise import Noise
from smoothcert.sampling.seeds import BLOCK, block_seed


@dataclass(frozen=True)
class Copies:
    """A description of noisy copies ``start`` … ``start + n − 1`` of a stage of an input, which determines them."""

    x: Tensor
    noise: Noise
    seed: int
    index: int
    stage: int
    start: int
    n: int

    def part(self, low: int, high: int) -> Copies:
        """Return the copies from position ``low`` up to, but not including, ``high``."""
        return Copies(self.x, self.noise, self.seed, self.index, self.stage, self.start + low, high - low)


class NoisyCopies:
    """Draws noisy copies of inputs into the rows of a batch.

    Noise is drawn a block at a time from a generator seeded for that block: directly into the batch where the block
    fits, and through one spare block where a batch boundary cuts it.

    Args:
        like: A tensor with the shape, dtype and device of an input.
    """

    def __init__(self, like: Tensor) -> None:
        self._generator = torch.Generator(device=like.device)
        self._spare = torch.empty((BLOCK, *like.shape), dtype=like.dtype, device=like.device)
        self._spare_key: tuple[Noise, tuple[int, int, int, int]] | None = None
        self._spare_x: Tensor | None = None

    def fill(self, rows: Tensor, x: Tensor, noise: Noise, *, seed: int, index: int, stage: int, start: int) -> None:
        """Overwrite a contiguous batch with the copies ``start``, ``start + 1``, … of a stage of an input."""
        stop = start + len(rows)
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            low, high = max(start, block * BLOCK), min(stop, (block + 1) * BLOCK)
            key = (seed, index, stage, block)
            target = rows[low - start : high - start]
            if high - low == BLOCK:
                self._draw(target, x, noise, key)
            else:
                if (noise, key) != self._spare_key or x is not self._spare_x:  # two inputs may have the same index
                    self._draw(self._spare, x, noise, key)
                    self._spare_key, self._spare_x = (noise, key), x
                target.copy_(self._spare[low - block * BLOCK : high - block * BLOCK])

    def draw(self, rows: Tensor, parts: Sequence[Copies]) -> None:
        """Overwrite a contiguous batch with copies of several inputs, one after the other."""
        low = 0
        for part in parts:
            place = {"seed": part.seed, "index": part.index, "stage": part.stage, "start": part.start}
            self.fill(rows[low : low + part.n], part.x, part.noise, **place)
            low += part.n

    def _draw(self, out: Tensor, x: Tensor, noise: Noise, key: tuple[int, int, int, int]) -> None:
        self._generator.manual_seed(block_seed(*key))
        noise.sample(x, out, self._generator)


def input_digest(x: Tensor) -> str:
    """Hash the values, shape and type of an input."""
    values = x.detach().cpu().contiguous()
    digest = hashlib.blake2b(f"{values.dtype} {tuple(values.shape)}".encode(), digest_size=16)
    digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
