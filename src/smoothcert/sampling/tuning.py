"""Choose memory format, batch size, threads and workers by measuring, on a machine that may be busy with other work.

Candidates take turns, so that a slow phase of the machine hits all of them. Memory format and batch size are compared
before sampling, with one worker, by minimum times, since other processes only ever add time. Threads and workers are
compared during sampling, by the times of the batches themselves, and now and then again, since the load of the machine
changes. Other processes slow some layouts much more than others, which a minimum of all turns would hide; the second
shortest time shows it, and ignores up to half of the turns if a slow phase hits them.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from smoothcert.classifiers.copying import Forward
from smoothcert.classifiers.modes import intra_op_threads
from smoothcert.sampling.seeds import BLOCK
from smoothcert.types import SmoothcertError

STEADINESS = 1.25
"""How many times faster several threads for each batch must be than one: threads that share a batch wait for each
other, and become many times slower whenever another process uses one of their cores."""

ADVANTAGE = 1.1
"""How many times faster than the layout in use another one must be."""

PERIOD = 20
"""Layouts are compared again after so many times the time that the last comparison took, spent on sampling."""

TURNS = 4
"""How often each layout is timed in a comparison."""

TUNING_SECONDS = 0.3
"""The time to benchmark if the number of samples is not known."""

MOST_ROWS = 1_000_000
"""The largest batch size."""

TOO_FEW = 800
"""So many samples are not worth tuning, however long one takes: tuning runs some hundreds."""

_TUNING_SHARE = 0.03  # of the sampling time, at most
_TUNING_LONGEST = 2.0
_TURN_SECONDS = 0.002
_SHORT_SECONDS = 0.02  # batches that take less are considered, however short the sampling
_ROUNDS = 7
_KEEP = 1.3  # times the best: slower candidates are not measured again
_KEEP_LAYOUT = 2.0
_MAX_WORKERS = 8  # more would wait for each other in Python
_SIZES = {"cpu": (100, 200, 60, 400, 20, 1000), "cuda": (400, 1000, 200, 2000, 4000, 100)}  # likeliest first
_INPUT_BYTES = {"cpu": 2**25, "cuda": 2**28}  # of one batch; the layers of a network need a multiple of it
_RECORDED = {"batch_size": MOST_ROWS, "threads": 1024, "workers": 1024}  # the largest numbers in a file

Name = TypeVar("Name")


@dataclass(frozen=True)
class Layout:
    """PyTorch's intra-op threads for each batch, and the number of batches computed in parallel."""

    threads: int
    workers: int


@dataclass(frozen=True)
class Setup:
    """The batch size, PyTorch's intra-op threads for each batch, and the number of batches computed in parallel."""

    batch_size: int
    threads: int
    workers: int = 1

    @property
    def layout(self) -> Layout:
        return Layout(self.threads, self.workers)


class Layouts:
    """Chooses among layouts by the times of real batches; several threads may use it.

    A comparison times each layout in turns, and compares the second shortest time of each.

    Args:
        layouts: The layouts, the first of which is used until another one is found to be faster.

    Attributes:
        best: The layout to use.
    """

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self.best = layouts[0]
        self.most = max(layout.workers for layout in layouts)
        self._layouts = tuple(layouts)
        self._lock = threading.Lock()
        self._turns: deque[Layout] = deque()
        self._times: dict[Layout, list[float]] = {}
        self._spent = 0.0
        self._rest = 0.0  # seconds of sampling until the next comparison

    @property
    def due(self) -> bool:
        """Whether a layout is to be timed now."""
        return len(self._layouts) > 1 and (bool(self._turns) or self._rest <= 0)

    def next(self) -> Layout | None:
        """Return the layout to time in the next turn, if one is due."""
        with self._lock:
            if not self.due:
                return None
            if not self._turns:
                ordered = sorted(self._layouts, key=lambda layout: layout != self.best)
                self._turns.extend(ordered * TURNS)
                self._times, self._spent, self._rest = {}, 0.0, math.inf
            return self._turns.popleft()

    def record(self, layout: Layout, copies: int, seconds: float) -> None:
        """Take the time of a turn; of one without ``copies``, such as of batches that were not full, only its cost."""
        with self._lock:
            self._spent += seconds
            if copies:
                self._times.setdefault(layout, []).append(seconds / copies)
            found = {each: sorted(times) for each, times in self._times.items() if len(times) > 1}
            if found:
                most = _KEEP_LAYOUT * min(times[0] for times in found.values())
                self._turns = deque(turn for turn in self._turns if turn not in found or found[turn][0] <= most)
            if self._turns:
                return
            self._rest = PERIOD * self._spent
            if self.best in found:
                self.best = min(found, key=lambda each: found[each][1] * self._handicap(each))

    def sampled(self, seconds: float) -> None:
        """Count the time of sampling outside of turns."""
        with self._lock:
            self._rest -= seconds

    def _handicap(self, layout: Layout) -> float:
        return (1.0 if layout == self.best else ADVANTAGE) * (1.0 if layout.threads == 1 else STEADINESS)


