"""Noisy samples per second of CERTIFY, next to a peer library, a plain loop and the bare forward pass, in one process.

Contenders take short turns, one after the other, over and over, so that a machine busy with other work slows all of
them alike; a rate is the median of the turns, a ratio the median over the rounds. Certification and the bare forward
pass then race each other alone, in more and longer turns, as they are close; so does certification without the seal
(no identity, checks or audit), and the column "seal" is what these cost of an input at n = 100 000, sealing the model
for each input included. The peer is the adversarial-robustness-toolbox (extra ``bench``). The plain loop and the peer
run as a user would run them: in float32, with PyTorch's default threads, each at its best of several batch sizes.

With ``--load``, the contenders also take turns next to 2 and 4 processes that only compute, at the same priority, and
certification chooses its runtime while these run. In addition, small calls in a loop and one call at n = 100 000 are
timed, each with a new ``Smoothed``, so that sealing, checks and choosing the runtime count.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from rich.console import Console
from rich.table import Table

from smoothcert import Cohen, Gaussian, Smoothed, models
from smoothcert.certify import Task
from smoothcert.classifiers.modes import intra_op_threads
from smoothcert.classifiers.sealed import Sealed
from smoothcert.sampling import Job, Pool, Source
from smoothcert.sampling.runtimes import Runtime, check_copies

SIGMA = 0.5
TURNS = 5
LIMIT_TURNS = 11
MODELS = {"lenet": (16_000, 40_000), "cifar-resnet20": (3_000, 4_000)}
"""Samples per turn, of all contenders and of certification against the forward pass."""

LOADS = (0, 2, 4)
LOAD_TURNS = 3
LOAD_SAMPLES = {"lenet": 4_000, "cifar-resnet20": 800}
CALLS = {"lenet": (10_000, 10, 100_000), "cifar-resnet20": (2_000, 5, 20_000)}
"""Samples of a small call, how many there are, and samples of a single call."""


def plain_loop(model: torch.nn.Module, x: torch.Tensor, n: int, batch: int) -> None:
    counts = torch.zeros(10, dtype=torch.int64)
    for done in range(0, n, batch):
        copies = x.repeat((min(batch, n - done), 1, 1, 1))
        votes = model(copies + torch.randn_like(copies) * SIGMA).argmax(1)
        counts += torch.bincount(votes, minlength=10)


def forward_only(runtime: Runtime, batches: list[torch.Tensor], threads: ThreadPoolExecutor) -> None:
    """The limit: the chosen runtime over noise drawn beforehand, with as many workers as certification has."""

    def run(batch: torch.Tensor) -> None:
        with torch.inference_mode(), intra_op_threads(runtime.threads):
            runtime.run(batch)

    for _ in threads.map(run, batches) if runtime.workers > 1 else map(run, batches):
        pass


def peer(model: torch.nn.Module, x: torch.Tensor, n: int, batch: int) -> Callable[[], None] | None:
    try:
        from art.estimators.certification.randomized_smoothing import PyTorchRandomizedSmoothing
    except ImportError:
        return None
    smoothed = PyTorchRandomizedSmoothing(
        model=model,
        loss=torch.nn.CrossEntropyLoss(),
        input_shape=tuple(x.shape),
        nb_classes=10,
        sample_size=1,
        scale=SIGMA,
        alpha=0.001,
        device_type="cpu",
    )

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            smoothed.certify(x[None].numpy(), n=n, batch_size=batch)

    return run


def unsealed(smoothed: Smoothed, runtime: Runtime, x: torch.Tensor, n: int) -> None:
    """Certification by the same loop and runtime, without identity, checks and audit."""
    procedure = Cohen(n=n, n0=1)
    source = Source(runtime.run, smoothed.noise, 10, procedure.statistics, runtime.batch_size)
    pool = Pool(runtime.workers, runtime.threads, runtime.layouts)
    task = Task(smoothed.noise, 10, x.numel(), 0, 0, x)
    for _ in pool.run([Job(0, x, procedure.certify(task), [source], 0)]):
        pass


def seal(model: torch.nn.Module, x: torch.Tensor) -> None:
    """What sealing a model costs once: a copy, its identity, and the checks."""
    Sealed(model).verify(check_copies(x, Gaussian(SIGMA)))


def seconds(contenders: dict[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """The time of each turn of each contender, after one to warm up."""
    for run in contenders.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, run in contenders.items():
            begin = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begin)
    return times


def ratio(slower: list[float], faster: list[float]) -> float:
    """How many times faster, as the median over rounds."""
    return statistics.median(s / f for s, f in zip(slower, faster, strict=True))


def rivals(model: torch.nn.Module, x: torch.Tensor, n: int) -> dict[str, Callable[[], object]]:
    found: dict[str, Callable[[], object]] = {}
    for batch in (128, 400, 1000):
        found[f"loop {batch}"] = lambda batch=batch: plain_loop(model, x, n, batch)
    for batch in (32, 128, 1000):
        other = peer(model, x, n, batch)
        if other is not None:
            found[f"peer {batch}"] = other
    return found


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run processes that only compute, at the priority of this one."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(1.0 if count else 0.0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure_loaded(name: str, load: int) -> dict[str, object]:
    """Rates and ratios next to busy processes, and of small calls and one long call of a new classifier."""
    torch.manual_seed(0)
    model, n = models.build(name).eval(), LOAD_SAMPLES[name]
    x = torch.rand(models.MODELS[name].input_shape)
    small, calls, long = CALLS[name]

    def certify(smoothed: Smoothed, n: int) -> float:
        begin = time.perf_counter()
        smoothed.certify(x, Cohen(n=n))
        return (n + 100) / (time.perf_counter() - begin)

    with torch.inference_mode():
        plain_loop(model, x, n, 128)  # PyTorch's own start is nobody's
        with busy(load):
            looped = Smoothed(model, Gaussian(SIGMA))
            rates_of_calls = [certify(looped, small) for _ in range(calls)]
            single = certify(Smoothed(model, Gaussian(SIGMA)), long)
            times = seconds({"certify": lambda: looped.certify(x, Cohen(n=n, n0=1)), **rivals(model, x, n)}, LOAD_TURNS)
    rates = {key: n / statistics.median(turns) for key, turns in times.items()}
    best = {
        kind: max((key for key in rates if key.startswith(kind)), key=rates.__getitem__, default=None)
        for kind in ("loop", "peer")
    }
    ratios = {f"over {kind}": ratio(times[key], times["certify"]) for kind, key in best.items() if key}
    return {
        **ratios,
        "best": best,
        "rates": rates,
        f"looped n = {small}, first call": rates_of_calls[0],
        f"looped n = {small}, all {calls} calls": calls / sum(1 / rate for rate in rates_of_calls),
        f"looped n = {small}, later calls": statistics.median(rates_of_calls[calls // 2 :]),
        f"single n = {long}": single,
        "single over loop": single / rates[best["loop"]],
    }


def measure(name: str, n: int, n_limit: int) -> dict[str, object]:
    torch.manual_seed(0)
    model = models.build(name).eval()
    x = torch.rand(models.MODELS[name].input_shape)
    smoothed = Smoothed(model, Gaussian(SIGMA))
    runtime = smoothed.prepare(x, samples=10_000_000)
    n_limit -= n_limit % runtime.batch_size  # whole batches, for the forward pass too
    batches = n_limit // runtime.batch_size
    noise = [torch.randn(runtime.batch_size, *x.shape).mul_(SIGMA).add_(x) for _ in range(batches)]
    threads = ThreadPoolExecutor(runtime.workers)
    limit = {
        "certify": lambda: smoothed.certify(x, Cohen(n=n_limit, n0=1)),
        "forward": lambda: forward_only(runtime, noise, threads),
        "unsealed": lambda: unsealed(smoothed, runtime, x, n_limit),
        "seal": lambda: seal(model, x),
    }
    contenders = {"certify": lambda: smoothed.certify(x, Cohen(n=n, n0=1)), **rivals(model, x, n)}
    with torch.inference_mode():
        times = seconds(contenders, TURNS)
        limit_times = seconds(limit, LIMIT_TURNS)
        begin = time.perf_counter()
        smoothed.certify(x, Cohen(n=100_000))
        whole = 100_100 / (time.perf_counter() - begin)
    rates = {key: n / statistics.median(turns) for key, turns in times.items()}
    once = statistics.median(limit_times.pop("seal"))
    running = ratio(limit_times["certify"], limit_times["unsealed"]) - 1
    bare = n_limit / statistics.median(limit_times["unsealed"])
    rates |= {f"{key} (limit)": n_limit / statistics.median(turns) for key, turns in limit_times.items()}
    best = {kind: max((r for k, r in rates.items() if k.startswith(kind)), default=None) for kind in ("loop", "peer")}
    rival = max((key for key in times if key != "certify"), key=lambda key: rates[key])
    return {
        "runtime": runtime.name,
        "batch_size": runtime.batch_size,
        "threads": runtime.threads,
        "workers": runtime.workers,
        "certify": rates["certify (limit)"],
        "certify at n = 100 000": whole,
        "forward": rates["forward (limit)"],
        **best,
        "over best of loop and peer": ratio(times[rival], times["certify"]),
        "of forward": ratio(limit_times["forward"], limit_times["certify"]),
        "seconds to seal": once,
        "seal and audit at n = 100 000": running + once * bare / 100_000,
        "all": rates,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", type=int, nargs="*", metavar="N", help="measure next to N busy processes: 0, 2 and 4")
    parser.add_argument("--model", choices=MODELS, action="append", help="only these models")
    args = parser.parse_args()
    names = args.model or list(MODELS)
    if args.load is not None:
        for name in names:
            for load in args.load or LOADS:
                found = {"model": name, "busy processes": load, **measure_loaded(name, load)}
                print(json.dumps({"benchmark": "throughput", "threads": torch.get_num_threads(), **found}), flush=True)
        return
    results = {name: measure(name, *n) for name, n in MODELS.items() if name in names}
    print(json.dumps({"benchmark": "throughput", "threads": torch.get_num_threads(), "results": results}))
    table = Table(title=f"Noisy samples per second (medians of {TURNS} turns)")
    for column in ("model", "runtime", "certify", "forward", "loop", "peer", "÷ best rival", "÷ forward", "seal"):
        table.add_column(column, justify="right")
    for name, r in results.items():
        figures = [
            f"{r[key]:,.0f}" if r[key] is not None else "missing" for key in ("certify", "forward", "loop", "peer")
        ]
        ratios = [f"{r[key]:.2f}" for key in ("over best of loop and peer", "of forward")]
        cost = f"{r['seal and audit at n = 100 000']:+.1%}"
        table.add_row(name, f"{r['runtime']} {r['batch_size']}", *figures, *ratios, cost)
    Console().print(table)


if __name__ == "__main__":
    main()
