"""The quick CIFAR-10 recipe against a plain loop of eager PyTorch: images per second, in turns, on one thread.

The plain loop draws batches and noise and steps SGD, in float32, without crops and flips; ``channels-last`` is the same
with that memory format. ``train`` is our loop with the recipe's settings, with and without mixed precision.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from smoothcert import models
from smoothcert.training import train
from smoothcert.training.recipes import load_recipe

RECIPE = load_recipe("cifar10-gaussian-0.50-quick", {"epochs": 1, "holdout": 0, "rate": 1e-4})
IMAGES, ROUNDS = 1_280, 7


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return models.build(RECIPE.model, normalize=RECIPE.normalize).train()


def plain(x: torch.Tensor, y: torch.Tensor, memory_format: torch.memory_format) -> None:
    model, sigma = network().to(memory_format=memory_format), RECIPE.noise["sigma"]
    settings = {"momentum": RECIPE.momentum, "nesterov": RECIPE.nesterov, "weight_decay": RECIPE.weight_decay}
    optimizer = torch.optim.SGD(model.parameters(), lr=RECIPE.rate, **settings)
    for rows in torch.randperm(len(x)).split(RECIPE.batch_size):
        batch = x[rows]
        loss = F.cross_entropy(model(batch + sigma * torch.randn_like(batch)), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def ours(x: torch.Tensor, y: torch.Tensor, precision: str) -> None:
    train(
        network(),
        (x, y),
        noise=RECIPE.build_noise(),
        method=RECIPE.build_method(),
        settings=RECIPE,
        precision=precision,
        progress=False,
    )


def main() -> None:
    torch.set_num_threads(1)
    x, y = torch.rand(IMAGES, 3, 32, 32), torch.arange(IMAGES) % 10
    contenders: dict[str, Callable[[], None]] = {
        "plain": lambda: plain(x, y, torch.contiguous_format),
        "channels-last": lambda: plain(x, y, torch.channels_last),
        "train, 32-true": lambda: ours(x, y, "32-true"),
        "train, bf16-mixed": lambda: ours(x, y, "bf16-mixed"),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(ROUNDS + 1):
        for name, run in contenders.items():
            begin = time.perf_counter()
            run()
            if number:  # the first round warms up
                rates[name].append(IMAGES / (time.perf_counter() - begin))
    results = {
        name: {
            "images per second": round(statistics.median(found)),
            "over plain": round(statistics.median(a / b for a, b in zip(found, rates["plain"], strict=True)), 2),
        }
        for name, found in rates.items()
    }
    print(json.dumps({"benchmark": "eager", "model": RECIPE.model, "results": results}))
    table = Table(title=f"Training {RECIPE.model}: images per second (medians of {ROUNDS} rounds)")
    for column in ("loop", "images/s", "over plain"):
        table.add_column(column, justify="right")
    for name, r in results.items():
        table.add_row(name, str(r["images per second"]), f"{r['over plain']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
