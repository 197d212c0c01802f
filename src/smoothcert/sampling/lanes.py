"""Where batches are computed: noise drawn, the model run, its logits turned into values to count."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smoothcert.noise import Noise
from smoothcert.sampling.copies import NoisyCopies
from smoothcert.sampling.statistics import Statistic
from smoothcert.sampling.tuning import intra_op_threads
from smoothcert.types import UsageError

Classifier = Callable[[Tensor], Tensor]
"""Anything that maps a batch of inputs to a batch of logits."""

Owner = TypeVar("Owner")


@dataclass(frozen=True)
class Cascade:
    """What follows a classifier that leaves some copies undecided, such as the first members of a ``Consensus``.

    Attributes:
        rest: Maps a batch of undecided copies to what they still lack.
        split: Maps what the classifier gave to logits and a mask of the rows that they do not decide.
        join: Maps what the classifier and the rest gave for the same rows to logits.
    """

    rest: Classifier
    split: Callable[[Tensor], tuple[Tensor, Tensor]]
    join: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Segment(Generic[Owner]):
    """Rows ``low`` … ``high − 1`` of a stretch: copies ``start``, ``start + 1``, … of a stage of an input.

    Attributes:
        owner: Who gets their values.
        x: The input.
        index: The input's index.
        stage: The stage.
        low: The first row.
        high: The end of the rows.
        start: The number of the first copy.
    """

    owner: Owner
    x: Tensor
    index: int
    stage: int
    low: int
    high: int
    start: int


@dataclass
class Stretch(Generic[Owner]):
    """Batches that were run one after the other.

    Attributes:
        segments: Whose copies they held.
        codes: The values of each statistic, by row.
        seconds: The time it took.
        undecided: The rows that a cascade has yet to decide, batch by batch.
        missing: How many of them there are.
        deferred: All rows that went to the cascade, in order.
    """

    segments: Sequence[Segment[Owner]]
    codes: list[NDArray[np.int64]]
    seconds: float
    undecided: list[Piece[Owner]] = field(default_factory=list)
    missing: int = 0
    deferred: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class Piece(Generic[Owner]):
    """Undecided rows of a stretch: their places, the noisy copies, and what the classifier gave for them."""

    stretch: Stretch[Owner]
    rows: NDArray[np.int64]
    x: Tensor
    given: Tensor

    def part(self, low: int, high: int) -> Piece[Owner]:
        return Piece(self.stretch, self.rows[low:high], self.x[low:high], self.given[low:high])


@dataclass(frozen=True)
class Late(Generic[Owner]):
    """Undecided rows, decided."""

    pieces: Sequence[Piece[Owner]]
    codes: list[NDArray[np.int64]]
    seconds: float

    def deliver(self) -> None:
        """Write the values where they belong."""
        first, total = 0, sum(len(piece.rows) for piece in self.pieces)
        for piece in self.pieces:
            end = first + len(piece.rows)
            for kept, codes in zip(piece.stretch.codes, self.codes, strict=True):
                kept[piece.rows] = codes[first:end]
            piece.stretch.seconds += self.seconds * (end - first) / total
            piece.stretch.missing -= end - first
            first = end


class Backlog(Generic[Owner]):
    """Undecided rows, waiting for a full batch of them."""

    def __init__(self) -> None:
        self._pieces: deque[Piece[Owner]] = deque()
        self.rows = 0

    def add(self, pieces: Sequence[Piece[Owner]]) -> None:
        self._pieces.extend(pieces)
        self.rows += sum(len(piece.rows) for piece in pieces)

    def take(self, most: int) -> list[Piece[Owner]]:
        """The oldest rows, at most this many; of one shape."""
        taken: list[Piece[Owner]] = []
        while most and self._pieces and (not taken or self._pieces[0].x.shape[1:] == taken[0].x.shape[1:]):
            piece = self._pieces.popleft()
            if len(piece.rows) > most:
                self._pieces.appendleft(piece.part(most, len(piece.rows)))
                piece = piece.part(0, most)
            taken.append(piece)
            most -= len(piece.rows)
            self.rows -= len(piece.rows)
        return taken


@dataclass
class Lane:
    """One place to compute batches, with memory and a generator of its own.

    Args:
        classifier: Maps a batch to logits of shape (batch, classes), or to what the cascade takes.
        noise: The noise.
        num_classes: The number of classes.
        statistics: What to count.
        seed: The seed of the run.
        batch_size: Noisy copies per forward pass.
        threads: PyTorch's threads within each batch; as they are when not given.
        cascade: What decides the copies that the classifier leaves undecided.
    """

    classifier: Classifier
    noise: Noise
    num_classes: int
    statistics: Sequence[Statistic]
    seed: int
    batch_size: int
    threads: int | None
    cascade: Cascade | None

    def __post_init__(self) -> None:
        self._rows: Tensor | None = None
        self._copies: NoisyCopies | None = None

    def compute(self, segments: Sequence[Segment[Owner]]) -> Stretch[Owner]:
        """Run a stretch of batches."""
        begin = time.perf_counter()
        memory = self._memory(segments[0].x)
        rows = segments[-1].high
        stretch = Stretch(segments, [np.empty(rows, np.int64) for _ in self.statistics], 0.0)
        with torch.inference_mode(), intra_op_threads(self.threads or torch.get_num_threads()):
            for low in range(0, rows, len(memory)):
                batch = memory[: min(len(memory), rows - low)]
                self._fill(batch, segments, low)
                given = self.classifier(batch)
                logits = given if self.cascade is None else self._defer(given, batch, stretch, low)
                self._check(logits, batch)
                for statistic, values in zip(self.statistics, stretch.codes, strict=True):
                    values[low : low + len(batch)] = statistic.codes(logits).cpu().numpy()
        if stretch.undecided:
            stretch.deferred = np.concatenate([piece.rows for piece in stretch.undecided])
            stretch.missing = len(stretch.deferred)
        stretch.seconds = time.perf_counter() - begin
        return stretch

    def decide(self, pieces: Sequence[Piece[Owner]]) -> Late[Owner]:
        """Run the cascade's rest on undecided rows, at most a batch of them."""
        assert self.cascade is not None
        begin = time.perf_counter()
        with torch.inference_mode(), intra_op_threads(self.threads or torch.get_num_threads()):
            batch = torch.cat([piece.x for piece in pieces])
            given = torch.cat([piece.given for piece in pieces])
            logits = self.cascade.join(given, self.cascade.rest(batch))
            self._check(logits, batch)
            codes = [statistic.codes(logits).cpu().numpy() for statistic in self.statistics]
        return Late(pieces, codes, time.perf_counter() - begin)

    def _fill(self, batch: Tensor, segments: Sequence[Segment[Owner]], first: int) -> None:
        """Draw the batch that begins at row ``first`` of a stretch."""
        assert self._copies is not None
        for segment in segments:
            low, high = max(segment.low, first), min(segment.high, first + len(batch))
            if low < high:
                self._copies.fill(
                    batch[low - first : high - first],
                    segment.x,
                    seed=self.seed,
                    index=segment.index,
                    stage=segment.stage,
                    start=segment.start + low - segment.low,
                )

    def _defer(self, given: Tensor, batch: Tensor, stretch: Stretch[Owner], first: int) -> Tensor:
        """Set the undecided rows of a batch aside; the logits of all rows, to be replaced for those."""
        assert self.cascade is not None
        logits, undecided = self.cascade.split(given)
        rows = undecided.nonzero()[:, 0]
        if len(rows):
            places = rows.cpu().numpy() + first
            stretch.undecided.append(Piece(stretch, places, batch[rows], given[rows]))
        return logits

    def _check(self, logits: Tensor, batch: Tensor) -> None:
        if logits.shape != (len(batch), self.num_classes):
            raise UsageError(
                f"the model gave an output of shape {tuple(logits.shape)} for a batch of {len(batch)}; "
                f"it must be ({len(batch)}, {self.num_classes})."
            )

    def _memory(self, x: Tensor) -> Tensor:
        if self._rows is None or self._rows.shape[1:] != x.shape:
            self._rows = x.new_empty((self.batch_size, *x.shape))
            self._copies = NoisyCopies(self.noise, x)
        return self._rows
