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

from smoothcert.noise import Noise, invalid_rows
from smoothcert.sampling.audit import Audit
from smoothcert.sampling.copies import Copies, NoisyCopies
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
class Source:
    """A classifier under noise, as far as votes of it are concerned.

    Attributes:
        classifier: Maps a batch to logits of shape (batch, classes), or to what the cascade takes.
        noise: The noise, where a job has none of its own.
        num_classes: The number of classes.
        statistics: What to count.
        batch_size: Noisy copies per forward pass.
        cascade: What decides the copies that the classifier leaves undecided.
        elsewhere: Maps what is in a batch to its logits, where copies are drawn and classified in other processes.
        audit: Spot checks of the logits.
    """

    classifier: Classifier
    noise: Noise
    num_classes: int
    statistics: Sequence[Statistic]
    batch_size: int
    cascade: Cascade | None = None
    elsewhere: Callable[[Sequence[Copies]], Tensor] | None = None
    audit: Audit | None = None


@dataclass(frozen=True)
class Segment(Generic[Owner]):
    """Rows ``low`` … ``high − 1`` of a stretch: copies ``start``, ``start + 1``, … of a stage of an input.

    Attributes:
        owner: Who gets their values.
        source: Which classifier they go to; the same in a whole stretch.
        noise: The noise.
        x: The input.
        index: The input's index.
        stage: The stage.
        low: The first row.
        high: The end of the rows.
        start: The number of the first copy.
    """

    owner: Owner
    source: int
    noise: Noise
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

    @property
    def kind(self) -> tuple[int, torch.Size]:
        """What pieces must share to be decided in one batch: the classifier and the shape."""
        return self.stretch.segments[0].source, self.x.shape[1:]

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
    """Undecided rows, waiting for a full batch of them.

    Args:
        sources: The classifiers, whose batches are to be filled.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._pieces: dict[tuple[int, torch.Size], deque[Piece[Owner]]] = {}
        self.rows = 0

    def add(self, pieces: Sequence[Piece[Owner]]) -> None:
        for piece in pieces:
            self._pieces.setdefault(piece.kind, deque()).append(piece)
            self.rows += len(piece.rows)

    @property
    def full(self) -> bool:
        """Whether there is a full batch."""
        return any(self._fills(kind) for kind in self._pieces)

    def take(self) -> list[Piece[Owner]]:
        """The oldest rows of one classifier and shape, at most a batch; of those that fill one if any do."""
        kind = max(self._pieces, key=self._fills)
        waiting, most = self._pieces[kind], self._sources[kind[0]].batch_size
        taken: list[Piece[Owner]] = []
        while most and waiting:
            piece = waiting.popleft()
            if len(piece.rows) > most:
                waiting.appendleft(piece.part(most, len(piece.rows)))
                piece = piece.part(0, most)
            taken.append(piece)
            most -= len(piece.rows)
            self.rows -= len(piece.rows)
        if not waiting:
            del self._pieces[kind]
        return taken

    def _fills(self, kind: tuple[int, torch.Size]) -> bool:
        return sum(len(piece.rows) for piece in self._pieces[kind]) >= self._sources[kind[0]].batch_size


@dataclass
class Lane:
    """One place to compute batches, with memory and a generator of its own.

    Args:
        sources: The classifiers.
        seed: The seed of the run.
        threads: PyTorch's threads within each batch; as they are when not given.
    """

    sources: Sequence[Source]
    seed: int
    threads: int | None

    def __post_init__(self) -> None:
        self._memories: dict[int, tuple[Tensor, NoisyCopies]] = {}

    def compute(self, segments: Sequence[Segment[Owner]]) -> Stretch[Owner]:
        """Run a stretch of batches."""
        begin = time.perf_counter()
        number = segments[0].source
        source, (memory, copies) = self.sources[number], self._memory(number, segments[0].x)
        rows = segments[-1].high
        stretch = Stretch(segments, [np.empty(rows, np.int64) for _ in source.statistics], 0.0)
        with torch.inference_mode(), intra_op_threads(self.threads or torch.get_num_threads()):
            for low in range(0, rows, len(memory)):
                batch = memory[: min(len(memory), rows - low)]
                parts = self._parts(segments, low, len(batch))
                invalid = None
                if source.elsewhere is not None:
                    logits = source.elsewhere(parts)
                else:
                    copies.draw(batch, parts)
                    invalid = invalid_rows(batch)  # before a model changes them
                    whole = len(batch) == len(memory)  # else a model could see what lies behind its rows
                    logits = _classify(source, batch if whole else batch.clone(), parts, stretch, low, invalid)
                _check(logits, len(batch), source)
                for statistic, values in zip(source.statistics, stretch.codes, strict=True):
                    values[low : low + len(batch)] = _codes(statistic, logits, invalid)
        if stretch.undecided:
            stretch.deferred = np.concatenate([piece.rows for piece in stretch.undecided])
            stretch.missing = len(stretch.deferred)
        stretch.seconds = time.perf_counter() - begin
        return stretch

    def decide(self, pieces: Sequence[Piece[Owner]]) -> Late[Owner]:
        """Run the cascade's rest on undecided rows, at most a batch of them."""
        source = self.sources[pieces[0].kind[0]]
        assert source.cascade is not None
        begin = time.perf_counter()
        with torch.inference_mode(), intra_op_threads(self.threads or torch.get_num_threads()):
            batch = torch.cat([piece.x for piece in pieces])
            given = torch.cat([piece.given for piece in pieces])
            logits = source.cascade.join(given, source.cascade.rest(batch))
            _check(logits, len(batch), source)
            codes = [statistic.codes(logits).cpu().numpy() for statistic in source.statistics]
        return Late(pieces, codes, time.perf_counter() - begin)

    def _parts(self, segments: Sequence[Segment[Owner]], first: int, count: int) -> list[Copies]:
        """What is in the batch of ``count`` rows that begins at row ``first`` of a stretch."""
        parts = []
        for segment in segments:
            low, high = max(segment.low, first), min(segment.high, first + count)
            if low < high:
                start = segment.start + low - segment.low
                place = (self.seed, segment.index, segment.stage, start, high - low)
                parts.append(Copies(segment.x, segment.noise, *place))
        return parts

    def _memory(self, number: int, x: Tensor) -> tuple[Tensor, NoisyCopies]:
        """Where batches for a classifier are laid, and what lays them."""
        if number not in self._memories or self._memories[number][0].shape[1:] != x.shape:
            self._memories[number] = x.new_empty((self.sources[number].batch_size, *x.shape)), NoisyCopies(x)
        return self._memories[number]


