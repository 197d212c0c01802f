"""The one sampling loop: batches filled with noisy copies of whatever inputs want votes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smoothcert.noise import Noise
from smoothcert.sampling.lanes import Backlog, Lane, Late, Segment, Source, Stretch
from smoothcert.sampling.seeds import BLOCK
from smoothcert.sampling.tally import Tally
from smoothcert.types import Votes

_STRETCH = 4  # batches that a worker runs in a row where that many are asked for, as changing threads takes time
_PATIENCE = 16  # stretches that may wait until enough undecided copies have come together for a full batch


@dataclass(frozen=True)
class Draw:
    """A request for votes: copies ``start`` … ``start + n − 1`` of a stage.

    Attributes:
        stage: The stage.
        n: The number of copies.
        start: The number of the first one.
        most: How many copies of the stage may be asked for in all, where the next request goes on from this one; idle
            places in a batch are then used to draw ahead.
        source: Which of the pool's classifiers is asked.
    """

    stage: int
    n: int
    start: int = 0
    most: int = 0
    source: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.n


Answer = TypeVar("Answer")
Steps = Generator[Draw, tuple[Votes, ...], Answer]
"""A procedure at work on one input: yields draws, is sent their votes, returns its answer."""


@dataclass(eq=False)
class Job(Generic[Answer]):
    """An input and what is to be done with it.

    Attributes:
        index: The input's index, which enters the noise seed.
        x: The input, on the device and in the dtype to compute with.
        steps: The procedure at work.
        noise: The noise, where it is not that of the classifier asked.
        seconds: The time spent on it so far, its share of every batch it was in.
        drawn: Its noisy copies so far, those drawn ahead included.
        deferred: Those that the first members of a consensus left undecided; None without a consensus.
    """

    index: int
    x: Tensor
    steps: Steps[Answer]
    noise: Noise | None = None
    seconds: float = 0.0
    drawn: int = 0
    deferred: int | None = None
    _first: Draw | None = None

    @property
    def consensus(self) -> float | None:
        """KCR: the share of its copies that the first members of a consensus decided (Horváth et al., 2022, §7)."""
        return None if self.deferred is None or not self.drawn else 1 - self.deferred / self.drawn

    def begin(self) -> Draw:
        """The first request; a procedure checks its settings before it makes one."""
        if self._first is None:
            self._first = next(self.steps)
        return self._first


@dataclass
class PoolUse:
    """How full the batches were.

    Attributes:
        batches: Batches run.
        rows: Noisy copies in them.
        asked: Those a procedure waited for; the others were drawn ahead.
        capacity: Noisy copies they could have held.
    """

    batches: int = 0
    rows: int = 0
    asked: int = 0
    capacity: int = 0

    @property
    def occupancy(self) -> float:
        return self.rows / self.capacity if self.capacity else 1.0


@dataclass(eq=False)
class _Stream(Generic[Answer]):
    """The copies of one stage of a job, in order: asked for, given to batches, and come back.

    Attributes:
        job: The job.
        request: What its procedure waits for.
        issued: The number of the next copy to give to a batch.
        received: The number of the next copy to come back.
        codes: Values that came back and were not asked for yet, per statistic.
        ended: Whether the job wants no more copies of this stage.
        kind: What copies must share to be in one batch: the classifier and the shape.
    """

    job: Job[Answer]
    request: Draw
    issued: int
    received: int
    codes: list[list[NDArray[np.int64]]]
    ended: bool = False

    def __post_init__(self) -> None:
        self.kind = (self.request.source, self.job.x.shape)

    @property
    def open(self) -> int:
        """How many copies are asked for and not in a batch yet."""
        return max(self.request.stop - self.issued, 0)


_Task = Callable[[Lane], "Stretch[_Stream[Answer]] | Late[_Stream[Answer]]"]


@dataclass
class Pool:
    """Runs many jobs at once so that every batch is full: a decided input leaves and the next one enters.

    The noise of a copy depends on (seed, input, stage, number) only, so a job's votes do not depend on its company.

    Args:
        sources: The classifiers that procedures may ask, already in evaluation mode.
        seed: The seed of the run.
        workers: Batches computed at the same time, each in a thread of its own.
        threads: PyTorch's threads within each batch; as they are when not given.

    Attributes:
        use: How full the batches were, so far.
    """

    sources: Sequence[Source]
    seed: int
    workers: int = 1
    threads: int | None = None
    use: PoolUse = field(default_factory=PoolUse)

    def run(self, jobs: Iterable[Job[Answer]]) -> Iterator[tuple[Job[Answer], Answer]]:
        """Answer all jobs.

        Args:
            jobs: The inputs; taken from the iterable one by one, as there is room.

        Yields:
            Each job with its answer, as it is decided.

        Raises:
            Exception: What the iterable raised, once the jobs taken before are answered.
        """
        queue = _Jobs(iter(jobs))
        streams: dict[_Stream[Answer], None] = {}  # in order of admission
        flying: deque[Future[Stretch[_Stream[Answer]] | Late[_Stream[Answer]]]] = deque()
        waiting: deque[Stretch[_Stream[Answer]]] = deque()  # run, and not handed out yet
        backlog: Backlog[_Stream[Answer]] = Backlog(self.sources)
        most = self.workers + 1 if self.workers > 1 else 1  # one waits, so that no worker does
        lanes = deque(Lane(self.sources, self.seed, self.threads) for _ in range(most))
        answered: list[tuple[Job[Answer], Answer]] = []
        with ThreadPoolExecutor(self.workers) as threads:
            while True:
                while len(flying) < most and (
                    task := self._next_task(queue, streams, answered, backlog, len(waiting) >= _PATIENCE)
                ):
                    flying.append(_submit(threads, self.workers, lanes[0], task))
                    lanes.rotate(-1)
                yield from answered
                answered.clear()
                if not flying:
                    break
                done = flying.popleft().result()
                if isinstance(done, Late):
                    done.deliver()
                else:
                    waiting.append(done)
                    backlog.add(done.undecided)
                    done.undecided = []
                while waiting and not waiting[0].missing:
                    self._receive(waiting.popleft(), streams, answered)
        if queue.error is not None:
            raise queue.error

    def _next_task(
        self,
        jobs: _Jobs[Answer],
        streams: dict[_Stream[Answer], None],
        answered: list[tuple[Job[Answer], Answer]],
        backlog: Backlog[_Stream[Answer]],
        impatient: bool,
    ) -> _Task[Answer] | None:
        """What to run next: undecided copies once they fill a batch or nothing else is asked for, else a stretch."""
        if not backlog.full and not (impatient and backlog.rows):
            segments = self._next_stretch(jobs, streams, answered, ahead=not backlog.rows)
            if segments:
                return partial(Lane.compute, segments=segments)
        if backlog.rows:
            return partial(Lane.decide, pieces=backlog.take())
        return None

    def _next_stretch(
        self,
        jobs: _Jobs[Answer],
        streams: dict[_Stream[Answer], None],
        answered: list[tuple[Job[Answer], Answer]],
        ahead: bool,
    ) -> list[Segment[_Stream[Answer]]]:
        """Fill batches from open requests, oldest first, then the last one from new jobs, then with copies ahead.

        A stretch of nothing but copies ahead is made only if ``ahead``.
        """
        kind = self._next_kind(streams, more=not jobs.ended)
        while kind is None and (job := jobs.take()) is not None:
            for stream in self._advance(job, None, answered):
                streams[stream] = None
                kind = stream.kind
        if kind is None:
            kind = next((stream.kind for stream in streams if stream.open or stream.issued < stream.request.most), None)
        if kind is None:
            return []
        size = self.sources[kind[0]].batch_size
        alike = [stream for stream in streams if stream.kind == kind]
        open_rows = sum(stream.open for stream in alike)
        share = open_rows // (self.workers * size) if self.workers > 1 else 1  # none waits for a long one
        stretch = _Filling[Answer](size * min(max(share, 1), _STRETCH), self.sources[kind[0]].noise)
        for stream in alike:
            stretch.take(stream, stream.request.stop)
        stretch.size = -(-max(stretch.rows, 1) // size) * size
        fits = kind[0] == 0  # a new job begins with the first classifier
        while stretch.room and fits and (job := jobs.take()) is not None:
            for stream in self._advance(job, None, answered):
                streams[stream] = None
                if fits := stream.kind == kind:
                    stretch.take(stream, stream.request.stop)
                    alike.append(stream)
        asked = stretch.rows
        if not asked and not ahead:
            return []
        hungry = [stream for stream in alike if stream.issued < stream.request.most]
        while stretch.room and hungry and jobs.ended:
            each = max(stretch.room // len(hungry) // BLOCK, 1) * BLOCK
            for stream in hungry:
                stretch.take(stream, min(stream.issued + each, stream.request.most))
            hungry = [stream for stream in hungry if stream.issued < stream.request.most]
        if stretch.segments:
            self.use.batches += stretch.size // size
            self.use.rows += stretch.rows
            self.use.asked += asked
            self.use.capacity += stretch.size
        return stretch.segments

    def _next_kind(self, streams: Iterable[_Stream[Answer]], more: bool) -> tuple[int, torch.Size] | None:
        """Which copies to run next: the oldest of those that fill a batch; else, with more jobs to come, those that
        jobs begin with, or None where nobody asks for any; else the oldest."""
        rows: dict[tuple[int, torch.Size], int] = {}  # in order of age
        for stream in streams:
            if stream.open:
                rows[stream.kind] = rows.get(stream.kind, 0) + stream.open
        full = (kind for kind, count in rows.items() if count >= self.sources[kind[0]].batch_size)
        return next(full, None) or next((kind for kind in rows if kind[0] == 0 or not more), None)

    def _receive(
        self,
        result: Stretch[_Stream[Answer]],
        streams: dict[_Stream[Answer], None],
        answered: list[tuple[Job[Answer], Answer]],
    ) -> None:
        """Hand the values of a finished stretch to their streams, and go on with every request that is complete."""
        rows = result.segments[-1].high
        for segment in result.segments:
            stream = segment.owner
            low, high = np.searchsorted(result.deferred, [segment.low, segment.high])
            stream.job.seconds += result.seconds * (segment.high - segment.low) / rows
            stream.job.drawn += segment.high - segment.low
            if self.sources[segment.source].cascade is not None:
                stream.job.deferred = (stream.job.deferred or 0) + int(high - low)
            if stream not in streams:
                continue  # drawn ahead for an input that was decided meanwhile
            for kept, codes in zip(stream.codes, result.codes, strict=True):
                kept.append(codes[segment.low : segment.high])
            stream.received += segment.high - segment.low
            while stream in streams and stream.received >= stream.request.stop:
                for following in self._advance(stream.job, self._votes(stream), answered, stream):
                    streams[following] = None
                if stream.ended:
                    del streams[stream]

    def _votes(self, stream: _Stream[Answer]) -> tuple[Votes, ...]:
        """The votes of a complete request; what came back beyond it stays."""
        votes = []
        source = self.sources[stream.request.source]
        for number, statistic in enumerate(source.statistics):
            codes = np.concatenate(stream.codes[number])
            tally = Tally(statistic.bins(source.num_classes))
            tally.add(codes[: stream.request.n])
            stream.codes[number] = [codes[stream.request.n :]]
            votes.append(tally.votes())
        return tuple(votes)

    def _advance(
        self,
        job: Job[Answer],
        votes: tuple[Votes, ...] | None,
        answered: list[tuple[Job[Answer], Answer]],
        stream: _Stream[Answer] | None = None,
    ) -> list[_Stream[Answer]]:
        """Take a job's procedure one step further: on along its stream, to a new one, or to its answer."""
        try:
            request = job.begin() if votes is None else job.steps.send(votes)
        except StopIteration as end:
            answered.append((job, end.value))
            request = None
        if stream is not None:
            before = stream.request
            if request and (request.source, request.stage, request.start) == (before.source, before.stage, before.stop):
                stream.request = request
                return []
            stream.ended = True
        if request is None:
            return []
        codes: list[list[NDArray[np.int64]]] = [[] for _ in self.sources[request.source].statistics]
        return [_Stream(job, request, request.start, request.start, codes)]


