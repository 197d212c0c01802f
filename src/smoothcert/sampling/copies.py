"""Noisy copies of an input, the same whatever the batches they are drawn in."""

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
    """Noisy copies of an input, told by what they follow from: ``n`` of them, numbered from ``start`` on."""

    x: Tensor
    noise: Noise
    seed: int
    index: int
    stage: int
    start: int
    n: int


class NoisyCopies:
    """Fills rows of a batch with chosen noisy copies of an input.

    Noise is drawn a block at a time from a generator seeded for that block, straight into the batch where the block
    fits and through one spare block where a batch boundary cuts it.

    Args:
        like: A tensor with the shape, dtype and device of an input.
    """

    def __init__(self, like: Tensor) -> None:
        self._generator = torch.Generator(device=like.device)
        self._spare = torch.empty((BLOCK, *like.shape), dtype=like.dtype, device=like.device)
        self._spare_key: tuple[Noise, tuple[int, int, int, int]] | None = None
        self._spare_x: Tensor | None = None

    def fill(self, rows: Tensor, x: Tensor, noise: Noise, *, seed: int, index: int, stage: int, start: int) -> None:
        """Overwrite ``rows`` with the copies numbered ``start``, ``start + 1``, … of ``x``.

        Args:
            rows: A contiguous batch.
            x: The input.
            noise: The noise.
            seed: The seed of the run.
            index: The input's index.
            stage: The stage of the procedure.
            start: The number of the first copy.
        """
        stop = start + len(rows)
        first = start // BLOCK
        for block in range(first, -(-stop // BLOCK)):
            low, high = max(start, block * BLOCK), min(stop, (block + 1) * BLOCK)
            key = (seed, index, stage, block)
            target = rows[low - start : high - start]
            if high - low == BLOCK:
                self._draw(target, x, noise, key)
            else:
                if (noise, key) != self._spare_key or x is not self._spare_x:  # two inputs may have one index
                    self._draw(self._spare, x, noise, key)
                    self._spare_key, self._spare_x = (noise, key), x
                target.copy_(self._spare[low - block * BLOCK : high - block * BLOCK])

    def draw(self, rows: Tensor, parts: Sequence[Copies]) -> None:
        """Overwrite ``rows`` with copies of one input after the other."""
        low = 0
        for part in parts:
            place = {"seed": part.seed, "index": part.index, "stage": part.stage, "start": part.start}
            self.fill(rows[low : low + part.n], part.x, part.noise, **place)
            low += part.n

    def _draw(self, out: Tensor, x: Tensor, noise: Noise, key: tuple[int, int, int, int]) -> None:
        self._generator.manual_seed(block_seed(*key))
        noise.sample(x, out, self._generator)


def input_digest(x: Tensor) -> str:
    """A hash of an input's values, shape and type, in hexadecimal."""
    values = x.detach().cpu().contiguous()
    digest = hashlib.blake2b(f"{values.dtype} {tuple(values.shape)}".encode(), digest_size=16)
    digest.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
