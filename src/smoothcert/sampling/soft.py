"""The soft smoothed classifier: the mean softmax over noisy copies, which has a gradient (Salman et al., 2019)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from smoothcert.noise import Noise
from smoothcert.sampling.seeds import PREDICTION, block_seed
from smoothcert.types import UsageError


def run(model: Callable[[Tensor], Tensor], copies: Tensor) -> Tensor:
    """Return logits of shape (copies, batch, classes) of inputs of shape (copies, batch, …), in one forward pass."""
    return model(copies.flatten(0, 1)).reshape(*copies.shape[:2], -1)


def mean_log_softmax(logits: Tensor) -> Tensor:
    """Return the logarithm of the mean softmax over the first dimension."""
    return torch.logsumexp(F.log_softmax(logits, dim=-1), dim=0) - math.log(len(logits))


def mean_softmax(model: Callable[[Tensor], Tensor], x: Tensor, noise: Noise, n: int, seed: int) -> Tensor:
    """Return the mean softmax over n noisy copies of each input, of shape (batch, classes), with a gradient by ``x``.

    Raises:
        UsageError: If n is less than 1, or the noise is not additive.
    """
    if not noise.additive:
        raise UsageError(f"{noise.name} noise replaces values, so there is no gradient; use another noise.")
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise UsageError(f"n must be a whole number of at least 1, got {n!r}.")
    with torch.no_grad():
        zero, copies = torch.zeros_like(x[0]), x.new_empty((n, *x.shape[1:]))
        drawn = [noise.sample(zero, copies.clone(), attack_generator(seed, place, x.device)) for place in range(len(x))]
    return mean_log_softmax(run(model, x + torch.stack(drawn, dim=1))).exp()


def attack_generator(seed: int, index: int, device: torch.device, use: bytes = b"") -> Generator:
    """Return noise for one use by an attack: a block of PREDICT's stage beyond those that PREDICT can reach.

    An attack chooses inputs by its noise, so no certificate or prediction may use the same noise.
    """
    digest = hashlib.blake2b(use, digest_size=8).digest()
    block = 2**26 + int.from_bytes(digest, "little") % 2**26
    return Generator(device).manual_seed(block_seed(seed, index, PREDICTION, block))
