"""The sampling loop, which fills batches with noisy copies of many inputs."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Generic
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from smoothcert.sampling.batches import Backlog, Chunk, Decided, Kind, Runner, Source, Undecided
from smoothcert.sampling.copies import Copies
from smoothcert.sampling.jobs import Answer, Draw, Failure, Feed, Job, Listed, Queue
from smoothcert.sampling.seeds import BLOCK
from smoothcert.sampling.tuning import Layout, Layouts
from smoothcert.types import Votes

_CHUNK = 4  # batches that a worker computes in a row if as many are requested, because switching threads takes time
_SLICE = 0.05  # seconds that a live batch may take, so that a more urgent job need not wait for a longer one
_LATE = 0.005  # seconds by which a live batch may end after a deadline, because smaller ones compute much slower
_PATIENCE = 16  # chunks that may wait until enough undecided copies have come together for a full batch


@dataclass
class Pool:
    """Runs many jobs at the same time to keep batches full: a decided input leaves and the next one enters.

    The noise of a copy depends only on (seed, input, stage, number), so the votes of a job do not depend on the others.

    Args:
        workers: Batches computed at the same time, each in its own thread.
        threads: PyTorch's threads within each batch; the current number by default.
        layouts: Chooses both instead, where jobs do not come in while others run and have no deadlines.

    Attributes:
        rows: Noisy copies in all batches so far.
        capacity: How many they could have held.
        running: How many jobs run.
    """

    workers: int = 1
    threads: int | None = None
    layouts: Layouts | None = None
    rows: int = field(default=0, init=False)
    capacity: int = field(default=0, init=False)
    running: int = field(default=0, init=False)

    def run(self, jobs: Iterable[Job[Answer]]) -> Iterator[tuple[Job[Answer], Answer]]:
        """Answer all jobs, which are taken from the iterable as there is room.

        Yields:
            Each job with its answer, as it is decided.

        Raises:
            Exception: An error of the iterable, once the jobs taken before are answered.
        """
        listed = Listed(iter(jobs))
        for job, answer in _Run(self, listed).answers():
            assert not isinstance(answer, Failure)
            yield job, answer
        if listed.error is not None:
            raise listed.error

    def serve(self, queue: Queue[Answer]) -> Iterator[tuple[Job[Answer], Answer | Failure]]:
        """Answer the jobs that other threads add to a queue, until it is closed and empty.

        Yields:
            Each job that was not dropped, with its answer or the error that ended it.
        """
        return _Run(self, queue).answers()


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
    reported: Votes | None = None

    @property
    def due(self) -> float:
        return self.job.due(self.request)

    @property
    def rank(self) -> tuple[float, float]:
        return self.job.rank(self.request)

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

    def report(self, codes: NDArray[np.int64]) -> None:
        """Tell the votes of the stage so far, with these new ones."""
        source, before = self.kind[0], self.reported
        total = _count(codes, source.statistics[0].bins(source.num_classes))
        assert self.job.progress is not None
        if before is not None:
            total = Votes(before.n + total.n, tuple(map(sum, zip(before.counts, total.counts, strict=True))))
        self.reported = Votes(total.n, total.counts)
        self.job.progress(self.reported)


@dataclass(frozen=True, eq=False)
class _Task:
    """A chunk to compute, or undecided rows to decide."""

    work: Chunk | Sequence[Undecided]

    def run(self, runner: Runner, threads: int | None) -> Chunk | Decided:
        work = self.work
        return runner.compute(work, threads) if isinstance(work, Chunk) else runner.decide(work, threads)

    def give_up(self) -> list[_Stream]:
        """Return the streams with copies in it, and wait for its undecided rows no longer."""
        if isinstance(self.work, Chunk):
            return [segment.owner for segment in self.work.segments]
        streams = []
        for piece in self.work:
            piece.chunk.missing -= len(piece.rows)
            for segment in piece.chunk.segments:
                first, end = np.searchsorted(piece.rows, [segment.low, segment.low + segment.copies.n])
                if first < end:
                    streams.append(segment.owner)
        return streams


class _Turn:
    """Chunks that are computed together, one by each worker, to time a layout."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.tasks: list[_Task] = []

    @property
    def open(self) -> bool:
        """Whether a worker has no chunk yet."""
        return len(self.tasks) < self.layout.workers

    def record(self, layouts: Layouts, source: Source | None) -> None:
        """Record the time, if all chunks were full and of the same source."""
        chunks = [task.work for task in self.tasks if isinstance(task.work, Chunk)]
        begin = min((chunk.began for chunk in chunks), default=0.0)
        end = max((chunk.began + chunk.seconds for chunk in chunks), default=0.0)
        full = [chunk for chunk in chunks if source is chunk.source and chunk.rows == _CHUNK * source.batch_size]
        copies = sum(chunk.rows for chunk in full) if len(full) == self.layout.workers else 0
        layouts.record(self.layout, copies, end - begin)


