"""An ensemble whose members live in different processes of a cluster, for one that is too large for each of them.

What travels is small: every process draws the noise itself, as it follows from (seed, input, stage, number), and gives
back logits.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from smoothcert.classifiers.ensemble import VOTES, Ensemble
from smoothcert.noise import invalid_rows
from smoothcert.sampling.copies import Copies, NoisyCopies
from smoothcert.sampling.ray import Cluster, own_error
from smoothcert.sampling.runtimes import Runtime, prepare
from smoothcert.sampling.shipping import Packed, pack, unpack
from smoothcert.sampling.tuning import intra_op_threads
from smoothcert.types import SmoothcertError, UsageError

BATCHES = 8
"""How many batches of a member are asked for at once, as a message takes time."""

_TRIES = 3  # workers that may be lost with the same members


@contextmanager
def spread(
    cluster: Cluster, model: Any, x: Tensor, *, like: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[Runtime]:
    """Share the members of an ensemble out among workers.

    Args:
        cluster: The cluster; as many workers as it says, or one for each member.
        model: The ensemble.
        x: An input.
        like: How members ran in an earlier session (``Runtime.settings()``), to be run so again.
        options: How members are run, as for :func:`smoothcert.sampling.runtimes.prepare`.

    Yields:
        A runtime of the ensemble, whose votes are those of the ensemble in one process; how each member runs is in its
        notes, as ``member``.

    Raises:
        UsageError: If the model has no members to share out.
    """
    require_members(model)
    with cluster.connected() as ray:
        team = _Members(ray, cluster, model, x, like, options)
        try:
            yield team.runtime()
        finally:
            team.dismiss()


def require_members(model: Any) -> None:
    """Refuse a model that has no members to share out.

    Raises:
        UsageError: If it has none.
    """
    if type(model) is not Ensemble or len(model.members) < 2:
        raise UsageError(
            "only the members of an ensemble can be spread over workers; name several models, without a consensus."
        )


class _Members:
    """The workers that hold the members: asked all together, and replaced when lost."""

    def __init__(
        self,
        ray: Any,
        cluster: Cluster,
        model: Ensemble,
        x: Tensor,
        like: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        self._ray, self._cluster, self._model, self._x = ray, cluster, model, x
        self._actor = ray.remote(num_cpus=cluster.cpus, num_gpus=cluster.gpus)(_Holder)
        count = min(cluster.workers or cluster.room(ray), len(model.members))
        self._shares = [list(range(len(model.members)))[number::count] for number in range(count)]
        self._packed = [
            ray.put(pack([model.members[place] for place in share], ray.cloudpickle.Pickler)) for share in self._shares
        ]
        self._options = dict(options)
        self._settings: Mapping[str, Any] | None = like
        self._lock = threading.Lock()
        self._lost = [0] * count
        self._holders: list[Any] = []
        for number in range(count):
            holder, self._settings = self._begin(number)
            self._holders.append(holder)

    def runtime(self) -> Runtime:
        assert self._settings is not None
        size = self._settings["batch_size"] * BATCHES
        threads, workers = torch.get_num_threads(), len(self._holders) + 1  # so that a message waits for each of them
        notes = {"member": self._settings}
        return Runtime("spread", self._model, size, threads, workers, notes, elsewhere=self.logits)

    def logits(self, parts: Sequence[Copies]) -> Tensor:
        """The vote of all members on what is in a batch."""
        message = self._ray.put(list(parts))
        calls = [(holder, holder.logits.remote(message)) for holder in self._holders]
        found: dict[int, Tensor] = {}
        for number, (holder, call) in enumerate(calls):
            for place, given in zip(self._shares[number], self._answer(number, holder, call, message), strict=True):
                found[place] = torch.from_numpy(np.array(given)).to(self._x.device)
        return VOTES[self._model.vote]([found[place] for place in sorted(found)], self._model.shares)

    def dismiss(self) -> None:
        for holder in self._holders:
            self._ray.kill(holder, no_restart=True)

    def _answer(self, number: int, holder: Any, call: Any, message: Any) -> list[NDArray[np.float32]]:
        while True:
            try:
                return self._ray.get(call)  # type: ignore[no-any-return]
            except self._ray.exceptions.RayActorError:
                holder = self._replaced(number, holder)
                call = holder.logits.remote(message)
            except self._ray.exceptions.RayTaskError as error:
                raise own_error(error) from error

    def _replaced(self, number: int, holder: Any) -> Any:
        """Another worker with the members of a lost one; the same for all threads that lost it."""
        with self._lock:
            if self._holders[number] is holder:
                self._note_loss(number)
                self._holders[number], _ = self._begin(number)
            return self._holders[number]

    def _note_loss(self, number: int) -> None:
        self._lost[number] += 1
        if self._lost[number] >= _TRIES:
            raise SmoothcertError(
                f"{_TRIES} workers with the same members of the ensemble were lost; look at their memory."
            )
        warnings.warn("a worker was lost; its members go to another.", stacklevel=2)

    def _begin(self, number: int) -> tuple[Any, Mapping[str, Any]]:
        """A worker that is ready, and how its members run."""
        while True:
            holder = self._actor.remote(self._packed[number], self._cluster.cpus, self._cluster.device)
            try:
                return holder, self._ray.get(holder.begin.remote(self._x.cpu(), self._settings, self._options))
            except self._ray.exceptions.RayActorError:
                self._note_loss(number)
            except self._ray.exceptions.RayTaskError as error:
                raise own_error(error) from error


class _Holder:
    """A process of the cluster that holds some members."""

    def __init__(self, packed: Packed, cpus: int, device: str) -> None:
        torch.set_num_threads(cpus)
        self._members: list[nn.Module] = unpack(packed, device)
        self._device = device
        self._runtimes: list[Runtime] = []

    def begin(self, x: Tensor, like: Mapping[str, Any] | None, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make all members ready to run, each like the first one."""
        x = x.to(self._device)
        self._copies = NoisyCopies(x)
        for member in self._members:
            settings = {**options, "like": like} if like else dict(options)
            self._runtimes.append(prepare(member, x, **settings))
            like = self._runtimes[0].settings()
        assert like is not None
        self._batch = x.new_empty((like["batch_size"] * BATCHES, *x.shape))
        return like

    def logits(self, parts: list[Copies]) -> list[NDArray[np.float32]]:
        """The logits of each member on what is in a batch."""
        rows = self._batch[: sum(part.n for part in parts)]
        runtime = self._runtimes[0]
        with torch.inference_mode(), intra_op_threads(runtime.threads):
            self._copies.draw(rows, [_moved(part, self._device) for part in parts])
            pieces, invalid = torch.split(rows, runtime.batch_size), invalid_rows(rows)[:, None]
            logits = (torch.cat([one.run(piece) for piece in pieces]) for one in self._runtimes)
            return [torch.where(invalid, torch.nan, given).cpu().numpy() for given in logits]


def _moved(part: Copies, device: str) -> Copies:
    place = (part.noise, part.seed, part.index, part.stage, part.start, part.n)
    return Copies(part.x.to(device), *place)
