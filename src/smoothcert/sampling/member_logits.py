"""The logits of several classifiers on one input and on the same noisy copies of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smoothcert.classifiers.copying import takes
from smoothcert.classifiers.sealed import Sealed
from smoothcert.noise import Noise
from smoothcert.sampling.copies import NoisyCopies
from smoothcert.sampling.lanes import Classifier
from smoothcert.sampling.runtimes import check_copies
from smoothcert.sampling.seeds import MODELLING
from smoothcert.types import UsageError


@dataclass(frozen=True, eq=False)
class MemberLogits:
    """Logits of one input, as the variance model takes them (``stats.estimate_variance``).

    Attributes:
        clean: Logits of the input itself, (members, classes).
        noisy: Logits of its noisy copies, (members, copies, classes); all members saw the same copies.
    """

    clean: NDArray[np.float64]
    noisy: NDArray[np.float64]


def member_logits(
    members: Sequence[Classifier],
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
    """Draw the logits of all members on one input and on n noisy copies of it.

    The copies depend on (seed, index, number) only, not on the members, their order or the batch size.

    Args:
        members: Classifiers from a batch to logits, on one device; each is sealed first.
        x: One input, without a batch dimension.
        noise: The noise.
        n: The number of noisy copies.
        seed: The seed of the noise.
        index: The input's number in its dataset; inputs with other numbers get other noise.
        start: The number of the first copy; ``start=n`` gives fresh copies after the first n.
        stage: The stage of the noise; the default one is drawn from by no certificate.
        batch_size: Copies per forward pass; by default 100 on a CPU, for the sake of its caches, and 500 elsewhere.

    Returns:
        The logits in double precision; n · members · classes numbers of 8 bytes.

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
    device = next((takes(member)[0] for member in members if isinstance(member, torch.nn.Module)), torch.device("cpu"))
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
            batch = rows[: min(batch_size, n - low)]
            copies.fill(batch, x, noise, seed=seed, index=index, stage=stage, start=start + low)
            parts.append(_all_logits(sealed, batch))
    return MemberLogits(clean, np.concatenate(parts, axis=1))


def _all_logits(members: Sequence[Classifier], batch: Tensor) -> NDArray[np.float64]:
    logits = [member(batch) for member in members]
    shapes = {tuple(rows.shape) for rows in logits}
    if len(shapes) > 1 or logits[0].ndim != 2 or len(logits[0]) != len(batch):
        raise UsageError(f"every member must give (batch, classes) logits of the same classes, got {sorted(shapes)}.")
    return torch.stack(logits).double().cpu().numpy()