def layouts_for(x: Tensor, parallel: bool) -> list[Layout]:
    """Return the layouts to consider, the one that other processes disturb least first: independent workers.

    Args:
        x: An input.
        parallel: Whether batches may run in several threads at the same time.
    """
    threads = torch.get_num_threads()
    if not parallel or x.device.type != "cpu":
        return [Layout(threads, 1)]
    workers = min(threads, _MAX_WORKERS)
    return list(dict.fromkeys([Layout(threads // workers, workers), Layout(threads, 1), Layout(1, 1)]))


class Stopwatch:
    """Measures the time of a thread without the time for which other processes used its core.

    That is the CPU time of the thread, unless it waited for something; then, and where the operating system does not
    count that, it is all time.
    """

    def __init__(self) -> None:
        self._begin = self._now()

    @property
    def seconds(self) -> float:
        """The seconds since it was made."""
        (wall, cpu, waits), (wall_now, cpu_now, waits_now) = self._begin, self._now()
        return cpu_now - cpu if waits is not None and waits_now == waits else wall_now - wall

    @staticmethod
    def _now() -> tuple[float, float, int | None]:
        waits = None
        if sys.platform == "linux":
            import resource

            waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        return time.perf_counter(), time.thread_time(), waits


class Candidate:
    """A way to compute noisy batches as certification does: draw noise, classify it, and take the top class."""

    def __init__(self, run: Forward, x: Tensor, batch_size: int, threads: int) -> None:
        self._run, self._x, self._threads = run, x, threads
        self._batch = x.new_empty((batch_size, *x.shape))
        self._generator = torch.Generator(device=x.device)

    @torch.inference_mode()
    def seconds(self) -> float:
        """Return the time of a noisy copy, in batches that take long enough together to be timed."""
        copies, watch = 0, Stopwatch()
        with intra_op_threads(self._threads):
            while not copies or watch.seconds < _TURN_SECONDS:
                self._run(self._batch.normal_(generator=self._generator).add_(self._x)).argmax(1)
                if self._x.device.type == "cuda":
                    torch.cuda.synchronize(self._x.device)
                copies += len(self._batch)
        return watch.seconds / copies


def benchmark(
    candidates: Mapping[Name, Callable[[], float]], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[Name, float]:
    """Measure the shortest time of each candidate, in rounds so that a slow phase of the machine hits all of them.

    Slow candidates drop out after some rounds. One that fails, or for which no time is left, has no result; but the
    first two are always measured twice, because the first call of anything is slow.

    Args:
        candidates: Functions that return the time of a noisy copy, likeliest first.
        seconds: The time to measure.
        clock: Returns the time in seconds.
    """
    fastest: dict[Name, float] = {}
    running = dict(candidates)
    deadline = clock() + seconds
    for number in range(_ROUNDS):
        for place, (name, candidate) in enumerate(list(running.items())):
            if (number > 1 or place > 1) and clock() > deadline:
                continue
            try:
                fastest[name] = min(candidate(), fastest.get(name, math.inf))
            except RuntimeError:  # most likely out of memory
                del running[name]
                fastest.pop(name, None)
        if number > 0:
            most = _KEEP * min(fastest.values(), default=0.0)
            running = {name: each for name, each in running.items() if fastest.get(name, math.inf) <= most}
    return fastest


@dataclass(frozen=True)
class Tuned:
    """The result of tuning: the form of the model, the setup, and samples per second.

    Rates are those of one worker times the number of workers.
    """

    form: str
    setup: Setup
    rate: float
    rates: Mapping[str, float]


def recorded(settings: Mapping[str, Any], names: Collection[str]) -> tuple[str, Tuned] | None:
    """Return the runtime and setup that an earlier session recorded; None if it did not tune.

    Args:
        settings: ``Runtime.settings()``, read from a file.
        names: The known runtimes.

    Raises:
        SmoothcertError: If the settings are damaged.
    """
    try:
        notes = settings["notes"]
        if isinstance(notes, Mapping) and "memory_format" not in notes:
            return None
        name, form, rate = settings["name"], notes["memory_format"], notes["rates"]["eager"]
        numbers = [settings[key] for key in _RECORDED]
        in_range = (type(n) is int and 1 <= n <= most for n, most in zip(numbers, _RECORDED.values(), strict=True))
        if all(in_range) and name in names and isinstance(form, str) and math.isfinite(rate) and rate > 0:
            return str(name), Tuned(form, Setup(*numbers), float(rate), {})
    except (LookupError, TypeError, ValueError, OverflowError):
        pass
    raise SmoothcertError("the runtime that an earlier session recorded is damaged; start again in another folder.")


def tune(
    forms: Mapping[str, Forward], x: Tensor, layout: Layout, *, batch_size: int | None, samples: int | None
) -> Tuned:
    """Find the fastest form of a model and its batch size.

    Args:
        forms: Ways to run the same model, by name; the first one must work.
        x: An input.
        layout: How batches will be computed.
        batch_size: The batch size if it is fixed.
        samples: How many samples will be drawn, if known; tuning takes a small part of their time.
    """

    def measured(form: str, size: int) -> Callable[[], float]:
        return Candidate(forms[form], x, size, layout.threads).seconds

    form = next(iter(forms))
    first = measured(form, min(batch_size or BLOCK, BLOCK))
    first()  # raises the errors of the model
    guess = min(first() for _ in range(3))
    if samples is not None and samples <= TOO_FEW:
        setup = Setup(batch_size or _batch_sizes(x, samples, math.inf)[0], layout.threads, layout.workers)
        return Tuned(form, setup, layout.workers / guess, {})
    seconds = TUNING_SECONDS
    if samples is not None:
        seconds = min(_TUNING_SHARE * samples * guess / layout.workers, _TUNING_LONGEST)
    sizes = (batch_size,) if batch_size else _batch_sizes(x, samples, max(seconds / 8, _SHORT_SECONDS) / guess)
    times: dict[str, float] = {}
    if len(forms) > 1:
        times = benchmark({name: measured(name, sizes[0]) for name in forms}, 0.4 * seconds)
        form = min(times, key=times.__getitem__, default=form)
    by_size = benchmark({size: measured(form, size) for size in sizes}, 0.6 * seconds) or {sizes[0]: guess}
    size = min(by_size, key=by_size.__getitem__)
    times |= {f"batch {each}": found for each, found in by_size.items()}
    rates = {name: layout.workers / found for name, found in times.items()}
    return Tuned(form, Setup(size, layout.threads, layout.workers), layout.workers / by_size[size], rates)


def _batch_sizes(x: Tensor, samples: int | None, most: float) -> tuple[int, ...]:
    """Return multiples of the noise block up to ``most``, the memory and the number of samples; likeliest first."""
    kind = "cpu" if x.device.type == "cpu" else "cuda"
    fitting = _INPUT_BYTES[kind] / max(x.numel() * x.element_size(), 1)
    most = min(most, fitting, math.inf if samples is None else samples)
    return tuple(size for size in _SIZES[kind] if size <= most) or (BLOCK,)
