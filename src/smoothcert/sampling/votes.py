"""The one sampling loop: count statistics of a classifier's logits over noisy copies of an input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smoothcert.noise import Noise
from smoothcert.sampling.copies import NoisyCopies
from smoothcert.sampling.seeds import BLOCK
from smoothcert.sampling.statistics import Statistic
from smoothcert.types import UsageError, Votes

Classifier = Callable[[Tensor], Tensor]
"""Anything that maps a batch of inputs to a batch of logits."""


@dataclass(frozen=True)
class Draw:
    """A request for votes: copies ``start`` … ``start + n − 1`` of a stage."""

    stage: int
    n: int
    start: int = 0


def default_batch_size(like: Tensor) -> int:
    """A batch that fits CPU caches, or keeps a GPU busy: a multiple of the noise block."""
    budget = 2**18 if like.device.type == "cpu" else 2**23
    copies = min(max(budget // max(like.numel(), 1), BLOCK), 4000)
    return copies // BLOCK * BLOCK


class Sampler:
    """Draws noisy copies of one input and tallies statistics of the classifier's logits.

    Args:
        classifier: Maps a batch to logits of shape (batch, classes); already in evaluation mode.
        noise: The noise.
        x: The input, on the device and in the dtype to compute with.
        num_classes: The number of classes.
        statistics: What to tally.
        seed: The seed of the run.
        index: The input's index, which enters the noise seed.
        batch_size: Copies per forward pass; has no influence on the noise.
    """

    def __init__(
        self,
        classifier: Classifier,
        noise: Noise,
        x: Tensor,
        *,
        num_classes: int,
        statistics: Sequence[Statistic],
        seed: int,
        index: int,
        batch_size: int | None = None,
    ) -> None:
        self._classifier = classifier
        self._x = x
        self._num_classes = num_classes
        self._statistics = tuple(statistics)
        self._seed = seed
        self._index = index
        self._batch_size = batch_size or default_batch_size(x)
        self._copies = NoisyCopies(noise, x)
        self._batch = torch.empty((0, *x.shape), dtype=x.dtype, device=x.device)

    @torch.inference_mode()
    def draw(self, request: Draw) -> tuple[Votes, ...]:
        """Count the requested copies.

        Args:
            request: Which copies.

        Returns:
            The votes of each statistic, in order.
        """
        tallies = [_Tally(s.bins(self._num_classes), self._x.device) for s in self._statistics]
        if len(self._batch) < min(self._batch_size, request.n):
            self._batch = self._x.new_empty((min(self._batch_size, request.n), *self._x.shape))
        for done in range(0, request.n, self._batch_size):
            rows = self._batch[: min(self._batch_size, request.n - done)]
            self._copies.fill(
                rows, self._x, seed=self._seed, index=self._index, stage=request.stage, start=request.start + done
            )
            logits = self._classifier(rows)
            if logits.shape != (len(rows), self._num_classes):
                raise UsageError(
                    f"the model gave an output of shape {tuple(logits.shape)} for a batch of {len(rows)}; "
                    f"it must be ({len(rows)}, {self._num_classes})."
                )
            for statistic, tally in zip(self._statistics, tallies, strict=True):
                tally.add(statistic.codes(logits))
        return tuple(tally.votes() for tally in tallies)


class _Tally:
    """A histogram that remembers itself at every power of ten."""

    def __init__(self, bins: int, device: torch.device) -> None:
        self._bins = bins
        self._counts = torch.zeros(bins + 1, dtype=torch.int64, device=device)  # bin 0: invalid
        self._n = 0
        self._next = 10
        self._checkpoints: dict[int, Tensor] = {}

    def add(self, codes: Tensor) -> None:
        while self._n + len(codes) > self._next:
            here = self._next - self._n
            self._count(codes[:here])
            self._checkpoints[self._next] = self._counts.clone()
            self._next *= 10
            codes = codes[here:]
        self._count(codes)

    def _count(self, codes: Tensor) -> None:
        self._counts += torch.bincount(codes + 1, minlength=self._bins + 1)
        self._n += len(codes)

    def votes(self) -> Votes:
        checkpoints = {n: tuple(counts[1:].tolist()) for n, counts in self._checkpoints.items()}
        return Votes(n=self._n, counts=tuple(self._counts[1:].tolist()), checkpoints=checkpoints)
