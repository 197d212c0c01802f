"""How large batches are, and how threads share them: found by measuring for a moment."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from smoothcert.sampling.seeds import BLOCK
from smoothcert.types import SmoothcertError

Forward = Callable[[Tensor], Tensor]
"""Maps a batch of inputs to logits."""

ADVANTAGE = 1.05
"""How many times faster something less simple must be to be taken."""

STEADINESS = 1.25
"""How many times faster one batch over all threads must be than batches in threads of their own: threads that share a
batch wait for each other, and slow down many times over whenever another process takes one of their cores."""

TUNING_SECONDS = 1.0
"""How long measuring goes on where the number of samples to come is not known."""

_TUNING_SHARE = 0.1  # at most, of the time that sampling takes
_TUNING_MORE = 0.01  # of that time, on top of a second where it is long
_TUNING_LONGEST = 5.0
_GUESS_SECONDS = 0.05
_TURN_SECONDS = 0.02
_TURNS = 7
_KEEP = 0.75  # of the best rate: slower ones get no more turns
_MAX_WORKERS = 8  # more would wait for each other in Python
_SIZES = {"cpu": (100, 200, 60, 400, 20, 1000), "cuda": (400, 1000, 200, 2000, 4000, 100)}  # likeliest first
_INPUT_BYTES = {"cpu": 2**25, "cuda": 2**28}  # of one batch; what the layers of a network need is a multiple of it
_NOTED = {"batch_size": 1_000_000, "threads": 1024, "workers": 1024}  # what a note may say at most

Name = TypeVar("Name")


@dataclass(frozen=True)
class Setup:
    """How batches are run: their size, PyTorch's intra-op threads for each, and how many run in parallel threads."""

    batch_size: int
    threads: int
    workers: int = 1

    def __str__(self) -> str:
        return f"batch {self.batch_size}, {self.workers} worker(s) of {self.threads} thread(s)"


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """PyTorch's number of intra-op threads while the context lasts, for this thread and the threads it starts."""
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:  # a model may set it too
            torch.set_num_threads(before)


class Course:
    """Runs noisy batches as certification would: each worker draws its noise, runs it and takes the top class.

    Args:
        run: What to run.
        x: The input.
        setup: How to run it.
        seconds_per_sample: A guess, by which short batches are repeated until a turn can be timed.
    """

    def __init__(self, run: Forward, x: Tensor, setup: Setup, seconds_per_sample: float) -> None:
        self._run, self._x, self._setup = run, x, setup
        self._repeats = max(1, round(_TURN_SECONDS / (setup.batch_size * seconds_per_sample)))

    def turn(self, pool: ThreadPoolExecutor) -> int:
        """Run for a moment.

        Args:
            pool: Threads for the workers.

        Returns:
            How many noisy copies were run.
        """
        with intra_op_threads(self._setup.threads):
            if self._setup.workers == 1:
                self._work(0)
            else:
                list(pool.map(self._work, range(self._setup.workers)))
        return self._setup.batch_size * self._setup.workers * self._repeats

    @torch.inference_mode()
    def _work(self, worker: int) -> None:
        if torch.get_num_threads() != self._setup.threads:  # a thread of the pool that has run another setup
            torch.set_num_threads(self._setup.threads)
        generator = torch.Generator(device=self._x.device).manual_seed(worker)
        batch = self._x.new_empty((self._setup.batch_size, *self._x.shape))
        for _ in range(self._repeats):
            self._run(batch.normal_(generator=generator).add_(self._x)).argmax(1)
        if self._x.device.type == "cuda":
            torch.cuda.synchronize(self._x.device)


def race(courses: Mapping[Name, Course], seconds: float) -> dict[Name, float]:
    """Samples per second of each course, in turns so that other work on the machine slows all of them alike.

    The slow ones drop out after some turns. A course that fails, or for which there is no time, has no rate; but the
    first two always get two turns, as the first call of anything is slow.

    Args:
        courses: What to measure, likeliest first.
        seconds: How long to go on.

    Returns:
        The rate of each course's median turn, the first one left out where there are more.
    """
    turns: dict[Name, list[float]] = {}
    running = dict(courses)
    deadline = time.perf_counter() + seconds
    with ThreadPoolExecutor(_MAX_WORKERS) as pool:  # the same threads for all, as new ones are slow at first
        for turn in range(_TURNS):
            for place, (name, course) in enumerate(list(running.items())):
                if (turn > 1 or place > 1) and time.perf_counter() > deadline:
                    continue
                begin = time.perf_counter()
                try:
                    samples = course.turn(pool)
                except RuntimeError:  # most likely out of memory
                    del running[name]
                    turns.pop(name, None)
                    continue
                turns.setdefault(name, []).append(samples / (time.perf_counter() - begin))
            if turn > 1:
                best = max(map(_median_rate, turns.values()), default=0.0)
                running = {n: c for n, c in running.items() if n in turns and _median_rate(turns[n]) > _KEEP * best}
    return {name: _median_rate(rates) for name, rates in turns.items()}


