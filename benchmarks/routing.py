"""Who answers, on Fashion-MNIST: ACES, a noise scale per input and the router next to single smoothed classifiers.

Trains Gaussian LeNets at σ = 0.25, 0.50 and 1.00, certifies each on the test images 0, 50, 100, … (n = 10 000), ACES
around each with every threshold and a LeNet without noise as its core, the model at σ = 0.50 with a scale chosen for
each input (pointwise and with a memory), and the router between the three, whose selector is trained on the votes for
training images. A more accurate core, a ResNet-20, is put into the stored runs of ACES afterwards. Then measures what
keeping all thresholds costs. Rebuilds ``docs/routing-fashion-mnist.md`` and its pictures;
trainings and runs are kept in the work folder and continued.

Usage: python benchmarks/routing.py [--work DIR] [--every 50] [--n 10000] [--set SETTING=VALUE ...]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from shared import DOCS
from smoothcert import (
    Aces,
    Cohen,
    Gaussian,
    Memory,
    Procedure,
    Run,
    Smoothed,
    certify_dataset,
    data,
    models,
)
from smoothcert.models import load_model
from smoothcert.report.aces import compose, load_components, load_single, natural_accuracy
from smoothcert.report.figures.aces import entropy_figure, pareto_figure, selection_figure
from smoothcert.report.figures.inputs import scales_figure
from smoothcert.report.figures.style import save_figure
from smoothcert.report.metrics import acr_text, average_certified_radius, certified_accuracy
from smoothcert.report.recompute import outcomes_of
from smoothcert.sampling.sigma import OptimizeSigma
from smoothcert.store import Outcomes
from smoothcert.store.selector_labels import best_of
from smoothcert.training import train
from smoothcert.training.recipes import load_recipe
from smoothcert.training.run import train_recipe

DATASET = "fashion-mnist"
SIGMAS = (0.25, 0.5, 1.0)
MIDDLE = 0.5
RADII = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
THETAS = (0.1, 0.3, 0.5)
PAGE = DOCS / f"routing-{DATASET}.md"
SOLVER = OptimizeSigma(steps=200, n=8, step=1e-3, interval=(0.1, 1.5))


class Bench:
    """The work folder, and what all runs share."""

    def __init__(self, work: Path, every: int, n: int, votes: int, changes: Sequence[str]) -> None:
        self.work, self.every, self.n, self.votes, self.changes = work, every, n, votes, list(changes)
        self.test = data.load(DATASET, split="test")

    def trained(self, name: str, sigma: float, changes: Sequence[str] = ()) -> nn.Module:
        recipe = load_recipe(f"{DATASET}-gaussian-{sigma:.2f}-quick", [*changes, *self.changes])
        folder = self.work / "models" / name
        train_recipe(recipe, folder)
        return load_model(folder / "last.safetensors")

    def certified(self, name: str, smoothed: Smoothed, procedure: Procedure | None = None) -> Run:
        return certify_dataset(
            smoothed,
            self.test,
            procedure or Cohen(n=self.n),
            run=self.work / "runs" / name,
            every=self.every,
        )

    def accurate_core(self) -> Path:
        """The answers of a ResNet-20 trained without noise, as a log."""
        folder = self.work / "models" / "core-resnet"
        model = models.build("cifar-resnet20", in_channels=1)
        train(
            model,
            data.load(DATASET, split="train"),
            noise=Gaussian(1e-6),
            epochs=7,
            batch_size=128,
            rate=0.1,
            weight_decay=5e-4,
            votes=1,
            folder=folder,
        )
        model = load_model(folder / "last.safetensors").eval()
        lines = ["idx\tlabel\tpredict"]
        for index in range(0, len(self.test), self.every):
            x, label = self.test[index]
            with torch.inference_mode():
                lines.append(f"{index}\t{int(label)}\t{int(model(x[None]).argmax())}")
        log = self.work / "core-resnet.tsv"
        log.write_text("\n".join(lines) + "\n")
        return log

    def selector(self, experts: Sequence[Smoothed]) -> nn.Module:
        """A selector trained on which expert proves most for training images."""
        train, runs = data.load(DATASET, split="train"), []
        for expert, sigma in zip(experts, SIGMAS, strict=True):
            folder = self.work / "runs" / f"train-{sigma:.2f}"
            runs.append(certify_dataset(expert, train, Cohen(n=300), run=folder, every=self.votes, start=1))
        index, label = best_of(runs)
        file = self.work / "sigma.npz"
        images = np.stack([train[int(i)][0].numpy() for i in index])
        np.savez(file, x=images, y=label, class_names=np.array([f"{sigma:g}" for sigma in SIGMAS]))
        return self.trained("selector", MIDDLE, [f"dataset={file}", "holdout=0"])


def sweep_cost(model: nn.Module, core: nn.Module, bench: Bench, turns: int = 5) -> float:
    """How much longer ACES with all thresholds takes than the certifier alone: median over turns in alternation."""
    procedures = (Cohen(n=bench.n), Aces(core=core, n=bench.n))
    indices, seconds = range(0, len(bench.test), len(bench.test) // 20), np.zeros((turns, 2))
    smoothed = Smoothed(model, Gaussian(MIDDLE))
    smoothed.prepare(bench.test[0][0], samples=200 * bench.n)
    for turn in range(turns):
        for number, procedure in enumerate(procedures):
            begin = time.perf_counter()
            inputs = ((index, bench.test[index][0]) for index in indices)
            for _ in smoothed.run(inputs, procedure, procedure.certify, count=len(indices)):
                pass
            seconds[turn, number] = time.perf_counter() - begin
    return float(np.median(seconds[:, 1] / seconds[:, 0]))


def line(name: str, guarantee: str, outcomes: Outcomes, natural: float | None) -> dict[str, object]:
    return {
        "classifier": name,
        "guarantee": guarantee,
        "natural": natural,
        "acr": average_certified_radius(outcomes),
        "certified": [float(value) for value in certified_accuracy(outcomes, RADII)],
    }


def table(lines: Sequence[dict[str, object]]) -> str:
    head = ("classifier", "guarantee", "NAC", "ACR", *(f"r = {r:g}" for r in RADII))
    text = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in lines:
        natural = "" if row["natural"] is None else f"{100 * row['natural']:.1f}"
        shares = " | ".join(f"{100 * share:.1f}" for share in row["certified"])
        text.append(f"| {row['classifier']} | {row['guarantee']} | {natural} | {acr_text(row['acr'])} | {shares} |")
    return "\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("models/routing"), help="where trainings and runs are kept")
    parser.add_argument("--every", type=int, default=50, help="certify every this many-th test image")
    parser.add_argument("--n", type=int, default=10_000, help="estimation samples")
    parser.add_argument("--votes", type=int, default=40, help="label every this many-th training image")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="a setting of all recipes")
    chosen = parser.parse_args()
    bench = Bench(chosen.work, chosen.every, chosen.n, chosen.votes, chosen.changes)
    smooth = {sigma: bench.trained(f"gaussian-{sigma:.2f}", sigma) for sigma in SIGMAS}
    core = bench.trained("core", MIDDLE, ["noise.sigma=0.000001", "epochs=8"])
    experts = [Smoothed(model, Gaussian(sigma)) for sigma, model in smooth.items()]
    accurate = bench.accurate_core()
    singles, compositions, lines = [], [], []
    for sigma, expert in zip(SIGMAS, experts, strict=True):
        run = bench.certified(f"single-{sigma:.2f}", expert)
        singles.append(load_single(run.path))
        lines.append(line(f"σ = {sigma:g}", "global", singles[-1].outcomes, singles[-1].natural))
    for sigma, expert in zip(SIGMAS, experts, strict=True):
        run = bench.certified(f"aces-{sigma:.2f}", expert, Aces(core=core, n=bench.n))
        for core_name, answers in {"LeNet": None, "ResNet-20": accurate}.items():
            parts = load_components(run.path, answers)
            title = f"σ = {sigma:g}, {core_name}"
            compositions.append(replace(parts, certifier=replace(parts.certifier, name=title)))
            for theta in THETAS:
                name = f"ACES, {title}, θ = {theta:g}"
                lines.append(line(name, "routed", compose(parts, theta), natural_accuracy(parts, theta)))
    pointwise = bench.certified("pointwise", Smoothed(smooth[MIDDLE], Gaussian(MIDDLE), sigma=SOLVER))
    lines.append(line("σ chosen from 0.5", "pointwise", outcomes_of(pointwise), None))
    memory = Memory(bench.work / "balls.safetensors")
    remembered = bench.certified("memory", Smoothed(smooth[MIDDLE], Gaussian(MIDDLE), sigma=SOLVER, memory=memory))
    memory.save()
    memory.close()
    lines.append(line("σ chosen from 0.5", "memory", outcomes_of(remembered), None))
    router = Smoothed(bench.selector(experts), Gaussian(MIDDLE), experts=experts)
    routed = bench.certified("router", router)
    lines.append(line("router over σ = 0.25, 0.5, 1", "routed", outcomes_of(routed), None))
    cost = sweep_cost(smooth[MIDDLE], core, bench)
    save_figure(pareto_figure(compositions, singles), DOCS / f"pareto-{DATASET}.png")
    save_figure(selection_figure(compositions[2], THETAS), DOCS / f"selection-{DATASET}.png")
    save_figure(entropy_figure(compositions[2], 0.5, theta=0.3), DOCS / f"entropy-{DATASET}.png")
    save_figure(_scales(bench, pointwise), DOCS / f"scales-{DATASET}.png")
    print(json.dumps({"benchmark": "routing", "rows": lines, "sweep": cost}))
    inputs = len(singles[0].outcomes)
    text = f"""\
