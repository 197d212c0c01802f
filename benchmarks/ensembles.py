"""Ensembles of Gaussian LeNets on MNIST at σ = 0.50: members, votes, K-consensus, and all of it with Anytime.

Trains five members that differ in their seed (``smoothcert train mnist-gaussian-0.50-quick --set seed=1`` …), orders
and weighs them on the training images kept out, certifies them alone and in ensembles of three and five by every vote
(n = 10 000, test images 0, 100, 200, …), then measures in one run, in alternation, what K-consensus and Anytime save.
Rebuilds ``docs/ensembles-mnist.md``. Trainings and runs are kept in the work folder and continued.

Usage: python benchmarks/ensembles.py [--work DIR] [--every 100]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from shared import DOCS, certified, kept_out, members, table
from smoothcert import Anytime, Cohen, Consensus, Ensemble, Gaussian, Smoothed, data
from smoothcert.training.ensembles import fit_weights, rank_members

NOISE = Gaussian(0.5)
SEEDS = range(5)
RADII = (0.0, 0.5, 1.0, 1.5)
TARGET = 1.0
FIXED = Cohen(n=100_000)


def timed(model: torch.nn.Module, procedure: Cohen | Anytime, indices: range) -> float:
    """Seconds to certify test images, with the runtime prepared before."""
    test = data.load("mnist", split="test")
    smoothed = Smoothed(model, NOISE)
    smoothed.prepare(test[0][0], samples=len(indices) * procedure.expected_samples)
    begin = time.perf_counter()
    inputs = ((index, test[index][0]) for index in indices)
    for _ in smoothed.run(inputs, procedure, procedure.certify, count=len(indices)):
        pass
    return time.perf_counter() - begin


def measure(found: list[torch.nn.Module], turns: int = 3) -> dict[str, float]:
    """What consensus and Anytime save, by the clock: medians over turns in alternation."""
    few, many = range(0, 10_000, 1000), range(0, 10_000, 100)
    soft, consensus = Ensemble(found), Consensus(found, 2)
    ratios: dict[str, list[float]] = {"consensus": [], "anytime": []}
    for _ in range(turns):
        every_member = timed(soft, Cohen(n=10_000), few)
        ratios["consensus"].append(every_member / timed(consensus, Cohen(n=10_000), few))
        fixed = timed(found[0], FIXED, few) / len(few)
        early = timed(consensus, Anytime(radius=TARGET), many) / len(many)
        ratios["anytime"].append(fixed / early)
    return {name: sorted(values)[turns // 2] for name, values in ratios.items()}


def page(rows: dict[str, dict[str, object]], saved: dict[str, float], weights: tuple[float, ...]) -> str:
    best = max(row["acr"] for name, row in rows.items() if name.startswith("member"))
    gain = (rows["five, consensus of two"]["acr"] - best) / (rows["five, soft"]["acr"] - best)
    return f"""\
# Ensembles on MNIST at σ = 0.50

Gaussian LeNets of five seeds (`mnist-gaussian-0.50-quick`), certified with n = 10 000, α = 0.001 on
{rows["five, soft"]["inputs"]} test images (0, 100, 200, …). Certified accuracy and the share decided by two members
(KCR) are in percent. Members are ordered, and weights learned, on the 500 training images kept out.
`python benchmarks/ensembles.py` rebuilds this page.

{table(rows, RADII, kcr=True)}
Consensus of two keeps {100 * gain:.0f} % of what five members gain over the best one, and certifies
{saved["consensus"]:.2f} × faster than asking all five. With Anytime at radius {TARGET:g} it takes
{saved["anytime"]:.0f} × less time per image than *one* member with n = 100 000. Weights of the members in order:
{", ".join(f"{weight:.2f}" for weight in weights)}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("models"), help="where trainings and runs are kept")
    parser.add_argument("--every", type=int, default=100, help="certify every this many-th test image")
    chosen = parser.parse_args()
    found = members("mnist-gaussian-0.50-quick", SEEDS, chosen.work)
    x, y = kept_out("mnist")
    ranked = rank_members(found, x, y, NOISE)
    found = [found[member.position] for member in ranked]
    models: dict[str, torch.nn.Module] = {f"member {number}": model for number, model in enumerate(found, 1)}
    weights: tuple[float, ...] = ()
    for words, size in (("three", 3), ("five", 5)):
        weights = fit_weights(found[:size], x, y, NOISE)
        for vote in ("soft", "hard", "softmax", "weighted"):
            models[f"{words}, {vote}"] = Ensemble(found[:size], vote, weights if vote == "weighted" else None)
    models["five, consensus of two"] = Consensus(found, 2)
    rows = {
        name: certified(name, model, NOISE, dataset="mnist", work=chosen.work, every=chosen.every, radii=RADII)
        for name, model in models.items()
    }
    saved = measure(found)
    accuracies = [member.accuracy for member in ranked]
    print(json.dumps({"benchmark": "ensembles", "rows": rows, "saved": saved, "accuracy": accuracies}))
    text = page(rows, saved, weights)
    (DOCS / "ensembles-mnist.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
