"""Seeds of noise blocks: randomness as a function of (seed, input, stage, block) and of nothing else."""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache

BLOCK = 20
"""Noisy copies per block. Part of the definition of the noise: another value gives other noise for the same seed."""

SELECTION, ESTIMATION, MODELLING, HOLDOUT, PREDICTION = 0, 1, 29, 30, 31
"""Stages: the votes that guess the class, the first stage of votes that prove it (others may follow up to 28), copies
that an ensemble is modelled or chosen by, and the votes of PREDICT."""

_STAGE_BITS = 5
_BLOCK_BITS = 32 - _STAGE_BITS


def block_seed(seed: int, index: int, stage: int, block: int) -> int:
    """The generator seed of a noise block.

    PyTorch's CPU generator keeps 32 bits of a seed, so hashing everything into it would now and then give one input
    the same block twice and break the independence of its votes. Instead (stage, block) is a 32-bit counter sent
    through a bijection keyed by (seed, index): the blocks of one input are **always** distinct.

    Args:
        seed: The seed of the run, 0 ≤ seed < 2⁶³.
        index: The input's index, 0 ≤ index < 2⁶³.
        stage: The stage, below 32.
        block: The block's number, below 2²⁷.

    Returns:
        A 32-bit seed.
    """
    word = stage << _BLOCK_BITS | block
    for key in _keys(seed, index):
        word ^= key
        for shift, factor in _ROUNDS:
            word = (word ^ word >> shift) * factor & 0xFFFFFFFF
    return word


_ROUNDS = ((16, 0x21F0AAAD), (15, 0x735A2D97), (15, 1))
"""Xor-shifts and odd factors: a bijection of 32-bit words in which every input bit reaches every output bit."""


@lru_cache(maxsize=4096)
def _keys(seed: int, index: int) -> tuple[int, ...]:
    return struct.unpack("<3I", hashlib.blake2b(struct.pack("<QQ", seed, index), digest_size=12).digest())
