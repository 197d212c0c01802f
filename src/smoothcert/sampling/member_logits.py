"""The logits of several classifiers on one input and on the same noisy copies of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smoothcert.classifiers.copying import Forward
from smoothcert.classifiers.sealed import Sealed
from smoothcert.noise import Noise
from smoothcert.sampling.copies import NoisyCopies
from smoothcert.sampling.runtimes import check_copies
from smoothcert.sampling.seeds import MODELLING
from smoothcert.types import UsageError


@dataclass(frozen=True, eq=False)
class MemberLogits:
    """Logits of one input in double precision, for the variance model (``stats.estimate_variance``).

    Attributes:
        clean: Logits of the input itself, (members, classes).
        noisy: Logits of its noisy copies, (members, copies, classes); the same copies for all members.
    """

    clean: NDArray[np.float64]
    noisy: NDArray[np.float64]


def member_logits(
    members: Sequence[Forward],
    x: Tensor,
    noise: Noise,
    *,
    n: int = 1_000,
    seed: int = 0,
    index: int = 0,
    start: int = 0,
    stage: int = MODELLING,
    batch_size: int | None = None,
) -> MemberLogits:
    """Compute the logits of all members on one input and on n noisy copies of it.

    The copies depend only on (seed, index, number), not on the members, their order or the batch size.

    Args:
        members: Classifiers from a batch to logits, on one device; each is sealed first.
        x: One input, without a batch dimension.
        index: The input's number in its dataset; inputs with other numbers get other noise.
        start: The number of the first copy; ``start=n`` draws fresh copies after the first n.
        stage: The stage of the noise; no certificate uses the default one.
        batch_size: Copies per forward pass; by default 100 on a CPU, which fits its caches, and 500 elsewhere.

    Raises:
        UsageError: If there are no members, their numbers of classes differ, an argument is out of range, or the noise
            is not defined around the input.

    Example:
        >>> from smoothcert import Gaussian
        >>> members = [torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)]
        >>> member_logits(members, torch.rand(4), Gaussian(0.25), n=100).noisy.shape
        (2, 100, 3)
    """
    if not members:
        raise UsageError("there are no members; give at least one classifier.")
    sealed = [member if isinstance(member, Sealed) else Sealed(member) for member in members]
    device = max((member.device for member in sealed), key=lambda device: device.type != "cpu")
    if batch_size is None:
        batch_size = 100 if device.type == "cpu" else 500
    if n < 1 or batch_size < 1 or start < 0:
        raise UsageError(f"n and batch_size must be at least 1 and start at least 0, got {n}, {batch_size}, {start}.")
    if not (isinstance(x, Tensor) and x.is_floating_point()):
        raise UsageError("the input must be one floating-point tensor without a batch dimension.")
    noise.check(x)
    x = x.to(device)
    for member in sealed:
        if member.known(x) is None:
            member.verify(check_copies(x, noise))
    copies, rows = NoisyCopies(x), x.new_empty((min(n, batch_size), *x.shape))
    parts: list[NDArray[np.float64]] = []
    with torch.inference_mode():
        clean = _all_logits(sealed, x[None])[:, 0]
        for low in range(0, n, batch_size):
            batch = rows[: n - low]
            copies.fill(batch, x, noise, seed=seed, index=index, stage=stage, start=start + low)
            parts.append(_all_logits(sealed, batch))
    return MemberLogits(clean, np.concatenate(parts, axis=1))


def _all_logits(members: Sequence[Sealed], batch: Tensor) -> NDArray[np.float64]:
    logits = [member(batch) for member in members]
    shapes = {tuple(rows.shape) for rows in logits}
    if len(shapes) > 1:
        raise UsageError(f"every member must return (batch, classes) logits of the same classes, got {sorted(shapes)}.")
    return torch.stack(logits).double().cpu().numpy()