class _Run(Generic[Answer]):
    """The state of one :meth:`Pool.run` or :meth:`Pool.serve`."""

    def __init__(self, pool: Pool, feed: Feed[Answer]) -> None:
        self._pool, self._feed = pool, feed
        self._entry: Source | None = None  # with which the last job started
        self._streams: dict[_Stream, None] = {}  # in order of admission
        self._backlog = Backlog()
        self._waiting: deque[Chunk] = deque()  # computed and not delivered yet
        self._answered: list[tuple[Job[Answer], Answer | Failure]] = []
        self._layouts = None if feed.live else pool.layouts
        self._layout = Layout(pool.threads or 0, pool.workers)
        self._turn: _Turn | None = None
        self._pace: WeakKeyDictionary[Source, float] = WeakKeyDictionary()  # seconds per copy in the last batch

    @property
    def _tasks(self) -> int:
        """How many batches are computed or wait; one waits, so that no worker does."""
        return self._layout.workers + 1 if self._layout.workers > 1 else 1

    def answers(self) -> Iterator[tuple[Job[Answer], Answer | Failure]]:
        waiting = self._waiting
        workers = self._layouts.most if self._layouts else self._layout.workers
        runners = deque(Runner() for _ in range(workers + 1 if workers > 1 else 1))
        running: deque[tuple[_Task, Callable[[], Chunk | Decided]]] = deque()
        with ThreadPoolExecutor(workers) as threads:
            while True:
                if not running:
                    self._choose_layout()
                while len(running) < self._tasks and (not running or self._may_start()) and (task := self._next_task()):
                    compute = partial(task.run, runners[0], self._layout.threads or None)
                    parallel = self._layout.workers > 1
                    running.append((task, threads.submit(compute).result if parallel else compute))
                    runners.rotate(-1)
                    if self._turn:
                        self._turn.tasks.append(task)
                self._pool.running = len(self._streams)
                yield from self._answered
                self._answered.clear()
                if not running:
                    if self._feed.ended:
                        break
                    self._feed.wait()
                    continue
                task, result = running.popleft()
                try:
                    done = result()
                except Exception as error:
                    self._lose(task, error)
                else:
                    if isinstance(done, Decided):
                        done.deliver()
                    else:
                        waiting.append(done)
                        if self._layouts is not None and self._turn is None:
                            self._layouts.sampled(done.seconds / self._layout.workers)
                        self._backlog.add(done)
                while waiting and not waiting[0].missing:
                    self._deliver(waiting.popleft())

    def _choose_layout(self) -> None:
        """Choose how the next batches are computed, while none is."""
        layouts, turn = self._layouts, self._turn
        if layouts is None:
            return
        if turn is not None:
            turn.record(layouts, self._entry)
        timed = layouts.next() if self._may_time() else None
        self._turn = None if timed is None else _Turn(timed)
        self._layout = timed or layouts.best

    def _may_start(self) -> bool:
        """Return whether another batch may start, or those that run must end first because the layout changes."""
        if self._turn is not None:
            return self._turn.open
        return self._layouts is None or (self._layout == self._layouts.best and not self._may_time())

    def _may_time(self) -> bool:
        """Return whether it is time to compare layouts, and there is work enough to fill batches for all workers."""
        layouts, entry = self._layouts, self._entry
        if layouts is None or not layouts.due or any(stream.due < math.inf for stream in self._streams):
            return False
        rows = sum(stream.open for stream in self._streams if stream.kind[0] is entry)
        return not self._feed.drained or (entry is not None and rows >= layouts.most * _CHUNK * entry.batch_size)

    def _next_task(self) -> _Task | None:
        """Return the next task: undecided copies if they fill a batch or nothing else is requested, else a chunk.

        Undecided copies are also next if they have waited for long, or the deadline of a request that needs them is
        near.
        """
        backlog = self._backlog
        if not backlog.full and not (backlog.rows and self._impatient()):
            chunk = self._next_chunk(ahead=not backlog.rows)
            if chunk is not None:
                return _Task(chunk)
        return _Task(backlog.take()) if backlog.rows else None

    def _impatient(self) -> bool:
        soon = time.monotonic() + _SLICE
        return len(self._waiting) >= _PATIENCE or any(
            stream.due <= soon and stream.received < stream.issued for stream in self._streams
        )

    def _next_chunk(self, ahead: bool) -> Chunk | None:
        """Fill batches from open requests, most urgent first, then the last one from new jobs, then with copies ahead.

        A chunk of nothing but copies ahead is made only if ``ahead``.
        """
        self._close_late()
        kind = self._next_kind()
        while kind is None and (job := self._feed.take()) is not None:
            stream = self._admit(job)
            kind = None if stream is None else stream.kind
        if kind is None:
            more = (each for each in self._streams if each.open or each.issued < each.reach(self._tasks))
            kind = next((stream.kind for stream in more), None)
        if kind is None:
            return None
        source, workers = kind[0], self._layout.workers
        size = source.batch_size
        same_kind = self._ordered(stream for stream in self._streams if stream.kind == kind)
        limit = self._rows_in_time(source, same_kind)
        share = sum(stream.open for stream in same_kind) // (workers * size) if workers > 1 else 1  # batches per worker
        batches = _CHUNK if self._turn else min(max(share, 1), _CHUNK)
        chunk = Chunk(source, min(size * batches, limit))
        reach = {stream: stream.reach(self._tasks) for stream in same_kind}
        for stream in same_kind:
            while chunk.room and self._overtakes(stream) and (job := self._feed.take()) is not None:
                self._enter(chunk, kind, job, reach)
            self._fill(chunk, stream, stream.request.stop)
        if self._turn is None:
            chunk.capacity = min(-(-max(chunk.rows, 1) // size) * size, limit)
        fits = source is self._entry
        while chunk.room and fits and (job := self._feed.take()) is not None:
            fits = self._enter(chunk, kind, job, reach)
        if not chunk.rows and not ahead:
            return None
        extendable = [stream for stream in reach if stream.issued < reach[stream]]
        while chunk.room and extendable and self._feed.drained:
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
        """Answer requests whose deadline has passed, or stop drawing for them until what is computed has arrived.

        Jobs that were dropped leave.
        """
        now = time.monotonic()
        for stream in list(self._streams):
            if stream.job.dropped:
                self._leave(stream)
                continue
            stream.late = now >= stream.due and stream.issued > 0
            if stream.late and stream.ready:
                self._advance(stream.job, stream)

    def _rows_in_time(self, source: Source, streams: Sequence[_Stream]) -> int:
        """Return how many rows a batch may have so that it ends before the deadlines of its streams; at least some.

        A live batch is short in addition, so that a job that is more urgent need not wait long.
        """
        due = min((stream.due for stream in streams), default=math.inf)
        seconds = math.inf
        if due < math.inf:
            seconds = max(due - time.monotonic(), 0.0) / min(self._tasks, 2)  # another batch may run before it
        if self._feed.live:
            seconds = min(max(seconds, _LATE), _SLICE)
        if seconds == math.inf:
            return sys.maxsize
        pace = self._pace.get(source, math.inf)  # the first batch measures it
        return max(int(seconds / pace) // BLOCK * BLOCK, source.least)

    def _next_kind(self) -> Kind | None:
        """Choose the copies to run next: the most urgent ones, and of equally urgent ones the oldest that fill a batch.

        If none do and more jobs may come, those that jobs start with, or None if there are none; else the oldest.
        """
        ordered = self._ordered(stream for stream in self._streams if stream.open)
        if not ordered or self._overtakes(ordered[0]):
            return None
        if ordered[0].rank < ordered[-1].rank:
            return ordered[0].kind
        rows: dict[Kind, int] = {}  # in order of age
        for stream in ordered:
            rows[stream.kind] = rows.get(stream.kind, 0) + stream.open
        full = (kind for kind, count in rows.items() if count >= kind[0].batch_size)
        return next(full, None) or next((kind for kind in rows if kind[0] is self._entry or self._feed.drained), None)

    def _ordered(self, streams: Iterable[_Stream]) -> list[_Stream]:
        """Return streams, the most urgent first, equally urgent ones by age."""
        return sorted(streams, key=lambda stream: stream.rank)

    def _overtakes(self, stream: _Stream) -> bool:
        """Return whether the next job is more urgent than a stream."""
        rank = self._feed.rank
        return rank is not None and rank < stream.rank

    def _fill(self, chunk: Chunk, stream: _Stream, until: int) -> None:
        """Add the copies of a stream up to number ``until`` to a chunk, as far as there is room."""
        count = min(chunk.room, until - stream.issued)
        if count > 0:
            job, stage = stream.job, stream.request.stage
            noise = job.noise or chunk.source.noise
            chunk.add(stream, Copies(job.x, noise, job.seed, job.index, stage, stream.issued, count))
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
            if stream.job.progress is not None:
                stream.report(chunk.codes[0][low:high])
            while stream in self._streams and stream.ready:
                self._advance(stream.job, stream)

    def _enter(self, chunk: Chunk, kind: Kind, job: Job[Answer], reach: dict[_Stream, int]) -> bool:
        """Start a job, and add its copies to a chunk; return whether they can be in it, or there are none."""
        stream = self._admit(job)
        fits = stream is None or stream.kind == kind
        if stream is not None and fits:
            reach[stream] = stream.reach(self._tasks)
            self._fill(chunk, stream, stream.request.stop)
        return fits

    def _admit(self, job: Job[Answer]) -> _Stream | None:
        """Start a job; return its stream, if it needs votes."""
        if job.dropped:
            return None
        try:
            self._feed.prepare(job)
        except Exception as error:
            self._fail(job, error)
            return None
        self._entry = job.sources[0]
        return self._advance(job)

    def _advance(self, job: Job[Answer], stream: _Stream | None = None) -> _Stream | None:
        """Start the procedure of a job, or send it the votes that its stream has; return its next stream, if any."""
        request = None
        try:
            request = job.begin() if stream is None else job.steps.send(self._votes(stream))
        except StopIteration as end:
            self._answered.append((job, end.value))
        except Exception as error:
            self._fail(job, error)
        if stream is not None:
            before = stream.request
            if request and (request.source, request.stage, request.start) == (before.source, before.stage, before.stop):
                stream.request = request
                return stream
            del self._streams[stream]
        if request is None:
            return None
        source = job.sources[request.source]
        codes = [[np.empty(0, np.int64)] for _ in source.statistics]
        following = _Stream(job, request, (source, job.x.shape), request.start, request.start, codes)
        self._streams[following] = None
        return following

    def _lose(self, task: _Task, error: Exception) -> None:
        """End the live jobs with copies in a task that failed; raise the error of others."""
        if not self._feed.live:
            raise error
        for stream in task.give_up():
            if stream in self._streams:
                self._leave(stream)
                self._fail(stream.job, error)

    def _fail(self, job: Job[Answer], error: Exception) -> None:
        """Answer a live job with an error; raise that of another."""
        if not self._feed.live:
            raise error
        self._answered.append((job, Failure(error)))

    def _leave(self, stream: _Stream) -> None:
        """End a job before its procedure does."""
        del self._streams[stream]
        stream.job.steps.close()

    def _votes(self, stream: _Stream) -> tuple[Votes, ...]:
        """Count the values of a request that can be answered, and keep those beyond it."""
        source = stream.kind[0]
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
