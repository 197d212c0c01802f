"""The one sampling loop: batches filled with noisy copies of whatever inputs want votes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smoothcert.noise import Noise
from smoothcert.sampling.copies import NoisyCopies
from smoothcert.sampling.statistics import Statistic
from smoothcert.sampling.tally import Tally
from smoothcert.sampling.tuning import intra_op_threads
from smoothcert.types import UsageError, Votes

Classifier = Callable[[Tensor], Tensor]
"""Anything that maps a batch of inputs to a batch of logits."""


@dataclass(frozen=True)
class Draw:
    """A request for votes: copies ``start`` … ``start + n − 1`` of a stage."""

    stage: int
    n: int
    start: int = 0


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
        seconds: The time spent on it so far, its share of every batch it was in.
    """

    index: int
    x: Tensor
    steps: Steps[Answer]
    seconds: float = 0.0
    _first: Draw | None = None

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
        capacity: Noisy copies they could have held.
    """

    batches: int = 0
    rows: int = 0
    capacity: int = 0

    @property
    def occupancy(self) -> float:
        return self.rows / self.capacity if self.capacity else 1.0


@dataclass(eq=False)
class _Active(Generic[Answer]):
    """A job with an open request."""

    job: Job[Answer]
    request: Draw
    tallies: list[Tally]
    issued: int = 0
    counted: int = 0


@dataclass(frozen=True)
class _Segment(Generic[Answer]):
    """Rows ``low`` … ``high − 1`` of a batch: copies ``start``, ``start + 1``, … of one input."""

    active: _Active[Answer]
    low: int
    high: int
    start: int


@dataclass(frozen=True)
class _Result(Generic[Answer]):
    segments: list[_Segment[Answer]]
    codes: list[NDArray[np.int64]]
    seconds: float


@dataclass
class Pool:
    """Runs many jobs at once so that every batch is full: a decided input leaves and the next one enters.

    The noise of a copy depends on (seed, input, stage, number) only, so a job's votes do not depend on its company.

    Args:
        classifier: Maps a batch to logits of shape (batch, classes); already in evaluation mode.
        noise: The noise.
        num_classes: The number of classes.
        statistics: What to tally.
        seed: The seed of the run.
        batch_size: Noisy copies per forward pass.
        workers: Batches computed at the same time, each in a thread of its own.
        threads: PyTorch's threads within each batch; as they are when not given.

    Attributes:
        use: How full the batches were, so far.
    """

    classifier: Classifier
    noise: Noise
    num_classes: int
    statistics: Sequence[Statistic]
    seed: int
    batch_size: int
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
        source = _Source(iter(jobs))
        active: deque[_Active[Answer]] = deque()
        flying: deque[Future[_Result[Answer]]] = deque()
        answered: list[tuple[Job[Answer], Answer]] = []
        lanes: deque[_Lane] = deque(_Lane(self) for _ in range(self.workers))
        with ThreadPoolExecutor(self.workers) as threads:
            while True:
                while len(flying) < self.workers and (segments := self._next_batch(source, active, answered)):
                    lane = lanes[0]
                    lanes.rotate(-1)
                    flying.append(_submit(threads, self.workers, lane, segments))
                yield from answered
                answered.clear()
                if not flying:
                    break
                active.extend(self._count(flying.popleft().result(), answered))
        if source.error is not None:
            raise source.error

    def _next_batch(
        self, source: _Source[Answer], active: deque[_Active[Answer]], answered: list[tuple[Job[Answer], Answer]]
    ) -> list[_Segment[Answer]]:
        """Fill a batch from the open requests, oldest first, then from new jobs."""
        segments: list[_Segment[Answer]] = []
        row = 0
        while row < self.batch_size:
            if not active:
                job = source.take()
                if job is None:
                    break
                self._advance(job, None, active, answered)
                continue
            first = active[0]
            if segments and first.job.x.shape != segments[0].active.job.x.shape:
                break  # inputs of another size go into a batch of their own
            count = min(self.batch_size - row, first.request.n - first.issued)
            segments.append(_Segment(first, row, row + count, first.request.start + first.issued))
            first.issued += count
            row += count
            if first.issued == first.request.n:
                active.popleft()
        if segments:
            self.use.batches += 1
            self.use.rows += row
            self.use.capacity += self.batch_size
        return segments

    def _count(self, result: _Result[Answer], answered: list[tuple[Job[Answer], Answer]]) -> deque[_Active[Answer]]:
        """Tally a finished batch; gives the jobs that want more votes."""
        rows = result.segments[-1].high
        opened: deque[_Active[Answer]] = deque()
        for segment in result.segments:
            active = segment.active
            active.job.seconds += result.seconds * (segment.high - segment.low) / rows
            for tally, codes in zip(active.tallies, result.codes, strict=True):
                tally.add(codes[segment.low : segment.high])
            active.counted += segment.high - segment.low
            if active.counted == active.request.n:
                votes = tuple(tally.votes() for tally in active.tallies)
                self._advance(active.job, votes, opened, answered)
        return opened

    def _advance(
        self,
        job: Job[Answer],
        votes: tuple[Votes, ...] | None,
        active: deque[_Active[Answer]],
        answered: list[tuple[Job[Answer], Answer]],
    ) -> None:
        """Take a job's procedure one step further: to its next request, or to its answer."""
        try:
            request = job.begin() if votes is None else job.steps.send(votes)
        except StopIteration as end:
            answered.append((job, end.value))
        else:
            active.append(_Active(job, request, [Tally(s.bins(self.num_classes)) for s in self.statistics]))