# Who answers, on Fashion-MNIST

Gaussian LeNets (`fashion-mnist-gaussian-σ-quick`), n = {bench.n:,}, α = 0.001, {inputs} test images. The cores of ACES
are a LeNet and a ResNet-20 trained without noise; the latter was put into the stored runs afterwards. NAC (natural
accuracy, by PREDICT) and certified accuracy are in percent. What the guarantees cover is said in
[per-input.md](per-input.md) and [router.md](router.md). `python benchmarks/routing.py` rebuilds this page.

{table(lines)}
Keeping the votes at all 101 thresholds made certification {100 * (cost - 1):+.1f} % slower than the certifier alone
(median of five turns in alternation).

![ACR over natural accuracy](pareto-{DATASET}.png)

*ACR (ℓ2) over natural accuracy (%): ACES around each model, over all thresholds θ; triangles are the models alone.*

![Radii of the selection](selection-{DATASET}.png)

*Certified ℓ2 radius of the selection over the percentile of inputs, ACES around σ = 0.5.*

![Certified share over median entropy](entropy-{DATASET}.png)

*Inputs that the model at σ = 0.5 certifies correctly at ℓ2 radius 0.5, over their median entropy.*

![Inputs under two scales](scales-{DATASET}.png)

*Inputs without noise, under σ₀ = 0.5, and under the σ\\* chosen for each of them.*
"""
    PAGE.write_text(text, encoding="utf-8")
    print(text)


def _scales(bench: Bench, run: Run):
    """Inputs with the smallest, middle and largest scales."""
    rows = sorted(run.rows(), key=lambda row: row["sigma"])
    shown = [rows[round(place)] for place in np.linspace(0, len(rows) - 1, 6)]
    images = [bench.test[row["index"]][0].numpy() for row in shown]
    scales = {"σ₀": [MIDDLE] * len(shown), "σ*": [row["sigma"] for row in shown]}
    return scales_figure(images, scales, names=[bench.test.class_names[row["label"]] for row in shown])


if __name__ == "__main__":
    main()
