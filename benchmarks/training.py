"""Time per training image of every method on LeNet, next to the least it can take.

The least is the number of copies that the method runs through the network (counted, by kind: for the gradient by the
weights, by the input, or none) times the bare cost of one copy of that kind, measured in the same round. MACER and
SmoothMix also race the adversarial-robustness-toolbox (extra ``bench``). A ratio is the median over the rounds.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

from smoothcert import Gaussian, models
from smoothcert.training import METHODS, Method, TrainingSettings, train

NOISE = Gaussian(0.5)
BATCH = 256
ROUNDS = 7
ROWS = 8_000  # copies through the network in a turn, about
SETTINGS: dict[str, dict[str, float]] = {"smoothadv": {"warmup": 0.0}}
"""The papers' settings for MNIST at σ = 0.50, as the methods' defaults, but with attacks at full strength at once."""


class Counting(nn.Module):
    """Counts the copies a network runs, by the gradient they are run for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.rows = {"train": 0, "attack": 0, "forward": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = "forward" if not torch.is_grad_enabled() else "train" if self._trains() else "attack"
        self.rows[kind] += len(x)
        return self.network(x)

    def _trains(self) -> bool:
        return next(self.network.parameters()).requires_grad


def data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images that are easy to tell apart, so that the methods' conditions on confidence are met as in late training."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 10
    prototypes = (torch.rand(10, 1, 7, 7, generator=generator) < 0.4).float()
    x = F.interpolate(prototypes, scale_factor=4)[y]
    return (x + 0.1 * torch.rand(x.shape, generator=generator)).clamp(0, 1), y


def bare(network: nn.Module, x: torch.Tensor, y: torch.Tensor, kind: str) -> float:
    """Seconds for one copy."""
    inputs = x.clone().requires_grad_(kind == "attack")
    network.requires_grad_(kind == "train")
    repeats = 6
    begin = time.perf_counter()
    for _ in range(repeats):
        if kind == "forward":
            with torch.no_grad():
                network(inputs)
        else:
            F.cross_entropy(network(inputs), y).backward()
            network.zero_grad(set_to_none=True)
            inputs.grad = None
    network.requires_grad_(True)
    return (time.perf_counter() - begin) / repeats / len(x)


def seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def peer(name: str, method: Method, network: nn.Module, count: int) -> Callable[[], None] | None:
    try:
        from art.estimators.certification.randomized_smoothing import PyTorchMACER, PyTorchSmoothMix
    except ImportError:
        return None
    settings = method.__dict__
    model = copy.deepcopy(network)
    common = {
        "model": model,
        "loss": nn.CrossEntropyLoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, nesterov=True),
        "input_shape": (1, 28, 28),
        "nb_classes": 10,
        "scale": NOISE.sigma,
        "device_type": "cpu",
    }
    if name == "macer":
        fitted = PyTorchMACER(**common, gaussian_samples=settings["m"], lmbda=settings["lam"])
        batch = BATCH // settings["m"]
    else:
        fitted = PyTorchSmoothMix(
            **common, num_noise_vec=settings["m"], num_steps=settings["steps"], eta=settings["eta"]
        )
        batch = BATCH
    x, y = data(count)

    def run() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            fitted.fit(x.numpy(), y.numpy(), batch_size=batch, nb_epochs=1)

    return run


def main() -> None:
    torch.manual_seed(0)
    network = models.build("lenet")
    train(network, data(4096), noise=NOISE, epochs=3, holdout=0, progress=False)
    network.train()
    methods = {name: kind(**SETTINGS.get(name, {})) for name, kind in METHODS.items()}
    sizes = {
        name: max(round(ROWS / (m.passes.train + m.passes.attack + m.passes.forward) / BATCH), 1) * BATCH
        for name, m in methods.items()
    }
    gentle = TrainingSettings(epochs=1, holdout=0, rate=1e-4, schedule="step", batch_size=BATCH)
    x, y = data(BATCH)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in methods}
    rivals = {name: peer(name, methods[name], network, sizes[name]) for name in ("macer", "smoothmix")}
    for number in range(ROUNDS + 1):
        cost = {kind: bare(network, x, y, kind) for kind in ("train", "attack", "forward")}
        for name, method in methods.items():
            counting = Counting(copy.deepcopy(network))
            batch = data(sizes[name])
            soft = F.one_hot(batch[1], 10) * 0.9 + 0.01
            spent = seconds(
                lambda c=counting, b=batch, m=method, s=soft: train(
                    c, b, noise=NOISE, method=m, settings=gentle, soft_labels=s, progress=False
                )
            )
            least = sum(counting.rows[kind] * cost[kind] for kind in cost)
            rival = rivals.get(name)
            row = {"seconds": spent / sizes[name], "least": least / sizes[name], "ratio": spent / least}
            row |= {f"{kind} copies": counting.rows[kind] / sizes[name] for kind in cost}
            if rival is not None:
                row["peer"] = seconds(rival) / sizes[name]
            if number:  # the first round warms up
                rounds[name].append(row)
    results = {
        name: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for name, rows in rounds.items()
    }
    for name, rows in rounds.items():
        if "peer" in rows[0]:
            results[name]["peer ratio"] = statistics.median(row["peer"] / row["seconds"] for row in rows)
    print(json.dumps({"benchmark": "training", "threads": torch.get_num_threads(), "results": results}))
    table = Table(title=f"Training LeNet: time per image (medians of {ROUNDS} rounds)")
    for column in ("method", "copies", "µs", "least µs", "÷ least", "peer ÷ ours"):
        table.add_column(column, justify="right")
    for name, r in results.items():
        copies = sum(value for key, value in r.items() if key.endswith("copies"))
        rival = f"{r['peer ratio']:.2f}" if "peer ratio" in r else ""
        figures = [f"{copies:.1f}", f"{1e6 * r['seconds']:,.0f}", f"{1e6 * r['least']:,.0f}", f"{r['ratio']:.2f}"]
        table.add_row(name, *figures, rival)
    Console().print(table)


if __name__ == "__main__":
    main()
