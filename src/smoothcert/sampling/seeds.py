"""Seeds of noise blocks: noise depends on (seed, input, stage, block) and nothing else."""

from __future__ import annotations

import hashlib
import secrets
import struct
from functools import lru_cache

BLOCK = 20
"""Noisy copies per block. Part of the definition of the noise: another value gives other noise for the same seed."""

SELECTION, ESTIMATION, RECERTIFICATION, MODELLING, HOLDOUT, PREDICTION = 0, 1, 2, 29, 30, 31
"""Stages: selection samples, the first stage of estimation samples (others may follow up to 28), the samples of a model
that is certified from the votes of another, which those of a fixed number of estimation samples never contain, copies
that choose σ or model an ensemble, copies of held-out inputs, and the samples of PREDICT."""

_BLOCK_BITS = 27  # of 32; the other 5 are for the stage
_ROUNDS = ((16, 0x21F0AAAD), (15, 0x735A2D97), (15, 1))
"""Xor-shifts and odd factors: a bijection of 32-bit words in which every input bit reaches every output bit."""


def block_seed(seed: int, index: int, stage: int, block: int) -> int:
    """Return the generator seed of a noise block, 32 bits.

    PyTorch's CPU generator keeps 32 bits of a seed, so hashing everything into it would now and then give one input
    the same block twice and break the independence of its votes. Instead (stage, block) is a 32-bit counter sent
    through a bijection keyed by (seed, index): the blocks of one input are **always** distinct.

    Args:
        seed: The seed of the run, 0 ≤ seed < 2⁶³.
        index: The input's index, 0 ≤ index < 2⁶³.
        stage: The stage, below 32.
        block: The block's number, below 2²⁷.
    """
    word = stage << _BLOCK_BITS | block
    for key in _keys(seed, index):
        word ^= key
        for shift, factor in _ROUNDS:
            word = (word ^ word >> shift) * factor & 0xFFFFFFFF
    return word


@lru_cache(maxsize=4096)
def _keys(seed: int, index: int) -> tuple[int, ...]:
    return struct.unpack("<3I", hashlib.blake2b(struct.pack("<QQ", seed, index), digest_size=12).digest())


def fresh_seed() -> int:
    """Draw a seed from the operating system, on which no earlier choice can depend."""
    return secrets.randbits(63)
