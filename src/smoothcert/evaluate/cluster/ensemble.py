"""An ensemble whose members are shared between workers, for ensembles that do not fit on one worker.

Each worker draws the noise itself from (seed, input, stage, number) and returns logits, so messages are small.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from smoothcert.classifiers.ensemble import VOTES, Ensemble
from smoothcert.classifiers.modes import intra_op_threads
from smoothcert.evaluate.cluster.connection import (
    TRIES,
    WAIT_SECONDS,
    Cluster,
    lost,
    waiting_for_room,
    worker_error,
)
from smoothcert.evaluate.cluster.pool import pack, unpack
from smoothcert.noise import invalid_rows
from smoothcert.sampling.copies import Copies, NoisyCopies
from smoothcert.sampling.runtimes import Runtime, prepare
from smoothcert.types import SmoothcertError, UsageError

BATCHES = 8  # how many batches of a member one message requests


@contextmanager
def distributed_ensemble(
    cluster: Cluster, model: Any, x: Tensor, *, like: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[Runtime]:
    """Share the members of an ensemble between workers, by default one for each member.

    ``x`` is an input; ``like`` and ``options`` are those of :func:`smoothcert.sampling.runtimes.prepare`.

    Yields:
        A runtime of the ensemble with the same votes as in one process; ``notes["member"]`` has the members' settings.
    """
    require_members(model)
    with cluster.connected() as ray:
        members = _Members(ray, cluster, model, x, like, options)
        try:
            yield members.runtime()
        finally:
            members.stop()


def require_members(model: Any) -> None:
    """Refuse a model that has no members to share."""
    if type(model) is not Ensemble or len(model.members) < 2:
        raise UsageError(
            "only the members of an ensemble can be spread over workers; name several models, without a consensus."
        )


class _Members:
    """Driver-side state of the workers that hold the members. A lost worker is replaced."""

    def __init__(
        self,
        ray: Any,
        cluster: Cluster,
        model: Ensemble,
        x: Tensor,
        like: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        self._ray, self._cluster, self._model, self._x, self._options = ray, cluster, model, x, options
        self._actor = cluster.actor(ray, MemberWorker)
        count = min(cluster.capacity(ray), len(model.members))
        self._shares = [range(len(model.members))[number::count] for number in range(count)]
        self._packed = [
            ray.put(pack([model.members[place] for place in share], ray.cloudpickle)) for share in self._shares
        ]
        self._settings = like
        self._lock = threading.Lock()
        self._lost = [0] * count
        self._workers: list[Any] = []
        for number in range(count):
            worker, self._settings = self._start(number)
            self._workers.append(worker)

    def runtime(self) -> Runtime:
        assert self._settings is not None
        size = self._settings["batch_size"] * BATCHES
        threads, in_flight = torch.get_num_threads(), len(self._workers) + 1  # one message is queued for each worker
        notes = {"member": self._settings}
        return Runtime("spread", self._model, size, threads, in_flight, notes, elsewhere=self.logits)

    def logits(self, parts: Sequence[Copies]) -> Tensor:
        """Return the ensemble's logits on the noisy copies of a batch."""
        message = self._ray.put(list(parts))
        calls = [(worker, worker.logits.remote(message)) for worker in self._workers]
        found: dict[int, Tensor] = {}
        for number, (worker, call) in enumerate(calls):
            for place, given in zip(self._shares[number], self._answer(number, worker, call, message), strict=True):
                found[place] = torch.from_numpy(np.array(given)).to(self._x.device)
        return VOTES[self._model.vote]([found[place] for place in sorted(found)], self._model.shares)

    def stop(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker, no_restart=True)

    def _answer(self, number: int, worker: Any, call: Any, message: Any) -> list[NDArray[np.float32]]:
        while True:
            try:
                return self._ray.get(call)  # type: ignore[no-any-return]
            except lost(self._ray):
                with self._lock:  # several threads may find the same worker lost
                    if self._workers[number] is worker:
                        self._ray.kill(worker, no_restart=True)  # it may be out of reach only, and still run
                        self._count_loss(number)
                        self._workers[number], _ = self._start(number)
                    worker = self._workers[number]
                call = worker.logits.remote(message)
            except self._ray.exceptions.RayTaskError as error:
                raise worker_error(error) from error

    def _count_loss(self, number: int) -> None:
        self._lost[number] += 1
        if self._lost[number] >= TRIES:
            raise SmoothcertError(
                f"{TRIES} workers with the same members of the ensemble were lost; check their memory."
            )
        warnings.warn("a worker was lost; its members go to another.", stacklevel=2)

    def _start(self, number: int) -> tuple[Any, Mapping[str, Any]]:
        """Start a worker; return it and the settings of its members once it is ready."""
        while True:
            worker = self._actor.remote(self._packed[number], self._cluster.cpus, self._cluster.device)
            call = worker.begin.remote(self._x.cpu(), self._settings, self._options)
            if not self._ray.wait([call], timeout=WAIT_SECONDS)[0]:
                warnings.warn(waiting_for_room(self._ray, self._cluster, bool(self._lost[number])), stacklevel=2)
            try:
                return worker, self._ray.get(call)
            except lost(self._ray):
                self._ray.kill(worker, no_restart=True)
                self._count_loss(number)
            except self._ray.exceptions.RayTaskError as error:
                raise worker_error(error) from error


class MemberWorker:
    """A Ray actor that holds some members of an ensemble."""

    def __init__(self, packed: bytes, cpus: int, device: str) -> None:
        torch.set_num_threads(cpus)
        self._members: list[nn.Module] = unpack(packed, device)
        self._device = device
        self._runtimes: list[Runtime] = []

    def begin(self, x: Tensor, like: Mapping[str, Any] | None, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Prepare all members with the settings of the first, and return these."""
        x = x.to(self._device)
        self._copies = NoisyCopies(x)
        for member in self._members:
            self._runtimes.append(prepare(member, x, **options, like=like or None))
            like = self._runtimes[0].settings()
        assert like is not None
        self._batch = x.new_empty((like["batch_size"] * BATCHES, *x.shape))
        return like

    def logits(self, parts: list[Copies]) -> list[NDArray[np.float32]]:
        """Return the logits of each member on the noisy copies of a batch."""
        rows = self._batch[: sum(part.n for part in parts)]
        runtime = self._runtimes[0]
        with torch.inference_mode(), intra_op_threads(runtime.threads * runtime.workers):  # one batch at a time
            self._copies.draw(rows, [replace(part, x=part.x.to(self._device)) for part in parts])
            pieces, invalid = torch.split(rows, runtime.batch_size), invalid_rows(rows)[:, None]
            logits = (torch.cat([one.run(piece) for piece in pieces]) for one in self._runtimes)
            return [torch.where(invalid, torch.nan, given).cpu().numpy() for given in logits]
