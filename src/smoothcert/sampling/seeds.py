"""Seeds of noise blocks: randomness as a function of (seed, input, stage, block) and of nothing else."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

BLOCK = 20
"""Noisy copies per block. Part of the definition of the noise: another value gives other noise for the same seed."""

SELECTION, ESTIMATION, PREDICTION = 0, 1, 31
"""Stages: the votes that guess the class, the first stage of votes that prove it, and the votes of PREDICT."""

_STAGE_BITS = 5
_BLOCK_BITS = 32 - _STAGE_BITS


def block_seeds(seed: int, index: int, stage: int, blocks: Iterable[int]) -> NDArray[np.uint32]:
    """The generator seed of each noise block.

    PyTorch's CPU generator keeps 32 bits of a seed, so hashing everything into it would now and then give one input
    the same block twice and break the independence of its votes. Instead (stage, block) is a 32-bit counter sent
    through a bijection keyed by (seed, index): the blocks of one input are **always** distinct.

    Args:
        seed: The seed of the run, 0 ≤ seed < 2⁶³.
        index: The input's index, 0 ≤ index < 2⁶³.
        stage: The stage, below 32.
        blocks: Block numbers, below 2²⁷.

    Returns:
        One 32-bit seed per block.
    """
    counter: NDArray[np.uint32] = np.fromiter(blocks, dtype=np.uint32) | np.uint32(stage << _BLOCK_BITS)
    keys = np.frombuffer(hashlib.blake2b(struct.pack("<QQ", seed, index), digest_size=12).digest(), dtype="<u4")
    for key in keys:
        counter = _scramble(counter ^ np.uint32(key))
    return counter


def _scramble(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """A bijection of 32-bit words in which every input bit reaches every output bit (xor-shifts and odd factors)."""
    for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97), (15, 1)):
        x = np.multiply(x ^ (x >> shift), np.uint32(factor), dtype=np.uint32)
    return x