class _Filling(Generic[Answer]):
    """Batches being filled, to be run one after the other; with the noise of jobs that have none of their own."""

    def __init__(self, size: int, noise: Noise) -> None:
        self.segments: list[Segment[_Stream[Answer]]] = []
        self.rows = 0
        self.size = size
        self._noise = noise

    @property
    def room(self) -> int:
        return self.size - self.rows

    def take(self, stream: _Stream[Answer], until: int) -> None:
        """Give places to the copies of a stream up to number ``until``, as far as there is room."""
        count = min(self.room, until - stream.issued)
        if count <= 0:
            return
        job, request = stream.job, stream.request
        place = (self.rows, self.rows + count, stream.issued)
        noise = job.noise or self._noise
        self.segments.append(Segment(stream, request.source, noise, job.x, job.index, request.stage, *place))
        self.rows += count
        stream.issued += count


class _Jobs(Generic[Answer]):
    """Jobs yet to come; an error in finding the next one ends them and is kept for later."""

    def __init__(self, jobs: Iterator[Job[Answer]]) -> None:
        self._jobs = jobs
        self.ended = False
        self.error: Exception | None = None

    def take(self) -> Job[Answer] | None:
        if self.ended:
            return None
        try:
            return next(self._jobs)
        except StopIteration:
            self.ended = True
        except Exception as error:
            self.ended, self.error = True, error
        return None


def _submit(
    threads: ThreadPoolExecutor, workers: int, lane: Lane, task: _Task[Answer]
) -> Future[Stretch[_Stream[Answer]] | Late[_Stream[Answer]]]:
    """Compute in a thread, or here and now when there is only one."""
    if workers > 1:
        return threads.submit(task, lane)
    done: Future[Stretch[_Stream[Answer]] | Late[_Stream[Answer]]] = Future()
    done.set_result(task(lane))
    return done
