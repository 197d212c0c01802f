"""The pool of workers: the driver leases inputs to the worker processes and collects their answers."""

from __future__ import annotations

import io
import math
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

import torch

from smoothcert.evaluate.cluster.connection import (
    TRIES,
    WAIT_SECONDS,
    Cluster,
    lost,
    waiting_for_room,
    worker_error,
)
from smoothcert.plugins import packages
from smoothcert.types import SmoothcertError

Item = tuple[int, Any]  # the index of an input, and the input or its answer

_REPORT_SECONDS = 0.5  # longest time between two reports of a worker that has answers
_AHEAD_SECONDS = 1.0  # work leased to a worker beyond its next report
_LARGEST_LEASE = 1000
_CALLS = 2  # per worker: one runs and one is queued, so the actor does not idle
_LOOK_SECONDS = 5.0  # how often to look for new nodes


class Work(Protocol):
    """The computation that a worker does for each input; sent to each worker once."""

    def begin(self, like: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Prepare on the worker, with the settings of the first worker or an earlier session, and return them."""
        ...

    def answers(self, inputs: Iterator[Item]) -> Iterator[Item]:
        """Answer inputs, in any order."""
        ...


def pack(value: Any, pickle_module: Any) -> bytes:
    """Serialize an object that holds models; later changes of the object do not reach the copy."""
    stream = io.BytesIO()
    torch.save(value, stream, pickle_module=pickle_module)
    return stream.getvalue()


def unpack(packed: bytes, device: str = "cpu") -> Any:
    """Restore an object that :func:`pack` of this program wrote, with all tensors on one device."""
    return torch.load(io.BytesIO(packed), map_location=device, weights_only=False)


@contextmanager
def worker_pool(
    cluster: Cluster, work: Work, inputs: int, *, like: Mapping[str, Any] | None = None
) -> Iterator[WorkerPool]:
    """Start workers for a number of inputs, yield the pool once one is ready, and stop all at the end of the block."""
    with cluster.connected() as ray:
        pool = WorkerPool(ray, cluster, ray.put(pack(work, ray.cloudpickle)), like)
        try:
            pool.begin(inputs)
            yield pool
        finally:
            pool.stop()


@dataclass(eq=False)
class _Member:
    """Driver-side state of a worker."""

    actor: Any
    leased: dict[int, Any] = field(default_factory=dict)
    calls: int = 0
    ready: bool = False
    since: float = 0.0
    answered: int = 0

    def wants(self, left: int, members: int) -> int:
        """Return how many inputs to lease: enough to keep the worker busy, fewer when few are left."""
        seconds = time.perf_counter() - self.since
        rate = self.answered / seconds if self.answered else 0.0
        ahead = max(2, math.ceil(rate * (_AHEAD_SECONDS + _REPORT_SECONDS)))
        largest = min(math.ceil(ahead / _CALLS), _LARGEST_LEASE)
        return max(min(ahead - len(self.leased), math.ceil(left / members), largest), 0)


class WorkerPool:
    """Leases inputs to workers, leases them again when a worker is lost, and adds workers as nodes join."""

    def __init__(self, ray: Any, cluster: Cluster, work: Any, like: Mapping[str, Any] | None) -> None:
        self.settings = like  # then those that the first worker has chosen
        self._ray, self._cluster, self._work = ray, cluster, work
        self._actor = cluster.actor(ray, Worker)
        self._members: list[_Member] = []
        self._calls: dict[Any, _Member] = {}
        self._failed_starts = 0
        self._agreed = False  # whether the first worker has chosen the settings of all
        self._looked = -math.inf
        self._idle_since: float | None = None

    @property
    def size(self) -> int:
        """The number of workers that are ready."""
        return sum(member.ready for member in self._members)

    def begin(self, inputs: int) -> None:
        """Start workers and wait for the first, which chooses the settings of all."""
        self._grow(inputs)
        while not self.size:
            list(self._reports())

    def run(self, inputs: Iterable[Item], count: int) -> Iterator[Item]:
        """Yield the answer of each of ``count`` inputs once it is reported; inputs are read as they are leased."""
        queue = _Queue(iter(inputs), count)
        while queue.left or any(member.leased for member in self._members):
            self._grow(queue.left)
            for member in self._members:
                while member.ready and member.calls < _CALLS:
                    lease = queue.take(member.wants(queue.left, max(self.size, 1)))
                    if not lease and (member.calls or not member.leased):
                        break
                    member.since = member.since or time.perf_counter()
                    member.leased |= lease
                    self._call(member, member.actor.step.remote(list(lease.items()), _REPORT_SECONDS))
            yield from self._reports(queue)
        if queue.error is not None:
            raise queue.error

    def stop(self) -> None:
        """Stop all workers."""
        for member in self._members:
            self._ray.kill(member.actor, no_restart=True)
        self._members, self._calls = [], {}

    def _start(self) -> None:
        self._members.append(_Member(self._actor.remote(self._work, self._cluster.cpus, self._cluster.device)))
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Let new workers begin: only one until it has chosen the settings, then all."""
        waiting = [member for member in self._members if not member.ready and not member.calls]
        first = not self._agreed and not any(member.calls for member in self._members)
        for member in waiting if self._agreed else waiting[: int(first)]:
            self._call(member, member.actor.begin.remote(self.settings, versions()))

    def _call(self, member: _Member, call: Any) -> None:
        self._calls[call] = member
        member.calls += 1

    def _grow(self, left: int) -> None:
        """Start more workers if they fit on the cluster and have something to do."""
        if time.perf_counter() - self._looked > _LOOK_SECONDS:
            self._looked = time.perf_counter()
            for _ in range(min(self._cluster.capacity(self._ray), left + self.size) - len(self._members)):
                self._start()

    def _reports(self, queue: _Queue | None = None) -> Iterator[Item]:
        """Wait for a report, at most a few seconds, and yield the answers of all reports."""
        ready, rest = self._ray.wait(list(self._calls), num_returns=1, timeout=_LOOK_SECONDS)
        ready += self._ray.wait(rest, num_returns=len(rest), timeout=0)[0] if rest else []
        self._warn_without_workers()
        for call in ready:
            member = self._calls.pop(call, None)
            if member is None:
                continue  # another call has shown already that this worker is lost
            try:
                report = self._ray.get(call)
            except lost(self._ray) as error:
                self._lose(member, queue, error)
                continue
            except self._ray.exceptions.RayTaskError as error:
                raise worker_error(error) from error
            member.calls -= 1
            if not member.ready:
                self.settings, mismatch = report
                if mismatch:
                    raise SmoothcertError(f"a worker has {mismatch}; install the same versions on all nodes.")
                member.ready, self._failed_starts, self._agreed = True, 0, True
                self._begin_waiting()
                continue
            done, problem = report
            for index, answer in done:
                del member.leased[index]
                member.answered += 1
                yield index, answer
            if problem is not None:
                raise problem

    def _lose(self, member: _Member, queue: _Queue | None, error: Exception) -> None:
        """Take back the inputs leased to a lost worker, and replace it."""
        self._members.remove(member)
        self._ray.kill(member.actor, no_restart=True)  # it may be out of reach only, and still run
        self._calls = {call: other for call, other in self._calls.items() if other is not member}
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if not member.ready:
            self._failed_starts += 1
            if self._failed_starts >= TRIES:
                raise SmoothcertError(
                    f"workers cannot start ({reason}); smoothcert must be installed on all nodes, in the same version."
                ) from error
        else:
            warnings.warn(f"a worker was lost; its {len(member.leased)} input(s) go to others.", stacklevel=2)
            if queue is not None:
                queue.put_back(member.leased, reason)
        self._looked = -math.inf
        if queue is None:
            self._start()
        self._begin_waiting()

    def _warn_without_workers(self) -> None:
        now = time.perf_counter()
        if self.size:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > WAIT_SECONDS:
            self._idle_since = math.inf
            warnings.warn(waiting_for_room(self._ray, self._cluster, self._agreed), stacklevel=2)


class _Queue:
    """Inputs to lease: first those of lost workers, then new ones."""

    def __init__(self, inputs: Iterator[Item], count: int) -> None:
        self._inputs, self._new = inputs, count
        self._back: deque[Item] = deque()
        self._losses: Counter[int] = Counter()
        self.error: Exception | None = None

    @property
    def left(self) -> int:
        return self._new + len(self._back)

    def take(self, most: int) -> dict[int, Any]:
        taken: dict[int, Any] = {}
        while len(taken) < most and self.left:
            if self._back:
                index, x = self._back.popleft()
            else:
                try:
                    index, x = next(self._inputs)
                except StopIteration:
                    self._new = 0
                    break
                except Exception as error:  # raised once the inputs before it are answered
                    self._new, self.error = 0, error
                    break
                self._new -= 1
            taken[index] = x
        return taken

    def put_back(self, leased: dict[int, Any], reason: str) -> None:
        self._losses.update(leased.keys())
        for index, x in reversed(leased.items()):
            if self._losses[index] >= TRIES:
                raise SmoothcertError(
                    f"{TRIES} workers were lost with input {index} ({reason}); check their memory, or run the same "
                    "command again without Ray."
                )
            self._back.appendleft((index, x))


class Worker:
    """A Ray actor that answers the inputs leased to it."""

    def __init__(self, packed: bytes, cpus: int, device: str) -> None:
        torch.set_num_threads(cpus)
        self._work: Work = unpack(packed, device)
        self._waiting: deque[Item] = deque()
        self._running: Iterator[Item] | None = None

    def begin(self, like: Mapping[str, Any] | None, there: Mapping[str, str]) -> tuple[Mapping[str, Any], str]:
        """Prepare the work; return its settings, and the versions that differ from the driver's."""
        mismatch = differing_versions(there)
        return ({} if mismatch else self._work.begin(like)), mismatch

    def step(self, inputs: list[Item], seconds: float) -> tuple[list[Item], SmoothcertError | None]:
        """Accept inputs and work until the time is over or no input waits; return the answers, and an error if any.

        The work pauses between two steps. The driver always keeps one more call queued, so the actor does not idle.
        """
        self._waiting.extend(inputs)
        done: list[Item] = []
        until = time.perf_counter() + seconds
        try:
            while self._running is not None or self._waiting:
                if self._running is None:
                    self._running = self._work.answers(self._leased())
                answer = next(self._running, None)
                if answer is None:
                    self._running = None
                    continue
                done.append(answer)
                if not self._waiting or time.perf_counter() >= until:
                    break
        except SmoothcertError as error:
            return done, error
        return done, None

    def _leased(self) -> Iterator[Item]:
        while self._waiting:
            yield self._waiting.popleft()


def versions() -> dict[str, str]:
    """Return the versions that must be the same on the driver and on all workers."""
    return {name: version(name) for name in ("smoothcert", "torch", "numpy", *packages())}


def differing_versions(there: Mapping[str, str]) -> str:
    """Return which versions here differ from those of the driver, as a phrase."""
    other = {name: here for name in there if (here := version(name)) != there[name]}
    return " and ".join(f"{name} {here}, not {there[name]}" for name, here in other.items())
