"""Compute batches: draw noise, run the classifier, and turn its logits into the values that are counted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smoothcert.classifiers.copying import Forward
from smoothcert.classifiers.modes import intra_op_threads
from smoothcert.noise import Noise, invalid_rows
from smoothcert.sampling.audit import Audit
from smoothcert.sampling.copies import Copies, NoisyCopies
from smoothcert.sampling.seeds import BLOCK
from smoothcert.sampling.statistics import Statistic
from smoothcert.types import UsageError


@dataclass(frozen=True)
class Cascade:
    """What follows a classifier that leaves some copies undecided, such as the first members of a ``Consensus``.

    Attributes:
        rest: Computes the missing output for undecided copies.
        split: Maps the output of the classifier to logits and a mask of the rows that they do not decide.
        join: Maps the outputs of the classifier and the rest for the same rows to logits.
    """

    rest: Forward
    split: Callable[[Tensor], tuple[Tensor, Tensor]]
    join: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Source:
    """A source of votes: a classifier under noise.

    Attributes:
        classifier: Maps a batch to logits of shape (batch, classes), or to the input of the cascade.
        noise: The noise of jobs that have none.
        batch_size: Noisy copies per forward pass, at most.
        least: Noisy copies per forward pass below which a smaller batch saves no time.
        cascade: Decides the copies that the classifier leaves undecided.
        elsewhere: Draws and classifies copies in other processes, instead of the classifier.
        audit: Spot checks of the logits.
    """

    classifier: Forward
    noise: Noise
    num_classes: int
    statistics: Sequence[Statistic]
    batch_size: int
    cascade: Cascade | None = None
    elsewhere: Callable[[Sequence[Copies]], Tensor] | None = None
    audit: Audit | None = None
    least: int = BLOCK

    def check(self, logits: Tensor, rows: int) -> None:
        if logits.shape != (rows, self.num_classes):
            raise UsageError(
                f"the model returned an output of shape {tuple(logits.shape)} for a batch of {rows}; it must be "
                f"({rows}, {self.num_classes})."
            )


Kind = tuple[Source, torch.Size]
"""Copies can share a batch if they have the same source and shape."""


@dataclass(frozen=True)
class Segment:
    """The rows of a chunk, from ``low`` on, that hold the copies of one owner."""

    owner: Any
    low: int
    copies: Copies


@dataclass(eq=False)
class Chunk:
    """Batches of one source that one thread computes one after the other.

    Attributes:
        capacity: How many rows all batches can hold.
        rows: How many they hold.
        codes: The values of each statistic by row.
        began: When its computation began.
        seconds: The time spent on them.
        deferred: Rows that the classifier left undecided, in order.
        undecided: The same rows by batch, until the backlog takes them.
        missing: How many of them are still undecided.
    """

    source: Source
    capacity: int
    segments: list[Segment] = field(default_factory=list)
    rows: int = 0
    codes: list[NDArray[np.int64]] = field(default_factory=list)
    began: float = 0.0
    seconds: float = 0.0
    deferred: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    undecided: list[Undecided] = field(default_factory=list)
    missing: int = 0

    @property
    def room(self) -> int:
        return self.capacity - self.rows

    def add(self, owner: Any, copies: Copies) -> None:
        self.segments.append(Segment(owner, self.rows, copies))
        self.rows += copies.n

    def parts(self, first: int, end: int) -> list[Copies]:
        """Return the copies in rows ``first`` … ``end − 1``."""
        parts = []
        for segment in self.segments:
            low, high = max(first - segment.low, 0), min(end - segment.low, segment.copies.n)
            if low < high:
                parts.append(segment.copies.part(low, high))
        return parts


@dataclass(frozen=True)
class Undecided:
    """Undecided rows of a chunk: their numbers, the noisy copies, and the output of the classifier."""

    chunk: Chunk
    rows: NDArray[np.int64]
    x: Tensor
    output: Tensor

    def part(self, low: int, high: int | None) -> Undecided:
        return Undecided(self.chunk, self.rows[low:high], self.x[low:high], self.output[low:high])


@dataclass(frozen=True)
class Decided:
    """Undecided rows and their values."""

    pieces: Sequence[Undecided]
    codes: list[NDArray[np.int64]]
    seconds: float

    def deliver(self) -> None:
        """Write the values to the chunks."""
        low, total = 0, sum(len(piece.rows) for piece in self.pieces)
        for piece in self.pieces:
            count = len(piece.rows)
            for kept, codes in zip(piece.chunk.codes, self.codes, strict=True):
                kept[piece.rows] = codes[low : low + count]
            piece.chunk.seconds += self.seconds * count / total
            piece.chunk.missing -= count
            low += count


class Backlog:
    """Undecided rows that wait until they fill a batch."""

    def __init__(self) -> None:
        self._pieces: dict[Kind, deque[Undecided]] = {}
        self.rows = 0

    def add(self, chunk: Chunk) -> None:
        """Take the undecided rows of a chunk."""
        for piece in chunk.undecided:
            self._pieces.setdefault((chunk.source, piece.x.shape[1:]), deque()).append(piece)
            self.rows += len(piece.rows)
        chunk.undecided = []

    @property
    def full(self) -> bool:
        return any(map(self._fills, self._pieces))

    def take(self) -> list[Undecided]:
        """Remove and return the oldest rows of one kind, at most a batch; of a kind that fills one if there is one."""
        kind = max(self._pieces, key=self._fills)
        waiting, room = self._pieces[kind], kind[0].batch_size
        taken: list[Undecided] = []
        while room and waiting:
            piece = waiting.popleft()
            if len(piece.rows) > room:
                waiting.appendleft(piece.part(room, None))
                piece = piece.part(0, room)
            taken.append(piece)
            room -= len(piece.rows)
            self.rows -= len(piece.rows)
        if not waiting:
            del self._pieces[kind]
        return taken

    def _fills(self, kind: Kind) -> bool:
        return sum(len(piece.rows) for piece in self._pieces[kind]) >= kind[0].batch_size


class Runner:
    """Computes batches in one thread at a time, with its own memory and generator."""

    def __init__(self) -> None:
        self._memories: WeakKeyDictionary[Source, tuple[Tensor, NoisyCopies]] = WeakKeyDictionary()

    def compute(self, chunk: Chunk, threads: int | None) -> Chunk:
        """Draw and classify the copies of a chunk, with PyTorch's current number of threads by default."""
        chunk.began = time.perf_counter()
        source = chunk.source
        memory, copies = self._memory(source, chunk.segments[0].copies.x)
        chunk.codes = [np.full(chunk.rows, -1, np.int64) for _ in source.statistics]
        with torch.inference_mode(), intra_op_threads(threads or torch.get_num_threads()):
            for low in range(0, chunk.rows, len(memory)):
                batch = memory[: chunk.rows - low]
                parts = chunk.parts(low, low + len(batch))
                invalid = None
                if source.elsewhere is not None:
                    logits = source.elsewhere(parts)
                else:
                    copies.draw(batch, parts)
                    invalid = invalid_rows(batch)  # before a model overwrites them
                    whole = len(batch) == len(memory)  # else a model could read the memory behind its rows
                    logits = _classify(chunk, batch if whole else batch.clone(), parts, low, invalid)
                source.check(logits, len(batch))
                for statistic, values in zip(source.statistics, chunk.codes, strict=True):
                    codes = statistic.codes(logits)
                    if invalid is not None:  # a copy from an invalid draw is in no bin, whatever the model returns
                        codes = torch.where(invalid, -1, codes)
                    values[low : low + len(batch)] = codes.cpu().numpy()
        if chunk.undecided:
            chunk.deferred = np.concatenate([piece.rows for piece in chunk.undecided])
            chunk.missing = len(chunk.deferred)
        chunk.seconds = time.perf_counter() - chunk.began
        return chunk

    def decide(self, pieces: Sequence[Undecided], threads: int | None) -> Decided:
        """Run the rest of a cascade on undecided rows, at most a batch of them."""
        begin = time.perf_counter()
        source = pieces[0].chunk.source
        assert source.cascade is not None
        with torch.inference_mode(), intra_op_threads(threads or torch.get_num_threads()):
            batch = torch.cat([piece.x for piece in pieces])
            output = torch.cat([piece.output for piece in pieces])
            logits = source.cascade.join(output, source.cascade.rest(batch))
            source.check(logits, len(batch))
            codes = [statistic.codes(logits).cpu().numpy() for statistic in source.statistics]
        return Decided(pieces, codes, time.perf_counter() - begin)

    def _memory(self, source: Source, x: Tensor) -> tuple[Tensor, NoisyCopies]:
        if source not in self._memories or self._memories[source][0].shape[1:] != x.shape:
            self._memories[source] = x.new_empty((source.batch_size, *x.shape)), NoisyCopies(x)
        return self._memories[source]


def _classify(chunk: Chunk, batch: Tensor, parts: Sequence[Copies], first: int, invalid: Tensor) -> Tensor:
    """Return the logits of a batch, and add valid rows that the classifier leaves undecided to the chunk.

    A classifier may overwrite its batch, so rows that are needed later are copied before.
    """
    source = chunk.source
    audited = [] if source.audit is None else source.audit.rows(parts)
    kept = batch[audited]
    decided: Tensor | slice = slice(None)
    if source.cascade is None:
        logits = source.classifier(batch)
    else:
        output = source.classifier(batch.clone())
        logits, undecided = source.cascade.split(output)
        decided = ~undecided[audited]
        rows = (undecided & ~invalid).nonzero()[:, 0]
        if len(rows):
            chunk.undecided.append(Undecided(chunk, rows.cpu().numpy() + first, batch[rows], output[rows]))
    if audited and source.audit is not None:
        source.audit.check(kept[decided], logits[audited][decided])
    return logits
