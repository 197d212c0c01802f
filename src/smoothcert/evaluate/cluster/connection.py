"""The settings of a Ray cluster and the connection to it."""

from __future__ import annotations

import importlib
import logging
import math
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from smoothcert.specifiers import imported_files
from smoothcert.types import SmoothcertError, UsageError

LOCAL = "local"  # the address of a cluster that is started on this machine for one run and stopped after it
WAIT_SECONDS = 60.0  # without a worker before the user is warned
TRIES = 3  # how many workers may be lost with the same input, with the same ensemble members, or while they start

# A connection that broke while the network was away must be noticed, or its calls are never answered. Ray looks after
# five minutes and gives up after seven; one minute is the shortest interval its servers accept. This is for the driver,
# and for a cluster that it starts; docs/cluster.md recommends it for all nodes.
KEEPALIVE = {"RAY_grpc_client_keepalive_time_ms": "60000", "RAY_grpc_client_keepalive_timeout_ms": "20000"}


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A Ray cluster and the resources to use.

    Args:
        address: ``"local"`` to start a cluster on this machine for this run, ``"auto"`` for a cluster that already
            runs on this machine, ``HOST:PORT`` of a head node, or ``ray://HOST:PORT`` from outside the cluster.
        workers: The number of workers; by default as many as fit, also when nodes join later.
        cpus: CPUs, and threads, of each worker.
        gpus: GPUs of each worker; a fraction lets several workers share one. 0 for workers on CPUs.
        spread: Whether each worker holds some members of an ensemble instead of all of them.
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
        """The device type of the workers; each type draws different noise."""
        return "cuda" if self.gpus else "cpu"

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Connect to the cluster, unless already connected, and yield the ``ray`` module."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
        os.environ.setdefault("RAY_worker_niceness", "0")  # same priority as this process
        for name, value in KEEPALIVE.items():
            os.environ.setdefault(name, value)
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise UsageError('Ray is not installed; pip install "smoothcert[ray]".') from error
        before = ray.is_initialized()
        if not before:
            self._connect(ray)
        with suppress(AttributeError):  # Ray prints lost workers to stdout, where tables go; we warn instead
            ray._private.worker.print_to_stdstream = lambda *_, **__: None
        for module in imported_files():  # workers may not have the file
            ray.cloudpickle.register_pickle_by_value(module)
        try:
            yield ray
        finally:
            if not before:
                ray.shutdown()

    def capacity(self, ray: Any) -> int:
        """Return how many workers fit on the nodes that are alive."""
        if self.workers is not None:
            return self.workers
        fit = 0
        for node in ray.nodes():
            if node["Alive"]:
                by_cpu = node["Resources"].get("CPU", 0) // self.cpus
                fit += int(min(by_cpu, node["Resources"].get("GPU", 0) // self.gpus) if self.gpus else by_cpu)
        return max(fit, 1)

    def actor(self, ray: Any, kind: type) -> Any:
        """Return a Ray actor class with the resources of a worker."""
        return ray.remote(num_cpus=self.cpus, num_gpus=self.gpus)(kind)

    def _connect(self, ray: Any) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            if found := re.fullmatch(r"(?:ray://)?(.+):([0-9]+)", self.address):  # Ray would retry for minutes
                socket.create_connection((found[1], int(found[2])), timeout=10).close()
            if self.address == LOCAL:
                cpus = max(os.cpu_count() or 1, (self.workers or 1) * self.cpus)
                options |= {"num_cpus": cpus, "include_dashboard": False}
            ray.init(self.address, **options)
        except (OSError, OverflowError, RuntimeError, ValueError, ImportError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise SmoothcertError(
                f"there is no Ray cluster at {self.address!r} ({reason}); start one with `ray start --head`, or leave "
                "the address out for one on this machine."
            ) from error


def lost(ray: Any) -> tuple[type[Exception], ...]:
    """Return the errors of a call whose worker, or whose answer on the worker's node, is lost."""
    return ray.exceptions.RayActorError, ray.exceptions.ObjectLostError


def waiting_for_room(ray: Any, cluster: Cluster, before: bool) -> str:
    """Return the warning that no worker runs, with what is missing; ``before``: whether one ran before."""
    gpus = f" and {cluster.gpus:g} GPU(s)" if cluster.gpus else ""
    nodes = ray.nodes()
    alive = {node["NodeManagerAddress"] for node in nodes if node["Alive"]}
    gone = sorted({node["NodeManagerAddress"] for node in nodes} - alive)
    and_gone = f", and the cluster has lost {' and '.join(gone)}" if gone else ""
    state = "no worker is left, and none could start again" if before else "no worker could start yet"
    return f"{state}; each needs {cluster.cpus} CPU(s){gpus}{and_gone}. Still waiting."


def worker_error(error: Any) -> Exception:
    """Return the error raised on a worker as it would have been raised in this process."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, SmoothcertError):
        return cause
    reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
    return SmoothcertError(f"a worker failed ({reason.strip()}); the same command without Ray shows more.")
