"""The sampling loop, which fills batches with noisy copies of many inputs."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from smoothcert.noise import Noise
from smoothcert.sampling.batches import Backlog, Chunk, Decided, Kind, Runner, Source
from smoothcert.sampling.copies import Copies
from smoothcert.sampling.seeds import BLOCK
from smoothcert.types import Votes

_CHUNK = 4  # batches that a worker computes in a row if as many are requested, because switching threads takes time
_PATIENCE = 16  # chunks that may wait until enough undecided copies have come together for a full batch


@dataclass(frozen=True)
class Draw:
    """A request for votes: copies ``start`` … ``start + n − 1`` of a stage.

    Attributes:
        most: How many copies of the stage may be requested in total if the next request continues this one; idle rows
            of a batch are then used to draw ahead.
        source: The number of the pool's source.
        deadline: The time of ``time.monotonic()`` after which the request is answered with the votes drawn so far: at
            least one of the stage, and fewer than ``n`` only if no more are drawn.
    """

    stage: int
    n: int
    start: int = 0
    most: int = 0
    source: int = 0
    deadline: float | None = None

    @property
    def stop(self) -> int:
        return self.start + self.n


Answer = TypeVar("Answer")
Steps = Generator[Draw, tuple[Votes, ...], Answer]
"""A procedure that is running on one input: it yields draws, is sent their votes, and returns its answer."""


@dataclass(eq=False)
class Job(Generic[Answer]):
    """An input and the procedure that runs on it.

    Attributes:
        index: The input's index, which enters the noise seed.
        x: The input, on the device and in the dtype to compute with.
        steps: The procedure.
        noise: The noise; that of the source by default.
        seconds: The time spent on the input so far: its share of every batch it was in.
        drawn: Its noisy copies so far, including those drawn ahead.
        deferred: Those that the first members of a consensus left undecided; None without a consensus.
        place: Its place among the inputs, from 0.
    """

    index: int
    x: Tensor
    steps: Steps[Answer]
    noise: Noise | None = None
    seconds: float = 0.0
    drawn: int = 0
    deferred: int | None = None
    place: int = 0
    _first: Draw | None = None

    @property
    def consensus(self) -> float | None:
        """KCR: the share of its copies that the first members of a consensus decided (Horváth et al., 2022, §7)."""
        return None if self.deferred is None or not self.drawn else 1 - self.deferred / self.drawn

    def begin(self) -> Draw:
        """Return the first request; a procedure checks its settings before it makes one."""
        if self._first is None:
            self._first = next(self.steps)
        return self._first


@dataclass
class Pool:
    """Runs many jobs at the same time to keep batches full: a decided input leaves and the next one enters.

    The noise of a copy depends only on (seed, input, stage, number), so the votes of a job do not depend on the others.

    Args:
        sources: The classifiers that procedures may sample, already in evaluation mode; jobs start with the first.
        seed: The seed of the run.
        workers: Batches computed at the same time, each in its own thread.
        threads: PyTorch's threads within each batch; the current number by default.

    Attributes:
        rows: Noisy copies in all batches so far.
        capacity: How many they could have held.
    """

    sources: Sequence[Source]
    seed: int
    workers: int = 1
    threads: int | None = None
    rows: int = field(default=0, init=False)
    capacity: int = field(default=0, init=False)

    def run(self, jobs: Iterable[Job[Answer]]) -> Iterator[tuple[Job[Answer], Answer]]:
        """Answer all jobs, which are taken from the iterable as there is room.

        Yields:
            Each job with its answer, as it is decided.

        Raises:
            Exception: An error of the iterable, once the jobs taken before are answered.
        """
        return _Run(self, iter(jobs)).answers()


@dataclass(eq=False)
class _Stream:
    """The copies of one stage of a job, in order.

    Attributes:
        request: The request that its procedure waits for.
        issued: The number of the next copy to add to a batch.
        received: The number of the next copy whose values are missing.
        codes: Values of copies from the start of the request on, per statistic.
        late: Whether its deadline has passed, so that no more copies are drawn.
    """

    job: Job[Any]
    request: Draw
    kind: Kind
    issued: int
    received: int
    codes: list[list[NDArray[np.int64]]]
    late: bool = False

    @property
    def open(self) -> int:
        """How many copies are requested and not in a batch yet."""
        return 0 if self.late else max(self.request.stop - self.issued, 0)

    @property
    def ready(self) -> bool:
        """Whether the request can be answered."""
        return self.received >= self.request.stop or (self.late and self.received == self.issued)

    def reach(self, tasks: int) -> int:
        """Return up to which copy the next batch may draw ahead, while ``tasks`` batches are computed.

        As many copies are drawn ahead as were received before: a procedure that decides early wastes few of them, and
        the batches of one that does not soon become full.
        """
        ahead = self.issued + max(self.received // tasks, self.kind[0].least)
        return 0 if self.late else min(self.request.most, -(-ahead // BLOCK) * BLOCK)


class _Run(Generic[Answer]):
    """The state of one :meth:`Pool.run`."""

    def __init__(self, pool: Pool, jobs: Iterator[Job[Answer]]) -> None:
        self._pool, self._jobs = pool, jobs
        self._ended = False
        self._error: Exception | None = None
        self._streams: dict[_Stream, None] = {}  # in order of admission
        self._backlog = Backlog()
        self._answered: list[tuple[Job[Answer], Answer]] = []
        self._tasks = pool.workers + 1 if pool.workers > 1 else 1  # one waits, so that no worker does
        self._pace: dict[Source, float] = {}  # seconds per copy in the last batch

    def answers(self) -> Iterator[tuple[Job[Answer], Answer]]:
        workers, most = self._pool.workers, self._tasks
        runners = deque(Runner(self._pool.threads) for _ in range(most))
        running: deque[Callable[[], Chunk | Decided]] = deque()
        waiting: deque[Chunk] = deque()  # computed and not delivered yet
        with ThreadPoolExecutor(workers) as threads:
            while True:
                while len(running) < most and (task := self._next_task(len(waiting) >= _PATIENCE)):
                    running.append(
                        threads.submit(task, runners[0]).result if workers > 1 else partial(task, runners[0])
                    )
                    runners.rotate(-1)
                yield from self._answered
                self._answered.clear()
                if not running:
                    break
                done = running.popleft()()
                if isinstance(done, Decided):
                    done.deliver()
                else:
                    waiting.append(done)
                    self._backlog.add(done)
                while waiting and not waiting[0].missing:
                    self._deliver(waiting.popleft())
        if self._error is not None:
            raise self._error

    def _next_task(self, impatient: bool) -> Callable[[Runner], Chunk | Decided] | None:
        """Return the next task: undecided copies if they fill a batch or nothing else is requested, else a chunk."""
        backlog = self._backlog
        if not backlog.full and not (impatient and backlog.rows):
            chunk = self._next_chunk(ahead=not backlog.rows)
            if chunk is not None:
                return partial(Runner.compute, chunk=chunk)
        return partial(Runner.decide, pieces=backlog.take()) if backlog.rows else None

    def _next_chunk(self, ahead: bool) -> Chunk | None:
        """Fill batches from open requests, oldest first, then the last one from new jobs, then with copies ahead.

        A chunk of nothing but copies ahead is made only if ``ahead``.
        """
        self._close_late()
        kind = self._next_kind()
        while kind is None and (job := self._take_job()) is not None:
            stream = self._advance(job)
            kind = None if stream is None else stream.kind
        if kind is None:
            more = (each for each in self._streams if each.open or each.issued < each.reach(self._tasks))
            kind = next((stream.kind for stream in more), None)
        if kind is None:
            return None
        source, workers = kind[0], self._pool.workers
        size = source.batch_size
        same_kind = [stream for stream in self._streams if stream.kind == kind]
        limit = self._rows_in_time(same_kind)
        share = sum(stream.open for stream in same_kind) // (workers * size) if workers > 1 else 1  # batches per worker
        chunk = Chunk(source, min(size * min(max(share, 1), _CHUNK), limit))
        reach = {stream: stream.reach(self._tasks) for stream in same_kind}
        for stream in same_kind:
            self._fill(chunk, stream, stream.request.stop)
        chunk.capacity = min(-(-max(chunk.rows, 1) // size) * size, limit)
        fits = source is self._pool.sources[0]
        while chunk.room and fits and (job := self._take_job()) is not None:
            stream = self._advance(job)
            if stream is not None:
                fits = stream.kind == kind
                if fits:
                    reach[stream] = stream.reach(self._tasks)
                    self._fill(chunk, stream, stream.request.stop)
        if not chunk.rows and not ahead:
            return None
        extendable = [stream for stream in reach if stream.issued < reach[stream]]
        while chunk.room and extendable and self._ended:
            each = max(chunk.room // len(extendable) // BLOCK, 1) * BLOCK
            for stream in extendable:
                self._fill(chunk, stream, min(stream.issued + each, reach[stream]))
            extendable = [stream for stream in extendable if stream.issued < reach[stream]]
        if not chunk.rows:
            return None
        self._pool.rows += chunk.rows
        self._pool.capacity += chunk.capacity
        return chunk

    def _close_late(self) -> None:
        """Answer requests whose deadline has passed, or stop drawing for them until what is computed has arrived."""
        now = time.monotonic()
        for stream in list(self._streams):
            deadline = stream.request.deadline
            stream.late = deadline is not None and now >= deadline and stream.issued > 0
            if stream.late and stream.ready:
                self._advance(stream.job, stream)

    def _rows_in_time(self, streams: Sequence[_Stream]) -> int:
        """Return how many rows a batch may have so that it ends before the deadlines of its streams; at least some."""
        deadline = min((stream.request.deadline or math.inf for stream in streams), default=math.inf)
        if deadline == math.inf or not streams:
            return sys.maxsize
        source = streams[0].kind[0]
        pace = self._pace.get(source, math.inf)  # the first batch measures it
        rows = max(deadline - time.monotonic(), 0.0) / pace
        return max(int(rows) // BLOCK * BLOCK, source.least)

    def _next_kind(self) -> Kind | None:
        """Choose the copies to run next: the oldest of those that fill a batch.

        If none do and more jobs may come, those that jobs start with, or None if there are none; else the oldest.
        """
        rows: dict[Kind, int] = {}  # in order of age
        for stream in self._streams:
            if stream.open:
                rows[stream.kind] = rows.get(stream.kind, 0) + stream.open
        full = (kind for kind, count in rows.items() if count >= kind[0].batch_size)
        first = self._pool.sources[0]
        return next(full, None) or next((kind for kind in rows if kind[0] is first or self._ended), None)

    def _take_job(self) -> Job[Answer] | None:
        """Return the next job, if any; an error ends the jobs and is raised later."""
        if not self._ended:
            try:
                return next(self._jobs)
            except StopIteration:
                self._ended = True
            except Exception as error:
                self._ended, self._error = True, error
        return None

    def _fill(self, chunk: Chunk, stream: _Stream, until: int) -> None:
        """Add the copies of a stream up to number ``until`` to a chunk, as far as there is room."""
        count = min(chunk.room, until - stream.issued)
        if count > 0:
            job, stage = stream.job, stream.request.stage
            noise = job.noise or chunk.source.noise
            chunk.add(stream, Copies(job.x, noise, self._pool.seed, job.index, stage, stream.issued, count))
            stream.issued += count

    def _deliver(self, chunk: Chunk) -> None:
        """Hand the values of a chunk to their streams, and advance every procedure whose request is complete."""
        self._pace[chunk.source] = chunk.seconds / chunk.rows
        for segment in chunk.segments:
            stream, count = segment.owner, segment.copies.n
            low, high = segment.low, segment.low + count
            stream.job.seconds += chunk.seconds * count / chunk.rows
            stream.job.drawn += count
            if chunk.source.cascade is not None:
                first, end = np.searchsorted(chunk.deferred, [low, high])
                stream.job.deferred = (stream.job.deferred or 0) + int(end - first)
            if stream not in self._streams:
                continue  # drawn ahead for an input that was decided meanwhile
            for kept, codes in zip(stream.codes, chunk.codes, strict=True):
                kept.append(codes[low:high])
            stream.received += count
            while stream in self._streams and stream.ready:
                self._advance(stream.job, stream)

    def _advance(self, job: Job[Answer], stream: _Stream | None = None) -> _Stream | None:
        """Start the procedure of a job, or send it the votes that its stream has; return its next stream, if any."""
        try:
            request = job.begin() if stream is None else job.steps.send(self._votes(stream))
        except StopIteration as end:
            self._answered.append((job, end.value))
            request = None
        if stream is not None:
            before = stream.request
            if request and (request.source, request.stage, request.start) == (before.source, before.stage, before.stop):
                stream.request = request
                return stream
            del self._streams[stream]
        if request is None:
            return None
        source = self._pool.sources[request.source]
        codes = [[np.empty(0, np.int64)] for _ in source.statistics]
        following = _Stream(job, request, (source, job.x.shape), request.start, request.start, codes)
        self._streams[following] = None
        return following

    def _votes(self, stream: _Stream) -> tuple[Votes, ...]:
        """Count the values of a request that can be answered, and keep those beyond it."""
        source = self._pool.sources[stream.request.source]
        n = min(stream.request.stop, stream.received) - stream.request.start
        votes = []
        for number, statistic in enumerate(source.statistics):
            codes = np.concatenate(stream.codes[number])
            votes.append(_count(codes[:n], statistic.bins(source.num_classes)))
            stream.codes[number] = [codes[n:]]
        return tuple(votes)


def _count(codes: NDArray[np.int64], bins: int) -> Votes:
    """Count values, also over the first 10, 100, 1000, … copies; −1 is in no bin."""
    totals = np.zeros(bins + 1, dtype=np.int64)
    counts: dict[int, tuple[int, ...]] = {}
    powers = [10**k for k in range(1, 19) if 10**k < len(codes)]
    for low, high in pairwise([0, *powers, len(codes)]):
        totals += np.bincount(codes[low:high] + 1, minlength=bins + 1)
        counts[high] = tuple(totals[1:].tolist())
    return Votes(len(codes), counts.pop(len(codes)), counts)
