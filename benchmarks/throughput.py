"""Noisy samples per second of certification, beside a plain loop and the bare forward pass, in one process.

Each contender runs in short turns, one after the other, over and over; its figure is the median of its turns, so that a
machine busy with other work slows all of them alike.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from smoothcert import Cohen, Gaussian, Smoothed, models

SIGMA = 0.5
MODELS = {"lenet": 6_000, "cifar-resnet20": 1_000}
"""Samples per turn."""


def plain_loop(model: torch.nn.Module, x: torch.Tensor, n: int, batch: int) -> None:
    counts = torch.zeros(10, dtype=torch.int64)
    for done in range(0, n, batch):
        copies = x.repeat((min(batch, n - done), 1, 1, 1))
        votes = model(copies + torch.randn_like(copies) * SIGMA).argmax(1)
        counts += torch.bincount(votes, minlength=10)


def forward_only(model: torch.nn.Module, batch: torch.Tensor, n: int) -> None:
    for _ in range(n // len(batch)):
        model(batch)


def measure(contenders: dict[str, Callable[[], None]], n: int, turns: int = 7) -> dict[str, float]:
    for run in contenders.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, run in contenders.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return {name: n / statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    results = {}
    table = Table(title="Noisy samples per second (median of 7 turns)")
    for column in ("model", "certify", "plain loop (best batch)", "bare forward (best batch)", "÷ loop", "÷ forward"):
        table.add_column(column, justify="right")
    for name, n in MODELS.items():
        torch.manual_seed(0)
        model = models.build(name).eval()
        x = torch.rand(models.MODELS[name].input_shape)
        smoothed = Smoothed(model, Gaussian(SIGMA))
        with torch.inference_mode():
            contenders: dict[str, Callable[[], None]] = {
                "certify": lambda s=smoothed, x=x, n=n: s.certify(x, Cohen(n=n, n0=1)) and None
            }
            for b in (128, 400, 1000):
                contenders[f"loop {b}"] = lambda m=model, x=x, n=n, b=b: plain_loop(m, x, n, b)
            for b in (20, 80, 200, 500):
                batch = torch.randn(b, *x.shape)
                contenders[f"forward {b}"] = lambda m=model, batch=batch, n=n: forward_only(m, batch, n)
            rates = measure(contenders, n)
        loop = max(rate for key, rate in rates.items() if key.startswith("loop"))
        forward = max(rate for key, rate in rates.items() if key.startswith("forward"))
        results[name] = {"over_loop": rates["certify"] / loop, "of_forward": rates["certify"] / forward, **rates}
        cells = [f"{rates['certify']:,.0f}", f"{loop:,.0f}", f"{forward:,.0f}"]
        table.add_row(name, *cells, f"{rates['certify'] / loop:.2f}", f"{rates['certify'] / forward:.2f}")
    print(json.dumps({"benchmark": "throughput", "threads": torch.get_num_threads(), "results": results}))
    Console().print(table)


if __name__ == "__main__":
    main()