def _classify(
    source: Source, batch: Tensor, parts: Sequence[Copies], stretch: Stretch[Owner], first: int, invalid: Tensor
) -> Tensor:
    """The logits of a batch; valid rows that the classifier leaves undecided are set aside, to get others later.

    A classifier may overwrite its batch, so what is needed afterwards is copied before.
    """
    some = [] if source.audit is None else source.audit.rows(parts)
    kept = batch[some]
    undecided = None
    if source.cascade is None:
        logits = source.classifier(batch)
    else:
        given = source.classifier(batch.clone())
        logits, undecided = source.cascade.split(given)
        rows = (undecided & ~invalid).nonzero()[:, 0]
        if len(rows):
            places = rows.cpu().numpy() + first
            stretch.undecided.append(Piece(stretch, places, batch[rows], given[rows]))
    if some and source.audit is not None:
        decided = slice(None) if undecided is None else ~undecided[some]
        source.audit.check(kept[decided], logits[some][decided])
    return logits


def _codes(statistic: Statistic, logits: Tensor, invalid: Tensor | None) -> NDArray[np.int64]:
    """The value of each row; −1 for copies from an invalid draw, whatever a model makes of them."""
    codes = statistic.codes(logits)
    if invalid is not None:
        codes = torch.where(invalid, -1, codes)
    return codes.cpu().numpy()


def _check(logits: Tensor, rows: int, source: Source) -> None:
    if logits.shape != (rows, source.num_classes):
        raise UsageError(
            f"the model gave an output of shape {tuple(logits.shape)} for a batch of {rows}; it must be "
            f"({rows}, {source.num_classes})."
        )
