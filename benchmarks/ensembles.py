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

from smoothcert import Anytime, Cohen, Consensus, Ensemble, Gaussian, Smoothed, certify_dataset, data, load_run
from smoothcert.models import load_model
from smoothcert.report.load import run_outcomes
from smoothcert.report.metrics import acr_text, average_certified_radius, certified_accuracy
from smoothcert.training.ensembles import fit_weights, rank_members
from smoothcert.training.recipes import load_recipe
from smoothcert.training.run import train_recipe

PAGE = Path(__file__).parents[1] / "docs" / "ensembles-mnist.md"
NOISE = Gaussian(0.5)
SEEDS = range(5)
RADII = (0.0, 0.5, 1.0, 1.5)
TARGET = 1.0
FIXED = Cohen(n=100_000)


def members(work: Path) -> list[torch.nn.Module]:
    """The members, trained where they are missing."""
    recipe = load_recipe("mnist-gaussian-0.50-quick")
    found = []
    for seed in SEEDS:
        folder = work / f"{recipe.name}-seed-{seed}"
        train_recipe(recipe.model_copy(update={"seed": seed}), folder)
        found.append(load_model(folder / "last.safetensors"))
    return found


def kept_out(count: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    """The training images that the recipe keeps out."""
    x, y = data.load("mnist", split="train").arrays()
    rows = torch.arange(count) * len(x) // count
    return x[rows], y[rows]


def certified(name: str, model: torch.nn.Module, work: Path, every: int) -> dict[str, object]:
    """Certify a model, or read what was certified before."""
    run = certify_dataset(
        Smoothed(model, NOISE),
        data.load("mnist", split="test"),
        Cohen(n=10_000),
        run=work / "runs" / name.replace(" ", "-"),
        every=every,
    )
    outcomes = run_outcomes(run, name)
    shares = [row["consensus"] for row in run.rows() if row["consensus"] is not None]
    return {
        "acr": average_certified_radius(outcomes),
        "certified": [float(value) for value in certified_accuracy(outcomes, RADII)],
        "kcr": sum(shares) / len(shares) if shares else None,
    }


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


def page(rows: dict[str, dict[str, object]], saved: dict[str, float], facts: dict[str, object], inputs: int) -> str:
    head = ("classifier", "ACR", *(f"r = {r:g}" for r in RADII), "KCR")
    lines = [
        "# Ensembles on MNIST at σ = 0.50\n",
        "Gaussian LeNets of five seeds (`mnist-gaussian-0.50-quick`), certified with n = 10 000, α = 0.001 on\n"
        f"{inputs} test images (0, 100, 200, …). Certified accuracy and the share decided by two members (KCR) are in "
        "percent.\nMembers are ordered, and weights learned, on the 500 training images kept out; "
        "`python benchmarks/ensembles.py` rebuilds this page.\n",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    for name, row in rows.items():
        shares = " | ".join(f"{100 * share:.1f}" for share in row["certified"])
        kcr = "" if row["kcr"] is None else f"{100 * row['kcr']:.1f}"
        lines.append(f"| {name} | {acr_text(row['acr'])} | {shares} | {kcr} |")
    best = max(row["acr"] for name, row in rows.items() if name.startswith("member"))
    gain = (rows["five, consensus of two"]["acr"] - best) / (rows["five, soft"]["acr"] - best)
    lines += [
        "",
        f"Consensus of two keeps {100 * gain:.0f} % of what five members gain over the best one, and certifies "
        f"{saved['consensus']:.2f} × faster\nthan asking all five. With Anytime at radius {TARGET:g} it takes "
        f"{saved['anytime']:.0f} × less time per image than *one* member with\nn = 100 000. "
        f"Weights of the members in order: {', '.join(f'{w:.2f}' for w in facts['weights'])}.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("models"), help="where trainings and runs are kept")
    parser.add_argument("--every", type=int, default=100, help="certify every this many-th test image")
    chosen = parser.parse_args()
    found = members(chosen.work)
    x, y = kept_out()
    ranked = rank_members(found, x, y, NOISE)
    found = [found[member.position] for member in ranked]
    rows = {f"member {n}": certified(f"member {n}", model, chosen.work, chosen.every) for n, model in enumerate(found)}
    facts: dict[str, object] = {"accuracy": [member.accuracy for member in ranked]}
    for words, size in (("three", 3), ("five", 5)):
        weights = fit_weights(found[:size], x, y, NOISE)
        facts["weights"] = weights
        for vote in ("soft", "hard", "softmax", "weighted"):
            model = Ensemble(found[:size], vote, weights if vote == "weighted" else None)
            rows[f"{words}, {vote}"] = certified(f"{words}, {vote}", model, chosen.work, chosen.every)
    name = "five, consensus of two"
    rows[name] = certified(name, Consensus(found, 2), chosen.work, chosen.every)
    saved = measure(found)
    inputs = load_run(chosen.work / "runs" / "member-0").table().num_rows
    print(json.dumps({"benchmark": "ensembles", "rows": rows, "saved": saved, **facts}))
    text = page(rows, saved, facts, inputs)
    PAGE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
