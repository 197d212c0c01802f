"""What the sampling loop works on: jobs, the votes they request, and where jobs come from."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

from torch import Tensor

from smoothcert.noise import Noise
from smoothcert.sampling.batches import Source
from smoothcert.types import Votes


@dataclass(frozen=True)
class Draw:
    """A request for votes: copies ``start`` … ``start + n − 1`` of a stage.

    Attributes:
        most: How many copies of the stage may be requested in total if the next request continues this one; idle rows
            of a batch are then used to draw ahead.
        source: The number of the source among those of the job.
        deadline: Given only if fewer votes are enough: the time of ``time.monotonic()`` after which, and also after
            :attr:`Job.stopped`, the request is answered with the votes drawn so far. These are the first of the stage,
            at least one, and fewer than ``n`` only if no more are drawn. Infinite if only ``stopped`` ends the request.
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
        sources: The classifiers that the procedure may sample, already in evaluation mode; it starts with the first.
        seed: The seed of the noise.
        noise: The noise; that of the source by default.
        priority: Jobs with a higher priority are served first; among these, those with an earlier deadline.
        progress: Called in the thread of the loop with the votes of the current stage whenever some have arrived.
        stopped: Whether to answer with the votes so far, where the procedure allows it; any thread may set it.
        dropped: Whether to leave without an answer; any thread may set it.
        seconds: The time spent on the input so far: its share of every batch it was in.
        drawn: Its noisy copies so far, including those drawn ahead.
        deferred: Those that the first members of a consensus left undecided; None without a consensus.
        place: Its place among the inputs, from 0.
    """

    index: int
    x: Tensor
    steps: Steps[Answer]
    sources: Sequence[Source]
    seed: int
    noise: Noise | None = None
    priority: float = 0.0
    progress: Callable[[Votes], None] | None = None
    stopped: bool = False
    dropped: bool = False
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

    def due(self, request: Draw) -> float:
        """Return when a request of this job must be answered, by ``time.monotonic()``."""
        if request.deadline is None:
            return math.inf
        return -math.inf if self.stopped else request.deadline

    def rank(self, request: Draw) -> tuple[float, float]:
        """Return the place of a request of this job in the order of service; the smallest is served first."""
        due = self.due(request)
        return (due if due == -math.inf else -self.priority), due


@dataclass(frozen=True)
class Failure:
    """The answer to a job of a :class:`Queue` that an error ended."""

    error: Exception


class Feed(ABC, Generic[Answer]):
    """Where the sampling loop takes its jobs from.

    Attributes:
        live: Whether jobs come in while others run: an error then ends only the jobs that it concerns, and batches are
            kept short so that urgent jobs need not wait.
    """

    live = False

    @abstractmethod
    def take(self) -> Job[Answer] | None:
        """Return the next job; None if none waits now."""

    @property
    @abstractmethod
    def drained(self) -> bool:
        """Whether no job waits now."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether no job will come."""

    @property
    def rank(self) -> tuple[float, float] | None:
        """The rank of the next job, if it may overtake those that run."""
        return None

    def prepare(self, job: Job[Answer]) -> None:
        """Make a job that was taken ready to run."""

    def wait(self) -> None:
        """Wait until a job waits or none will come; called when no other work is left."""


class Listed(Feed[Answer]):
    """The jobs of an iterator, which are taken as there is room.

    Attributes:
        error: The error that ended the iterator.
    """

    def __init__(self, jobs: Iterator[Job[Answer]]) -> None:
        self._jobs = jobs
        self._ended = False
        self.error: Exception | None = None

    def take(self) -> Job[Answer] | None:
        if not self._ended:
            try:
                return next(self._jobs)
            except StopIteration:
                self._ended = True
            except Exception as error:
                self._ended, self.error = True, error
        return None

    @property
    def drained(self) -> bool:
        return self._ended

    @property
    def ended(self) -> bool:
        return self._ended


class Queue(Feed[Answer]):
    """Jobs that other threads add while the loop runs, most urgent first.

    Args:
        prepare: Called in the thread of the loop with each job that is taken; sets its sources.
    """

    live = True

    def __init__(self, prepare: Callable[[Job[Answer]], None] | None = None) -> None:
        self._prepare = prepare
        self._changed = threading.Condition()
        self._heap: list[tuple[tuple[float, float], int, list[Job[Answer]]]] = []
        self._waiting: dict[Job[Answer], list[Job[Answer]]] = {}
        self._number = count()
        self._closed = False
        self._idle, self._idle_since = 0.0, math.inf

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: Job[Answer]) -> bool:
        """Add a job; return False if the queue is closed."""
        with self._changed:
            if not self._closed:
                self._push(job)
                self._changed.notify()
            return not self._closed

    def stop(self, job: Job[Answer]) -> None:
        """Answer a job with the votes so far; one that waits goes to the front, for at least one vote."""
        with self._changed:
            job.stopped = True
            if self._remove(job):
                self._push(job)

    def drop(self, job: Job[Answer]) -> None:
        """Let a job leave without an answer."""
        with self._changed:
            job.dropped = True
            self._remove(job)

    def close(self) -> None:
        """Accept no more jobs."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self) -> Job[Answer] | None:
        with self._changed:
            if not self._heap:
                return None
            job = heappop(self._heap)[2][0]
            del self._waiting[job]
            self._clean()
            return job

    def peek(self) -> Job[Answer] | None:
        """Return the job that :meth:`take` would return, and leave it."""
        with self._changed:
            return self._heap[0][2][0] if self._heap else None

    @property
    def drained(self) -> bool:
        return not self._waiting

    @property
    def ended(self) -> bool:
        with self._changed:
            return self._closed and not self._waiting

    @property
    def rank(self) -> tuple[float, float] | None:
        with self._changed:
            return self._heap[0][0] if self._heap else None

    def prepare(self, job: Job[Answer]) -> None:
        if self._prepare is not None:
            self._prepare(job)

    def wait(self) -> None:
        with self._changed:
            self._idle_since = time.monotonic()
            self._changed.wait_for(lambda: self._closed or bool(self._waiting))
            self._idle, self._idle_since = self.idle, math.inf

    @property
    def idle(self) -> float:
        """The seconds for which the loop had nothing to do."""
        with self._changed:
            return self._idle + max(time.monotonic() - self._idle_since, 0.0)

    def _push(self, job: Job[Answer]) -> None:
        self._waiting[job] = [job]
        heappush(self._heap, (job.rank(job.begin()), next(self._number), self._waiting[job]))

    def _remove(self, job: Job[Answer]) -> bool:
        entry = self._waiting.pop(job, None)
        if entry is not None:
            entry.clear()
            self._clean()
        return entry is not None

    def _clean(self) -> None:
        """Drop removed jobs from the front, and all once they are the larger part."""
        if len(self._heap) > 2 * len(self._waiting) + 16:
            self._heap = sorted(each for each in self._heap if each[2])
        while self._heap and not self._heap[0][2]:
            heappop(self._heap)
