"""Noisy samples per second of CERTIFY, beside a peer library, a plain loop and the bare forward pass, in one process.

Contenders take short turns, one after the other, over and over; the figure of each is the median of its turns, so that
a machine busy with other work slows all of them alike. The peer is the
adversarial-robustness-toolbox (extra ``bench``).
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from rich.console import Console
from rich.table import Table

from smoothcert import Cohen, Gaussian, Smoothed, models
from smoothcert.sampling.runtimes import Runtime
from smoothcert.sampling.tuning import intra_op_threads

SIGMA = 0.5
TURNS = 5
MODELS = {"lenet": 16_000, "cifar-resnet20": 4_000}
"""Samples per turn."""


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


def rates(contenders: dict[str, Callable[[], object]], n: int) -> dict[str, float]:
    """Samples per second of each."""
    for run in contenders.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(TURNS):
        for name, run in contenders.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return {name: n / statistics.median(times) for name, times in seconds.items()}


def measure(name: str, n: int) -> dict[str, object]:
    torch.manual_seed(0)
    model = models.build(name).eval()
    x = torch.rand(models.MODELS[name].input_shape)
    smoothed = Smoothed(model, Gaussian(SIGMA))
    runtime = smoothed.prepare(x, samples=10_000_000)
    n -= n % runtime.batch_size  # whole batches, for the forward pass too
    noise = [torch.randn(runtime.batch_size, *x.shape).mul_(SIGMA).add_(x) for _ in range(n // runtime.batch_size)]
    contenders: dict[str, Callable[[], None]] = {
        "certify": lambda: bool(smoothed.certify(x, Cohen(n=n, n0=1))) and None
    }
    threads = ThreadPoolExecutor(runtime.workers)
    contenders["forward"] = lambda: forward_only(runtime, noise, threads)
    for batch in (128, 400, 1000):
        contenders[f"loop {batch}"] = lambda batch=batch: plain_loop(model, x, n, batch)
    for batch in (32, 128, 1000):
        other = peer(model, x, n, batch)
        if other is not None:
            contenders[f"peer {batch}"] = other
    with torch.inference_mode():
        speed = rates(contenders, n)
        begin = time.perf_counter()
        smoothed.certify(x, Cohen(n=100_000))
        whole = 100_100 / (time.perf_counter() - begin)
    best = {kind: max((r for k, r in speed.items() if k.startswith(kind)), default=None) for kind in ("loop", "peer")}
    rival = max(rate for rate in best.values() if rate is not None)
    return {
        "runtime": runtime.name,
        "batch_size": runtime.batch_size,
        "threads": runtime.threads,
        "workers": runtime.workers,
        "certify": speed["certify"],
        "certify at n = 100 000": whole,
        "forward": speed["forward"],
        **best,
        "over best of loop and peer": speed["certify"] / rival,
        "of forward": speed["certify"] / speed["forward"],
        "all": speed,
    }


def main() -> None:
    results = {name: measure(name, n) for name, n in MODELS.items()}
    print(json.dumps({"benchmark": "throughput", "threads": torch.get_num_threads(), "results": results}))
    table = Table(title=f"Noisy samples per second (medians of {TURNS} turns)")
    for column in ("model", "runtime", "certify", "forward", "loop", "peer", "÷ best rival", "÷ forward"):
        table.add_column(column, justify="right")
    for name, r in results.items():
        figures = [
            f"{r[key]:,.0f}" if r[key] is not None else "missing" for key in ("certify", "forward", "loop", "peer")
        ]
        ratios = [f"{r[key]:.2f}" for key in ("over best of loop and peer", "of forward")]
        table.add_row(name, f"{r['runtime']} {r['batch_size']}", *figures, *ratios)
    Console().print(table)


if __name__ == "__main__":
    main()
