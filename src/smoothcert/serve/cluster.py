"""The same service as several replicas on a Ray cluster, behind Ray Serve.

The driver, the process of the command, sends the loaded classifiers to the replicas once, as certification on a cluster
does. Each replica builds its service from them: its engines, its queue, its record. Seeds come from the operating
system of each replica, so no two requests share noise.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fastapi import FastAPI
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from smoothcert.evaluate.cluster import Cluster
from smoothcert.evaluate.cluster.pool import differing_versions, pack, unpack, versions
from smoothcert.serve.app import create_app
from smoothcert.serve.keys import Keys
from smoothcert.serve.record import Recorder
from smoothcert.serve.run import LOOPBACK, exposed, listen
from smoothcert.serve.service import Served, Service
from smoothcert.serve.settings import Replicas, ServiceSettings
from smoothcert.types import SmoothcertError, UsageError

APPLICATION = "smoothcert"
_DEPLOYMENT = "Replica"
_WAITING = 64  # requests that may send their body to a replica in addition to those in its queue
_CHECK_SECONDS, _CHECK_TIMEOUT = 2.0, 10.0  # between health checks, and until a replica counts as lost
_DRAIN_SECONDS = 30
_METRICS_SECONDS = 2.0  # to wait for the metrics of the other replicas
_ROWS = 28  # bits of a row's number that count rows; the others are the replica's


@dataclass(frozen=True)
class Specification:
    """All that a replica needs to build the service."""

    served: tuple[Mapping[str, Any], ...]  # the arguments of each ``Served``
    settings: ServiceSettings
    keys: Keys
    record: Path | None
    record_inputs: bool

    @classmethod
    def of(cls, service: Service, keys: Keys) -> Specification:
        """Describe a service."""
        served = tuple(
            {
                "name": each.name,
                "smoothed": each.smoothed.for_workers(),
                "procedure": each.procedure,
                "shape": each.shape,
                "class_names": each.class_names,
                "facts": each.facts,
            }
            for each in service.served.values()
        )
        recorder = service.recorder
        record = None if recorder is None else recorder.path.absolute()
        return cls(served, service.settings, keys, record, recorder is not None and recorder.inputs)

    def build(self) -> Service:
        """Build the service of a replica; it records in a folder that no other replica has."""
        recorder = None
        if self.record is not None:
            replica = secrets.randbelow((1 << 53 - _ROWS) - 1) + 1  # numbers of rows stay below 2**53, for JSON
            folder = self.record / f"replica-{replica:08x}"
            recorder = Recorder(folder, self.record_inputs, first=replica << _ROWS)
        service = Service([Served(**each) for each in self.served], self.settings, recorder)
        if recorder is not None:
            recorder.open(service.served)
        return service


class Replica:
    """A deployment of Ray Serve: one process with the whole service."""

    def __init__(self, packed: list[Any], cpus: int, device: str, there: Mapping[str, str]) -> None:
        if mismatch := differing_versions(there):
            raise SmoothcertError(f"a replica has {mismatch}; install the same versions on all nodes.")
        torch.set_num_threads(cpus)
        ray: Any = importlib.import_module("ray")
        specification: Specification = unpack(ray.get(packed[0]), device)
        self._keys = specification.keys
        self._serve: Any = importlib.import_module("ray.serve")
        self._name: str = self._serve.get_replica_context().replica_id.unique_id
        self.service = specification.build()
        self.service.warm_up()

    def __serve_build_asgi_app__(self) -> FastAPI:
        return create_app(self.service, self._keys, metrics=self._all_metrics)

    def check_health(self) -> None:
        """Raise if the replica must be replaced."""
        if not self.service.alive:
            raise SmoothcertError("an engine has failed.")

    def metrics(self) -> tuple[str, str]:
        """Return the name of the replica and its metrics."""
        return self._name, self.service.metrics.text().decode()

    async def _all_metrics(self) -> bytes:
        """Return the metrics of all replicas that can be reached, each with its name as a label."""
        handle = self._serve.get_deployment_handle(_DEPLOYMENT, APPLICATION)
        try:
            found = dict(await asyncio.wait_for(handle.broadcast("metrics").results_async(), _METRICS_SECONDS))
        except Exception as error:  # another replica is lost or out of reach
            logging.getLogger("smoothcert.serve").warning("the metrics of other replicas are missing: %s", error)
            found = {}
        return labelled({**found, **dict([self.metrics()])})


def labelled(texts: Mapping[str, str]) -> bytes:
    """Join the metrics of several replicas; every sample is labelled with its replica."""
    joined: dict[str, Metric] = {}
    for replica, text in sorted(texts.items()):
        for family in text_string_to_metric_families(text):
            into = joined.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                into.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
    return generate_latest(SimpleNamespace(collect=lambda: iter(joined.values())))


def run_on_cluster(
    service: Service,
    cluster: Cluster,
    replicas: Replicas,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    keys: Keys | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve with replicas on a cluster until SIGTERM or Ctrl-C, then answer what was accepted.

    Args:
        service: The service, which is sent to the replicas and does not run in this process.
        cluster: The cluster, and the resources of a replica.
        replicas: How many replicas answer.
        host, port: The address to listen on, on the head node and on every node with a replica.
        keys: The API keys; the replicas get their hashes.
        announce: Called with sentences for the operator.

    Raises:
        UsageError: If the address cannot be used.
        SmoothcertError: If the replicas cannot start.
    """
    if cluster.address.startswith("ray://"):
        raise UsageError("serving needs a node of the cluster; run the command there, with --ray HOST:PORT.")
    if port == 0:
        raise UsageError("all replicas listen on the same port; give --port.")
    listen(host, port).close()
    if host not in LOOPBACK:
        announce(exposed(host, bool(keys)))
    os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")
    with cluster.connected() as ray, _interrupted_by_sigterm():
        try:
            serve: Any = importlib.import_module("ray.serve")
        except ImportError as error:
            raise UsageError('Ray Serve is not installed; pip install "smoothcert[serve-ray]".') from error
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        ours = not serve.status().proxies  # nobody else serves on this cluster
        packed = ray.put(pack(Specification.of(service, keys or Keys()), ray.cloudpickle))
        deployment = serve.deployment(serve.ingress()(Replica)).options(
            name=_DEPLOYMENT,
            ray_actor_options={"num_cpus": cluster.cpus, "num_gpus": cluster.gpus},
            max_ongoing_requests=service.settings.queue + _WAITING,  # the replica itself refuses, with 429
            max_queued_requests=service.settings.queue + _WAITING,
            health_check_period_s=_CHECK_SECONDS,
            health_check_timeout_s=_CHECK_TIMEOUT,
            graceful_shutdown_timeout_s=_DRAIN_SECONDS,
            graceful_shutdown_wait_loop_s=0.2,
            logging_config={"enable_access_log": False},
            **replicas.options(service.settings.queue),
        )
        bound = deployment.bind([packed], cluster.cpus, cluster.device, versions())
        try:
            try:
                serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
                serve.run(bound, name=APPLICATION, route_prefix="/")
            except RuntimeError as error:
                raise SmoothcertError(_failure(serve, error)) from error
            shown = f"[{host}]" if ":" in host else host
            names = ", ".join(service.served)
            announce(f"Serving {names} at http://{shown}:{port} (page at /, API at /docs).")
            _watch(serve, replicas, announce)
        except KeyboardInterrupt:
            announce("Shutting down after the accepted requests.")
        finally:
            serve.delete(APPLICATION)
            if ours:
                serve.shutdown()


def _watch(serve: Any, replicas: Replicas, announce: Callable[[str], None]) -> None:
    """Tell how many replicas answer whenever that changes."""
    before = replicas.least
    while True:
        time.sleep(_CHECK_SECONDS)
        states = serve.status().applications[APPLICATION].deployments[_DEPLOYMENT].replica_states
        now = states.get("RUNNING", 0)
        if now != before:
            missing = (
                f", of at least {replicas.least}; others start as soon as they fit" if now < replicas.least else ""
            )
            announce(f"{now} replica(s) answer{missing}.")
        before = now


def _failure(serve: Any, error: Exception) -> str:
    """Return why replicas did not start, in one sentence."""
    known = serve.status().applications.get(APPLICATION)
    messages = [] if known is None else [known.message, *(each.message for each in known.deployments.values())]
    lines = [line.strip() for text in (*messages, str(error)) for line in text.splitlines() if line.strip()]
    ours = next((line for line in lines if "SmoothcertError" in line or "UsageError" in line), None)
    reason = ours.partition("Error: ")[2] if ours else lines[-1]
    return f"the replicas could not start ({reason.rstrip('.')}); the same command without --ray shows more."


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
