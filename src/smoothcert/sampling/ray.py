"""The same work over a Ray cluster: workers hold the classifier, and inputs are leased to them a few at a time."""

from __future__ import annotations

import importlib
import logging
import math
import os
import re
import socket
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from smoothcert.sampling.leases import TRIES, Item, Queue, Work, Worker, versions
from smoothcert.sampling.shipping import pack
from smoothcert.types import SmoothcertError, UsageError

LOCAL = "local"
"""The address of a cluster that is started on this machine for one run, and ends with it."""

_REPORT_SECONDS = 0.5  # how often a worker reports, if it has anything to report
_AHEAD_SECONDS = 1.0  # how much work a worker is leased beyond what it reports next
_LARGEST_LEASE = 1000
_CALLS = 2  # per worker, so that the next one waits there when one ends
_LOOK_SECONDS = 5.0  # how often to look for new nodes
_WAIT_SECONDS = 60.0  # without any worker, after which the user is told


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Ray cluster and what is taken of it.

    Args:
        address: ``"local"`` for one on this machine that ends with the run, ``"auto"`` for one that runs on this
            machine already, ``HOST:PORT`` of its head node, or ``ray://HOST:PORT`` from a machine outside it.
        workers: How many workers; as many as the cluster has room for when not given, also when nodes join later.
        cpus: CPUs of each worker; as many threads it uses.
        gpus: GPUs of each worker; a fraction lets several share one. Without, workers run on CPUs.
        spread: Whether each worker holds some members of an ensemble, instead of all of them.

    Raises:
        UsageError: If a number is out of range.
    """

    address: str = LOCAL
    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    spread: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"a cluster needs at least one worker, got {self.workers}.")
        if self.cpus < 1:
            raise UsageError(f"a worker needs at least one CPU, got {self.cpus}.")
        if not (0 <= self.gpus < math.inf) or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise UsageError(f"GPUs of a worker must be a fraction of one, or a whole number of them; got {self.gpus}.")

    @property
    def device(self) -> str:
        """The kind of device that workers compute on; noise is different on each."""
        return "cuda" if self.gpus else "cpu"

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """The ``ray`` module, connected; what was not connected before is not so afterwards.

        Raises:
            UsageError: If Ray is not installed.
            SmoothcertError: If there is no cluster at the address.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
        os.environ.setdefault("RAY_worker_niceness", "0")  # of a cluster started here: as eager as this process
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise UsageError('Ray is not installed; pip install "smoothcert[ray]".') from error
        before = ray.is_initialized()
        if not before:
            self._knock()
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
            try:
                if self.address == LOCAL:
                    most = max(os.cpu_count() or 1, (self.workers or 1) * self.cpus)
                    ray.init("local", num_cpus=most, include_dashboard=False, **quiet)
                else:
                    ray.init(self.address, **quiet)
            except (ConnectionError, RuntimeError, ValueError, ImportError) as error:
                raise self._absent(error) from error
        with suppress(AttributeError):  # it would print a lost worker on stdout, where tables go; we tell it ourselves
            ray._private.worker.print_to_stdstream = lambda *_, **__: None
        try:
            yield ray
        finally:
            if not before:
                ray.shutdown()

    def _knock(self) -> None:
        """Make sure that somebody listens at the address: Ray itself would try for minutes."""
        found = re.fullmatch(r"(?:ray://)?(.+):([0-9]+)", self.address)
        if found:
            try:
                socket.create_connection((found[1], int(found[2])), timeout=10).close()
            except (OSError, OverflowError) as error:
                raise self._absent(error) from error

    def _absent(self, error: Exception) -> SmoothcertError:
        reason = str(error).strip().partition("\n")[0]
        return SmoothcertError(
            f"there is no Ray cluster at {self.address!r} ({reason}); start one with `ray start --head`, or leave the "
            "address out for one on this machine."
        )

    @contextmanager
    def team(self, work: Work, inputs: int, *, like: Mapping[str, Any] | None = None) -> Iterator[Team]:
        """Workers that do some work; the first of them has begun.

        Args:
            work: What they do.
            inputs: For how many inputs; there are no more workers than these.
            like: How an earlier session ran.

        Raises:
            SmoothcertError: What the work raises as it begins; or if workers cannot start, or are not like this one.
        """
        if self.spread:
            raise UsageError("only the members of an ensemble that certifies can be spread over workers.")
        with self.connected() as ray:
            team = Team(ray, self, ray.put(pack(work, ray.cloudpickle.Pickler)), like)
            try:
                team.begin(inputs)
                yield team
            finally:
                team.dismiss()

    def room(self, ray: Any) -> int:
        """How many workers the cluster's nodes have room for at present."""
        if self.workers is not None:
            return self.workers
        rooms = 0
        for node in ray.nodes():
            if node["Alive"]:
                by_cpu = node["Resources"].get("CPU", 0) // self.cpus
                rooms += int(min(by_cpu, node["Resources"].get("GPU", 0) // self.gpus) if self.gpus else by_cpu)
        return max(rooms, 1)


@dataclass(eq=False)
class _Member:
    """A worker as its employer sees it: what it was given, and what it gave back."""

    actor: Any
    leased: dict[int, Any] = field(default_factory=dict)
    calls: int = 0
    ready: bool = False
    since: float = 0.0
    answered: int = 0

    def wants(self, left: int, members: int) -> int:
        """How many inputs to lease to it: enough to keep it busy, and few where few are left."""
        seconds = time.perf_counter() - self.since
        rate = self.answered / seconds if self.answered else 0.0
        ahead = max(2, math.ceil(rate * (_AHEAD_SECONDS + _REPORT_SECONDS)))
        largest = min(math.ceil(ahead / _CALLS), _LARGEST_LEASE)
        return max(min(ahead - len(self.leased), math.ceil(left / members), largest), 0)


class Team:
    """Workers at work: leases inputs to them, takes back those of a lost one, and takes on others as they come.

    Args:
        ray: The ``ray`` module, connected.
        cluster: What is taken of the cluster.
        work: A reference to the packed work.
        like: How the work ran before.

    Attributes:
        settings: How the work runs, as its ``begin`` told.
        lost: How many workers were lost so far.
    """

    def __init__(self, ray: Any, cluster: Cluster, work: Any, like: Mapping[str, Any] | None) -> None:
        self.settings = like
        self.lost = 0
        self._ray, self._cluster, self._work = ray, cluster, work
        self._actor = ray.remote(num_cpus=cluster.cpus, num_gpus=cluster.gpus)(Worker)
        self._members: list[_Member] = []
        self._calls: dict[Any, _Member] = {}
        self._failed_starts = 0
        self._agreed = False  # whether the first worker has told how all are to run
        self._looked = -math.inf
        self._lonely_since: float | None = None

    @property
    def size(self) -> int:
        """How many workers are ready."""
        return sum(member.ready for member in self._members)

    def begin(self, inputs: int) -> None:
        """Take on workers, and wait for the first, which decides how all of them run."""
        self._grow(inputs)
        while not self.size:
            list(self._reports())

    def run(self, inputs: Iterable[Item], count: int) -> Iterator[Item]:
        """Have inputs answered.

        Args:
            inputs: The inputs; taken from the iterable as they are leased.
            count: How many there are.

        Yields:
            The answers, each as soon as it is reported.

        Raises:
            SmoothcertError: What the work raises; or if an input was with too many workers that were lost.
        """
        queue = Queue(iter(inputs), count)
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

    def dismiss(self) -> None:
        """Let all workers go."""
        for member in self._members:
            self._ray.kill(member.actor, no_restart=True)
        self._members, self._calls = [], {}

    def _take_on(self) -> None:
        """Start one more worker; it begins once it is known how, and is the first to begin if nobody else is."""
        self._members.append(_Member(self._actor.remote(self._work, self._cluster.cpus, self._cluster.device)))
        self._let_begin()

    def _let_begin(self) -> None:
        waiting = [member for member in self._members if not member.ready and not member.calls]
        first = not self._agreed and not any(member.calls for member in self._members)
        for member in waiting if self._agreed else waiting[: int(first)]:
            self._call(member, member.actor.begin.remote(self.settings, versions()))

    def _call(self, member: _Member, call: Any) -> None:
        self._calls[call] = member
        member.calls += 1

    def _grow(self, left: int) -> None:
        """Take on workers where there is room for more of them, and work."""
        if time.perf_counter() - self._looked > _LOOK_SECONDS:
            self._looked = time.perf_counter()
            for _ in range(min(self._cluster.room(self._ray), left + self.size) - len(self._members)):
                self._take_on()

    def _reports(self, queue: Queue | None = None) -> Iterator[Item]:
        """Wait until there is a report, or for a while, and take in all there are."""
        waiting = list(self._calls)
        ready, rest = self._ray.wait(waiting, num_returns=1, timeout=_LOOK_SECONDS)
        ready += self._ray.wait(rest, num_returns=len(rest), timeout=0)[0] if rest else []
        self._tell_if_lonely()
        for call in ready:
            member = self._calls.pop(call, None)
            if member is None:
                continue  # of a worker found lost by another call
            try:
                report = self._ray.get(call)
            except self._ray.exceptions.RayActorError as error:
                self._lose(member, queue, error)
                continue
            except self._ray.exceptions.RayTaskError as error:
                raise own_error(error) from error
            member.calls -= 1
            if not member.ready:
                self._welcome(member, report)
                continue
            done, problem = report
            for index, answer in done:
                del member.leased[index]
                member.answered += 1
                yield index, answer
            if problem is not None:
                raise problem

    def _welcome(self, member: _Member, report: tuple[Mapping[str, Any], str]) -> None:
        self.settings, mismatch = report
        if mismatch:
            raise SmoothcertError(f"a worker has {mismatch}; install the same versions on all nodes.")
        member.ready, self._failed_starts = True, 0
        self._agreed = True
        self._let_begin()

    def _lose(self, member: _Member, queue: Queue | None, error: Exception) -> None:
        """Take back what a lost worker was leased, and look for another one."""
        self._members.remove(member)
        self._calls = {call: other for call, other in self._calls.items() if other is not member}
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        if not member.ready:
            self._failed_starts += 1
            if self._failed_starts >= TRIES:
                raise SmoothcertError(
                    f"workers cannot start ({reason}); smoothcert must be installed on all nodes, in the same version."
                ) from error
        else:
            self.lost += 1
            warnings.warn(f"a worker was lost; its {len(member.leased)} input(s) go to others.", stacklevel=2)
            if queue is not None:
                queue.put_back(member.leased, reason)
        self._looked = -math.inf
        if queue is None:
            self._take_on()
        self._let_begin()

    def _tell_if_lonely(self) -> None:
        """Say so if no worker could start for long: whatever the cluster is short of, somebody must know."""
        now = time.perf_counter()
        if self.size:
            self._lonely_since = None
        elif self._lonely_since is None:
            self._lonely_since = now
        elif now - self._lonely_since > _WAIT_SECONDS:
            self._lonely_since = math.inf
            need = f"{self._cluster.cpus} CPU(s)" + (
                f" and {self._cluster.gpus:g} GPU(s)" if self._cluster.gpus else ""
            )
            warnings.warn(f"no worker could start yet; each needs {need}. Still waiting.", stacklevel=2)


def own_error(error: Any) -> Exception:
    """The error that was raised on a worker, as it would have been raised here."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, SmoothcertError):
        return cause
    reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
    return SmoothcertError(f"a worker failed ({reason.strip()}); the same command without Ray tells more.")
