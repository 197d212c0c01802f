"""Inputs on lease to the workers of a cluster: what waits to be leased, and what a worker does with its lease."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any, Protocol

import torch

from smoothcert.sampling.shipping import Packed, unpack
from smoothcert.types import SmoothcertError

TRIES = 3
"""How many workers may be lost with an input, or at their start."""

Item = tuple[int, Any]
"""An input by its index, or an answer by the index of its input."""


class Work(Protocol):
    """What workers do: sent to each of them once, in parts (see :func:`smoothcert.sampling.shipping.pack`)."""

    def begin(self, like: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Make ready, on the worker.

        Args:
            like: What the first worker returned, for all others; or what an earlier session began with.

        Returns:
            How it runs, as plain values.
        """
        ...

    def answers(self, inputs: Iterator[Item]) -> Iterator[Item]:
        """Answer inputs, in any order."""
        ...


class Queue:
    """Inputs yet to be leased: those that come back first, then new ones."""

    def __init__(self, inputs: Iterator[Item], count: int) -> None:
        self._inputs, self._new = inputs, count
        self._back: deque[Item] = deque()
        self._losses: dict[int, int] = {}
        self.error: Exception | None = None

    @property
    def left(self) -> int:
        return self._new + len(self._back)

    def take(self, most: int) -> dict[int, Any]:
        taken: dict[int, Any] = {}
        while len(taken) < most and self._back:
            index, x = self._back.popleft()
            taken[index] = x
        while len(taken) < most and self._new:
            try:
                index, x = next(self._inputs)
            except StopIteration:
                self._new = 0
            except Exception as error:  # raised once the inputs before are answered
                self._new, self.error = 0, error
            else:
                taken[index] = x
                self._new -= 1
        return taken

    def put_back(self, leased: Mapping[int, Any], reason: str) -> None:
        for index, x in reversed(list(leased.items())):
            self._losses[index] = self._losses.get(index, 0) + 1
            if self._losses[index] >= TRIES:
                raise SmoothcertError(
                    f"{TRIES} workers were lost with input {index} ({reason}); look at their memory, or run the same "
                    "command again without Ray."
                )
            self._back.appendleft((index, x))


class Worker:
    """A process of the cluster at work."""

    def __init__(self, packed: Packed, cpus: int, device: str) -> None:
        torch.set_num_threads(cpus)
        self._work: Work = unpack(packed, device)
        self._waiting: deque[Item] = deque()
        self._running: Iterator[Item] | None = None

    def begin(self, like: Mapping[str, Any] | None, there: Mapping[str, str]) -> tuple[Mapping[str, Any], str]:
        """Make ready; how the work runs, and what is not the same here as elsewhere."""
        other = {name: here for name, here in versions().items() if here != there[name]}
        mismatch = " and ".join(f"{name} {here}, not {there[name]}" for name, here in other.items())
        return ({} if mismatch else self._work.begin(like)), mismatch

    def step(self, inputs: list[Item], seconds: float) -> tuple[list[Item], SmoothcertError | None]:
        """Take on inputs and work for a while, or until one is answered; what was answered, and what went wrong.

        Between two steps the work stands still, but the next step waits at the door already.
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
    """What must be the same everywhere."""
    return {name: version(name) for name in ("smoothcert", "torch", "numpy")}
