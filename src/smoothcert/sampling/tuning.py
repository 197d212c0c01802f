"""Choose the batch size and threads by benchmarking."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from smoothcert.classifiers.copying import Forward
from smoothcert.classifiers.modes import intra_op_threads
from smoothcert.sampling.seeds import BLOCK
from smoothcert.types import SmoothcertError

STEADINESS = 1.25
"""How many times faster one batch over all threads must be than one batch per thread: threads that share a batch wait
for each other, and become many times slower whenever another process uses one of their cores."""

TUNING_SECONDS = 1.0
"""The time to benchmark if the number of samples is not known."""

MOST_ROWS = 1_000_000
"""The largest batch size."""

TOO_FEW = 800
"""So many samples are not worth tuning, however long one takes: tuning runs some hundreds."""

_TUNING_SHARE = 0.1  # of the sampling time, at most
_TUNING_MORE = 0.01  # of a long sampling time, in addition to one second
_TUNING_LONGEST = 5.0
_GUESS_SECONDS = 0.05
_ROUND_SECONDS = 0.02
_ROUNDS = 7
_KEEP = 0.75  # of the best rate: slower candidates are not measured again
_MAX_WORKERS = 8  # more would wait for each other in Python
_SIZES = {"cpu": (100, 200, 60, 400, 20, 1000), "cuda": (400, 1000, 200, 2000, 4000, 100)}  # likeliest first
_INPUT_BYTES = {"cpu": 2**25, "cuda": 2**28}  # of one batch; the layers of a network need a multiple of it
_RECORDED = {"batch_size": MOST_ROWS, "threads": 1024, "workers": 1024}  # the largest numbers in a file

Name = TypeVar("Name")


@dataclass(frozen=True)
class Setup:
    """The batch size, PyTorch's intra-op threads for each batch, and the number of batches computed in parallel."""

    batch_size: int
    threads: int
    workers: int = 1

    def __str__(self) -> str:
        return f"batch {self.batch_size}, {self.workers} worker(s) of {self.threads} thread(s)"


class Candidate:
    """A way to compute noisy batches as certification does: draw noise, classify it, and take the top class.

    Short batches are repeated until their time can be measured, by a guess of the time of one sample.
    """

    def __init__(self, run: Forward, x: Tensor, setup: Setup, seconds_per_sample: float) -> None:
        self._run, self._x, self._setup = run, x, setup
        self._repeats = max(1, round(_ROUND_SECONDS / (setup.batch_size * seconds_per_sample)))

    def compute(self, pool: ThreadPoolExecutor) -> int:
        """Compute some batches, and return the number of noisy copies in them."""
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


def benchmark(candidates: Mapping[Name, Candidate], seconds: float) -> dict[Name, float]:
    """Measure the samples per second of each candidate, in rounds so that other processes slow all of them equally.

    Slow candidates drop out after some rounds. One that fails, or for which no time is left, has no rate; but the first
    two are always measured twice, because the first call of anything is slow.

    Args:
        candidates: Likeliest first.
        seconds: The time to measure.

    Returns:
        The median rate of each, without its first round if there are more.
    """
    rates: dict[Name, list[float]] = {}
    running = dict(candidates)
    deadline = time.perf_counter() + seconds
    with ThreadPoolExecutor(_MAX_WORKERS) as pool:  # the same threads for all, because new ones are slow at first
        for number in range(_ROUNDS):
            for place, (name, candidate) in enumerate(list(running.items())):
                if (number > 1 or place > 1) and time.perf_counter() > deadline:
                    continue
                begin = time.perf_counter()
                try:
                    samples = candidate.compute(pool)
                except RuntimeError:  # most likely out of memory
                    del running[name]
                    rates.pop(name, None)
                    continue
                rates.setdefault(name, []).append(samples / (time.perf_counter() - begin))
            if number > 1:
                best = max(map(_median, rates.values()), default=0.0)
                running = {n: c for n, c in running.items() if n in rates and _median(rates[n]) > _KEEP * best}
    return {name: _median(found) for name, found in rates.items()}


def _median(rates: list[float]) -> float:
    return statistics.median(rates[1:] or rates)


@dataclass(frozen=True)
class Tuned:
    """The result of tuning: the form of the model, the setup, its samples per second, and every rate measured."""

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
    forms: Mapping[str, Forward], x: Tensor, *, batch_size: int | None, samples: int | None, parallel: bool
) -> Tuned:
    """Find the fastest form of a model, its batch size and its threads.

    Args:
        forms: Ways to run the same model, by name; the first one must work.
        batch_size: The batch size if it is fixed.
        samples: How many samples will be drawn, if known; tuning takes a small part of their time.
        parallel: Whether batches may run in several threads at the same time.
    """
    threads = torch.get_num_threads()
    form = next(iter(forms))
    alone = _seconds_per_sample(forms[form], x)  # with one thread: other processes slow down several
    guess = alone / threads
    if samples is not None and samples <= TOO_FEW:
        setup = Setup(batch_size or _batch_sizes(x, samples, math.inf)[0], threads)
        return Tuned(form, setup, 1 / guess, {})
    seconds = TUNING_SECONDS
    if samples is not None:
        sampling = samples * guess
        seconds = min(_TUNING_SHARE * sampling, TUNING_SECONDS + _TUNING_MORE * sampling, _TUNING_LONGEST)
    sizes = (batch_size,) if batch_size else _batch_sizes(x, samples, seconds / guess / 8)
    rates: dict[str, float] = {}
    if len(forms) > 1:
        candidates = {name: Candidate(run, x, Setup(sizes[0], 1), alone) for name, run in forms.items()}
        rates = benchmark(candidates, 0.3 * seconds)
        form = max(rates, key=rates.__getitem__, default=form)
    setups = [Setup(size, *layout) for size in sizes for layout in _thread_layouts(x, parallel)]
    by_setup = benchmark({setup: Candidate(forms[form], x, setup, guess) for setup in setups}, 0.7 * seconds)
    by_setup = by_setup or {setups[0]: 1 / guess}
    best = max(by_setup, key=lambda s: by_setup[s] * (STEADINESS if s.workers > 1 else 1.0))
    return Tuned(form, best, by_setup[best], {**rates, **{str(setup): rate for setup, rate in by_setup.items()}})


def _seconds_per_sample(run: Forward, x: Tensor) -> float:
    """Estimate the time of one sample in one thread, from a few batches of one block."""
    candidate = Candidate(run, x, Setup(BLOCK, 1), math.inf)
    with ThreadPoolExecutor(1) as pool:
        candidate.compute(pool)  # raises the errors of the model
    return 1 / benchmark({"": candidate}, _GUESS_SECONDS)[""]


def _batch_sizes(x: Tensor, samples: int | None, most: float) -> tuple[int, ...]:
    """Return multiples of the noise block up to ``most``, the memory and the number of samples; likeliest first."""
    kind = "cpu" if x.device.type == "cpu" else "cuda"
    fitting = _INPUT_BYTES[kind] / max(x.numel() * x.element_size(), 1)
    most = min(most, fitting, math.inf if samples is None else samples)
    return tuple(size for size in _SIZES[kind] if size <= most) or (BLOCK,)


def _thread_layouts(x: Tensor, parallel: bool) -> Iterator[tuple[int, int]]:
    """Yield (threads, workers): all threads for one batch, and their division among several batches."""
    threads = torch.get_num_threads()
    most = min(threads, _MAX_WORKERS) if parallel and x.device.type == "cpu" else 1
    return ((threads // workers, workers) for workers in (1, 2, 4, 8) if workers <= most)