def _median_rate(turns: list[float]) -> float:
    return statistics.median(turns[1:] or turns)


@dataclass(frozen=True)
class Tuned:
    """What measuring found: the form of the model, how to run it, its samples per second, and every rate measured."""

    form: str
    setup: Setup
    rate: float
    rates: Mapping[str, float]


def remembered(like: Mapping[str, Any], names: Collection[str]) -> tuple[str, Tuned] | None:
    """The runtime that an earlier session noted, and how it ran; None where it noted no form of the model.

    Args:
        like: What ``Runtime.settings`` gave, read from a file.
        names: The runtimes there are.

    Raises:
        SmoothcertError: If the note is damaged.
    """
    notes = like.get("notes") if isinstance(like, Mapping) else None
    if isinstance(notes, Mapping) and "memory_format" not in notes:
        return None
    try:
        name, form, rate = like["name"], like["notes"]["memory_format"], like["notes"]["rates"]["eager"]
        setup = Setup(*(_noted(like[key], most) for key, most in _NOTED.items()))
        if name in names and isinstance(form, str) and math.isfinite(rate) and rate > 0:
            return str(name), Tuned(form, setup, float(rate), {})
    except (LookupError, TypeError, ValueError, OverflowError):
        pass
    raise SmoothcertError("the runtime that an earlier session noted is damaged; begin anew in another folder.")


def _noted(value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{value!r} is no number from 1 to {most}")
    return value


def tune(
    forms: Mapping[str, Forward], x: Tensor, *, batch_size: int | None, samples: int | None, parallel: bool
) -> Tuned:
    """Find the fastest form of a model, its batch size and its threads.

    Args:
        forms: Ways to run the same model, by name; the first one must work.
        x: The input.
        batch_size: The batch size if it is fixed.
        samples: How many samples are to come, if known; measuring takes a small part of their time.
        parallel: Whether batches may run in several threads at once.

    Returns:
        What was found.
    """
    threads = torch.get_num_threads()
    form = next(iter(forms))
    alone = _seconds_per_sample(forms[form], x)  # with one thread: several are at the mercy of whatever else runs
    guess = alone / threads
    if samples is not None and samples * _TUNING_SHARE < 4 * BLOCK:  # measuring would not pay
        setup = Setup(batch_size or _batch_sizes(x, samples, math.inf)[0], threads)
        return Tuned(form, setup, 1 / guess, {})
    seconds = _tuning_seconds(None if samples is None else samples * guess)
    sizes = (batch_size,) if batch_size else _batch_sizes(x, samples, seconds / guess / 8)
    rates: dict[str, float] = {}
    if len(forms) > 1:
        rates = race({name: Course(run, x, Setup(sizes[0], 1), alone) for name, run in forms.items()}, 0.3 * seconds)
        form = max(rates, key=rates.__getitem__, default=form)
    setups = [Setup(size, *layout) for size in sizes for layout in _thread_layouts(x, parallel)]
    by_setup = race({setup: Course(forms[form], x, setup, guess) for setup in setups}, 0.7 * seconds)
    by_setup = by_setup or {setups[0]: 1 / guess}
    best = max(by_setup, key=lambda s: by_setup[s] * (STEADINESS if s.workers > 1 else 1.0))
    return Tuned(form, best, by_setup[best], {**rates, **{str(setup): rate for setup, rate in by_setup.items()}})


def _tuning_seconds(sampling: float | None) -> float:
    if sampling is None:
        return TUNING_SECONDS
    return min(_TUNING_SHARE * sampling, TUNING_SECONDS + _TUNING_MORE * sampling, _TUNING_LONGEST)


def _seconds_per_sample(run: Forward, x: Tensor) -> float:
    """A first guess at the time of one sample in one thread, from a few batches of one block."""
    course = Course(run, x, Setup(BLOCK, 1), math.inf)
    with ThreadPoolExecutor(1) as pool:
        course.turn(pool)  # whatever the model raises is raised here
    return 1 / race({"": course}, _GUESS_SECONDS)[""]


def _batch_sizes(x: Tensor, samples: int | None, most: float) -> tuple[int, ...]:
    """Multiples of the noise block up to ``most``, what fits memory and what is to come; likeliest first."""
    kind = "cpu" if x.device.type == "cpu" else "cuda"
    fitting = _INPUT_BYTES[kind] / max(x.numel() * x.element_size(), 1)
    most = min(most, fitting, math.inf if samples is None else samples)
    return tuple(size for size in _SIZES[kind] if size <= most) or (BLOCK,)


def _thread_layouts(x: Tensor, parallel: bool) -> tuple[tuple[int, int], ...]:
    """(threads, workers): all threads for one batch, and their division among several batches at once."""
    threads = torch.get_num_threads()
    most = min(threads, _MAX_WORKERS) if parallel and x.device.type == "cpu" else 1
    return tuple((threads // workers, workers) for workers in (1, 2, 4, 8) if workers <= most)
