"""The worker process of a cluster, and how work is sent to it."""

from __future__ import annotations

import io
import time
from collections import deque
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any, Protocol

import torch

from smoothcert.types import SmoothcertError

Item = tuple[int, Any]
"""The index of an input, and the input or its answer."""


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


class Worker:
    """A Ray actor that answers the inputs leased to it."""

    def __init__(self, packed: bytes, cpus: int, device: str) -> None:
        torch.set_num_threads(cpus)
        self._work: Work = unpack(packed, device)
        self._waiting: deque[Item] = deque()
        self._running: Iterator[Item] | None = None

    def begin(self, like: Mapping[str, Any] | None, there: Mapping[str, str]) -> tuple[Mapping[str, Any], str]:
        """Prepare the work; return its settings, and the versions that differ from the driver's."""
        other = {name: here for name, here in versions().items() if here != there[name]}
        mismatch = " and ".join(f"{name} {here}, not {there[name]}" for name, here in other.items())
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
    return {name: version(name) for name in ("smoothcert", "torch", "numpy")}