class _Source(Generic[Answer]):
    """Jobs yet to come; an error in finding the next one ends them and is kept for later."""

    def __init__(self, jobs: Iterator[Job[Answer]]) -> None:
        self._jobs = jobs
        self._ended = False
        self.error: Exception | None = None

    def take(self) -> Job[Answer] | None:
        if self._ended:
            return None
        try:
            return next(self._jobs)
        except StopIteration:
            self._ended = True
        except Exception as error:
            self._ended, self.error = True, error
        return None


class _Lane:
    """One place to compute a batch: its memory, its generator."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._rows: Tensor | None = None
        self._copies: NoisyCopies | None = None

    def compute(self, segments: list[_Segment[Answer]]) -> _Result[Answer]:
        begin = time.perf_counter()
        threads = self._pool.threads or torch.get_num_threads()
        with torch.inference_mode(), intra_op_threads(threads):
            rows = self._memory(segments[0].active.job.x)[: segments[-1].high]
            for segment in segments:
                self._fill(rows[segment.low : segment.high], segment)
            logits = self._pool.classifier(rows)
            if logits.shape != (len(rows), self._pool.num_classes):
                raise UsageError(
                    f"the model gave an output of shape {tuple(logits.shape)} for a batch of {len(rows)}; "
                    f"it must be ({len(rows)}, {self._pool.num_classes})."
                )
            codes = [statistic.codes(logits).cpu().numpy() for statistic in self._pool.statistics]
        return _Result(segments, codes, time.perf_counter() - begin)

    def _fill(self, rows: Tensor, segment: _Segment[Answer]) -> None:
        assert self._copies is not None
        job, stage = segment.active.job, segment.active.request.stage
        self._copies.fill(rows, job.x, seed=self._pool.seed, index=job.index, stage=stage, start=segment.start)

    def _memory(self, x: Tensor) -> Tensor:
        if self._rows is None or self._rows.shape[1:] != x.shape:
            self._rows = x.new_empty((self._pool.batch_size, *x.shape))
            self._copies = NoisyCopies(self._pool.noise, x)
        return self._rows


def _submit(
    threads: ThreadPoolExecutor, workers: int, lane: _Lane, segments: list[_Segment[Answer]]
) -> Future[_Result[Answer]]:
    """Compute in a thread, or here and now when there is only one."""
    if workers > 1:
        return threads.submit(lane.compute, segments)
    done: Future[_Result[Answer]] = Future()
    done.set_result(lane.compute(segments))
    return done
