"""Answer requests as they come: many callers share the batches of one sampling loop in the background.

**Why an answer holds at any time.** A request may end by a deadline, by :meth:`Request.stop`, or with its budget, and
the moment may depend on anything: the clock, other requests, or the votes themselves, which ``progress`` shows. The
bounds of procedures that allow this are wrong for *any* number of votes with probability at most α
(:mod:`smoothcert.stats.sequential`, :mod:`smoothcert.stats.pairs`), so no choice of that number can make them wrong
more often. What counts is only that the votes are the first of the stage, all of them, which the sampling loop
ensures. This is true of each request alone: who submits an input again and again with fresh noise, until he likes the
answer, finds a false one with more than α.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import Any

from torch import Tensor

from smoothcert.certify.answering import Sampled, make_job
from smoothcert.certify.anytime import Anytime
from smoothcert.certify.base import Procedure, Task
from smoothcert.certify.batches import input_indices
from smoothcert.certify.cohen import Cohen
from smoothcert.certify.inputs import CheckedInput
from smoothcert.certify.replay import keep_draws, replay
from smoothcert.certify.runner import Ready, Runner
from smoothcert.certify.smoothed import Smoothed
from smoothcert.classifiers.agreement import first_line
from smoothcert.classifiers.copying import Forward
from smoothcert.sampling import Failure, Job, Pool, Queue, Source, Statistic
from smoothcert.sampling.seeds import fresh_seed
from smoothcert.types import Certificate, SmoothcertError, UsageError, Votes

_SHAPES = 32  # prepared classifiers that are kept: for each statistic and shape of inputs
_EXIT_SECONDS = 10.0  # to wait for the last batch when Python ends
_RATE_SECONDS, _RATE_MARKS = 0.5, 20  # the rate is that of the last ten busy seconds

_LOG = logging.getLogger(__name__)


class Request(Future[Any]):
    """The future answer to an input: a ``Certificate``, or a ``Prediction``.

    :meth:`cancel` works until the answer is there, and frees the place of the request at once.

    Attributes:
        procedure: The procedure, with its deadline; that of a router covers the choice too.
        noise: The noise, which may be chosen for the input.
        draws: The votes so far, with the request of the procedure for each part; see ``certify.replay``.
        started: When the request left the queue, by ``time.monotonic()``; None before.
    """

    def __init__(self, engine: Engine, job: Job[Any], procedure: Procedure, task: Task, predict: bool) -> None:
        super().__init__()
        self.procedure, self.noise, self.draws = procedure, task.noise, keep_draws(job)
        self.started: float | None = None
        self._task = None if predict else task
        self._engine: Engine | None = engine  # which runs at least until the answer is there
        self._job: Job[Any] | None = job
        self._sampled: Sampled | None = None

    def stop(self) -> None:
        """Ask for the answer that the votes so far prove, at most one small batch later; see the module.

        Raises:
            UsageError: If the procedure proves nothing before its last sample.
        """
        job, engine = self._job, self._engine
        if job is None or engine is None:
            return
        if job.begin().deadline is None:
            raise UsageError(
                f"this request for {self.procedure.name} cannot be stopped, because it proves nothing before its last "
                "sample; use anytime with a target radius or a deadline, or cancel it."
            )
        engine._service.queue.stop(job)

    def cancel(self) -> bool:
        """Drop the request; return False if it has been answered."""
        job, engine = self._job, self._engine
        if not super().cancel():
            return False
        if job is not None and engine is not None:
            engine._service.drop(job)
        return True

    def so_far(self) -> Certificate | None:
        """Return the certificate that the votes so far prove, as :meth:`stop` would; None if they prove nothing yet."""
        if self._task is None:
            return None
        try:
            return replay(self.procedure.certify(self._task), list(self.draws), stop=True)
        except UsageError:  # nothing is proved before more votes
            return None

    def _release(self) -> None:
        self._job = self._engine = self._sampled = None


class Engine:
    """Answers requests from any thread, in batches that they share, in one thread in the background.

    It serves the classifier as it was when the engine was made: later changes of the module do not matter. Only a model
    that cannot be copied, such as a function, must not change; if it does, all later requests fail.

    Each answer equals the one of :meth:`Smoothed.certify` with the same seed and index, apart from when a deadline or
    :meth:`Request.stop` ends it. If the model raises an error, the requests with noisy copies in that batch fail with
    it, and the engine goes on.

    Args:
        smoothed: The smoothed classifier; without a memory, whose answers depend on their order.
        samples: About how many noisy copies will be drawn; the time for benchmarking runtimes, at the first input of a
            shape, is proportional to it.

    Raises:
        UsageError: If the classifier has a memory, or cannot be sealed.

    Example:
        >>> import torch
        >>> from smoothcert import Gaussian
        >>> smoothed = Smoothed(torch.nn.Linear(4, 2), Gaussian(0.5))
        >>> with Engine(smoothed) as engine:
        ...     requests = [engine.submit(torch.full((4,), 0.5), Cohen(1_000)) for _ in range(3)]
        ...     [request.result().n for request in requests]
        [1000, 1000, 1000]
    """

    def __init__(self, smoothed: Smoothed, *, samples: int = 100_000) -> None:
        if smoothed.memory is not None:
            raise UsageError(
                "an engine answers in any order, but the answers of a memory depend on it; use Smoothed.certify, or a "
                "classifier without a memory."
            )
        self._service = _Service(smoothed.frozen(), samples)
        self._checking = threading.Lock()
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._service.run, name="smoothcert engine", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _end, self._service, self._thread, self._process)

    def submit(
        self,
        x: Any,
        procedure: Procedure | None = None,
        *,
        deadline: float | None = None,
        priority: float = 0,
        seed: int | None = None,
        index: int | None = None,
        progress: Callable[[Votes], None] | None = None,
        predict: bool = False,
    ) -> Request:
        """Ask for the certificate of one input; return at once.

        The input and the settings of the procedure are checked here, in the thread of the caller, which also chooses
        σ and calls a core where the classifier has them. The first input of a new shape is classified some times.

        Args:
            x: One input, without a batch dimension.
            procedure: How to certify; that of the classifier by default, as for :meth:`Smoothed.certify`.
            deadline: Seconds from this call after which the answer is what the votes so far prove, at most one small
                batch later; only for procedures that prove something at any time.
            priority: Requests with a higher priority are served first; among equals, those with an earlier deadline,
                and then the older ones.
            seed, index: As for :meth:`Smoothed.certify`.
            progress: Called from the engine's thread with the votes of the current stage whenever some have arrived. It
                must return at once. If it raises, the error is logged and it is not called again.
            predict: Whether to ask for a prediction instead, as :meth:`Smoothed.predict` does.

        Raises:
            UsageError: If an argument is invalid, or the engine is closed or belongs to another process.
            SmoothcertError: If the engine has failed.
        """
        began = time.monotonic()
        service, smoothed = self._service, self._service.smoothed
        if os.getpid() != self._process:
            raise UsageError("the engine belongs to another process; make one in this process.")
        service.require_open()
        if not (isinstance(priority, (int, float)) and math.isfinite(priority)):
            raise UsageError(f"the priority must be a finite number, got {priority!r}.")
        procedure = procedure or smoothed.procedure or (Anytime(n_max=1_000) if predict else Cohen())
        if deadline is not None:
            procedure = procedure.within(deadline)
        procedure, sealed = smoothed.sealed_procedure(procedure), smoothed.sealed()
        steps, seed = procedure.predict if predict else procedure.certify, fresh_seed() if seed is None else seed
        with self._checking:  # the number of classes is that of the last input checked
            checked = CheckedInput(smoothed.checked(sealed, x), sealed)
            (number,) = input_indices([x], index, True)
            job: Job[Any] = make_job(smoothed, sealed, number, checked, steps, seed, began)
        job.priority = priority
        job.progress = None if progress is None else _logged(progress)
        task = smoothed.task(number, checked.tensor, job.noise or smoothed.noise, seed, began)
        request = Request(self, job, procedure, task, predict)
        service.add(job, request)
        return request

    async def certify(self, x: Any, procedure: Procedure | None = None, **options: Any) -> Any:
        """Submit an input and await its answer; the arguments are those of :meth:`submit`."""
        return await asyncio.wrap_future(self.submit(x, procedure, **options))

    @property
    def alive(self) -> bool:
        """Whether the engine answers requests."""
        return self._thread.is_alive() and not self._service.failed

    def statistics(self) -> dict[str, float]:
        """Return plain numbers.

        ``pending`` requests wait for their first batch and ``running`` ones for others; ``answered``, ``failed`` and
        ``cancelled`` ones are done. ``samples`` are those of the answers. ``rows`` noisy copies were classified in
        batches with room for ``capacity``, at a ``rate`` per second in the last busy seconds. ``busy`` is the number of
        seconds with something to do.
        """
        return self._service.statistics()

    def close(self, drain: bool = True) -> None:
        """Accept no more requests, and wait for the thread to end.

        Args:
            drain: Whether to answer all requests before; otherwise they fail, at most one batch later.
        """
        if os.getpid() != self._process:
            return
        self._service.close(drain)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(drain=kind is None)


class _Service:
    """What the thread of an engine works on; it does not keep the engine itself alive."""

    def __init__(self, smoothed: Smoothed, samples: int) -> None:
        self.smoothed, self._samples = smoothed, samples
        self.queue: Queue[Any] = Queue(self._prepare)
        self._requests: dict[Job[Any], Request] = {}  # without an answer
        self._ready: OrderedDict[tuple[Any, ...], Ready] = OrderedDict()
        self._pool: Pool | None = None
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(("submitted", "answered", "failed", "cancelled", "samples"), 0)
        self._began = time.monotonic()
        self._marks: deque[tuple[float, int]] = deque([(0.0, 0)], maxlen=_RATE_MARKS)
        self._closed = False
        self._error: BaseException | None = None

    def run(self) -> None:
        """Answer requests until the queue is closed."""
        try:
            self._pool = self._first_pool()
            if self._pool is not None:
                for job, answer in self._pool.serve(self.queue):
                    self._finish(job, answer)
        except BaseException as error:
            self._error = error
            if "cannot schedule new futures" not in str(error):  # Python ends, and with it the threads of the pool
                _LOG.exception("the engine has failed")
        finally:
            self.close(drain=False)

    @property
    def failed(self) -> bool:
        return self._error is not None

    def require_open(self) -> None:
        if self._error is not None:
            raise SmoothcertError(f"the engine has failed ({first_line(self._error)}); make another one.")
        if self._closed:
            raise UsageError("the engine is closed; make another one.")

    def add(self, job: Job[Any], request: Request) -> None:
        self._requests[job] = request
        if not self.queue.add(job):
            self._requests.pop(job, None)
            self.require_open()
            raise UsageError("the engine is closed; make another one.")
        self._count("submitted")

    def drop(self, job: Job[Any]) -> None:
        """Let a cancelled request leave."""
        self.queue.drop(job)
        request = self._requests.pop(job, None)
        if request is not None:
            self._count("cancelled")
            request._release()
            request.set_running_or_notify_cancel()

    def close(self, drain: bool) -> None:
        self._closed = True
        self.queue.close()
        if drain:
            return
        for job in list(self._requests):
            self.queue.drop(job)
            if request := self._requests.pop(job, None):
                self._answer(request, SmoothcertError("the engine was closed before the answer; ask another one."))

    def statistics(self) -> dict[str, float]:
        busy, rows, pool = self._busy(), self._rows, self._pool or Pool()
        before, first = self._marks[0]
        return {
            "pending": len(self.queue),
            "running": pool.running,
            **self._counts,
            "rows": rows,
            "capacity": pool.capacity,
            "busy": busy,
            "rate": (rows - first) / (busy - before) if busy > before else 0.0,
        }

    def _first_pool(self) -> Pool | None:
        """Return a pool whose workers suit the first request; None if the queue is closed before."""
        while not self.queue.ended:
            self.queue.wait()
            job = self.queue.peek()
            if job is None:
                continue
            try:
                sampled = self._sampled(job)
            except Exception as error:
                self.queue.drop(job)
                self._finish(job, Failure(error))
                continue
            self._marks[0] = self._busy(), 0
            return Pool(sampled.workers, sampled.threads)
        return None

    def _prepare(self, job: Job[Any]) -> None:
        """Give a job that is about to run its sources."""
        self._sampled(job)

    def _sampled(self, job: Job[Any]) -> Sampled:
        request = self._requests.get(job)
        if request is None:
            raise CancelledError
        procedure, smoothed = request.procedure, self.smoothed
        asked = smoothed.sampled(procedure)
        ready = [self._ready_for(runner, counted, job.x) for runner, counted in asked]
        request._sampled = sampled = Sampled(ready, procedure.cores)
        job.sources, request.started = sampled.sources, time.monotonic()
        return sampled

    def _ready_for(self, runner: Runner, statistics: tuple[Statistic, ...], x: Tensor) -> Ready:
        """Prepare a classifier once for inputs of a shape, so that requests share batches."""
        key = (runner, statistics, x.shape, x.dtype)
        if key not in self._ready:
            ready = runner.ready(runner.sealed(), x, statistics, self._samples)
            if self._pool is not None and ready.runtime.workers < self._pool.workers:
                ready = replace(ready, source=_limited(ready.source, ready.runtime.workers))
            self._ready[key] = ready
            if len(self._ready) > _SHAPES:
                self._ready.popitem(last=False)
        self._ready.move_to_end(key)
        return self._ready[key]

    def _finish(self, job: Job[Any], answer: Any) -> None:
        request = self._requests.pop(job, None)
        if request is None:
            return  # cancelled
        if not isinstance(answer, Failure):
            assert request._sampled is not None
            try:
                answer = request._sampled.stamped(self.smoothed, job, answer)
            except Exception as error:
                answer = Failure(error)
        self._answer(request, _explained(answer.error) if isinstance(answer, Failure) else answer)
        busy = self._busy()
        if busy - self._marks[-1][0] >= _RATE_SECONDS:
            self._marks.append((busy, self._rows))

    def _answer(self, request: Request, answer: Any) -> None:
        """Set the result or error of a request that is not among the others any more."""
        request._release()
        failed = isinstance(answer, Exception)
        if not request.set_running_or_notify_cancel():
            self._count("cancelled")
        elif failed:
            self._count("failed")
            request.set_exception(answer)
        else:
            self._count("answered")
            self._count("samples", answer.samples)
            request.set_result(answer)

    def _count(self, name: str, number: int = 1) -> None:
        with self._lock:
            self._counts[name] += number

    def _busy(self) -> float:
        return time.monotonic() - self._began - self.queue.idle

    @property
    def _rows(self) -> int:
        return 0 if self._pool is None else self._pool.rows


def _end(service: _Service, thread: threading.Thread, process: int) -> None:
    """Stop the thread of an engine that is not used any more, or when Python ends."""
    if os.getpid() != process:
        return  # a fork has no such thread
    service.close(drain=False)
    if threading.current_thread() is not thread:
        thread.join(_EXIT_SECONDS)


def _limited(source: Source, workers: int) -> Source:
    """Return a source that fewer threads may run at the same time than the pool has."""
    free = threading.Semaphore(workers)

    def limited(run: Forward) -> Forward:
        def one_of_few(batch: Tensor) -> Tensor:
            with free:
                return run(batch)

        return one_of_few

    cascade = None if source.cascade is None else replace(source.cascade, rest=limited(source.cascade.rest))
    return replace(source, classifier=limited(source.classifier), cascade=cascade)


def _logged(progress: Callable[[Votes], None]) -> Callable[[Votes], None]:
    """Return a callback whose first error is logged, after which it is not called again."""
    wanted = True

    def call(votes: Votes) -> None:
        nonlocal wanted
        if wanted:
            try:
                progress(votes)
            except Exception:
                wanted = False
                _LOG.exception("a progress callback failed and is not called again")

    return call


def _explained(error: Exception) -> Exception:
    """Return an error for one request, since threads must not raise the same object."""
    if isinstance(error, SmoothcertError):
        own: Exception = copy.copy(error)
    else:
        own = SmoothcertError(
            f"the answer could not be computed ({first_line(error)}); correct the model or the procedure."
        )
    own.__cause__ = error
    return own
