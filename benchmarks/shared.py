"""What the benchmarks on real data share: members that differ in their seed, certified runs, and Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from smoothcert import Cohen, Noise, Smoothed, certify_dataset, data
from smoothcert.models import load_model
from smoothcert.report.metrics import acr_text, average_certified_radius, certified_accuracy
from smoothcert.report.recompute import outcomes_of
from smoothcert.training.recipes import load_recipe
from smoothcert.training.run import train_recipe

DOCS = Path(__file__).parents[1] / "docs"


def members(recipe_name: str, seeds: Sequence[int], work: Path) -> list[torch.nn.Module]:
    """Models of one recipe with different seeds, trained where they are missing."""
    recipe = load_recipe(recipe_name)
    found = []
    for seed in seeds:
        folder = work / f"{recipe.name}-seed-{seed}"
        train_recipe(recipe.model_copy(update={"seed": seed}), folder)
        found.append(load_model(folder / "last.safetensors"))
    return found


def kept_out(dataset: str, count: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    """The training images that recipes keep out."""
    x, y = data.load(dataset, split="train").arrays()
    rows = torch.arange(count) * len(x) // count
    return x[rows], y[rows]


def certified(
    name: str,
    model: torch.nn.Module,
    noise: Noise,
    *,
    dataset: str,
    work: Path,
    every: int,
    radii: Sequence[float],
    n: int = 10_000,
) -> dict[str, object]:
    """Certify a model on test images, or read what was certified before."""
    run = certify_dataset(
        Smoothed(model, noise),
        data.load(dataset, split="test"),
        Cohen(n=n),
        run=work / "runs" / "-".join([dataset, noise.name, *name.replace(",", "").split()]),
        every=every,
    )
    outcomes = outcomes_of(run)
    shares = [row["consensus"] for row in run.rows() if row["consensus"] is not None]
    return {
        "inputs": run.table().num_rows,
        "acr": average_certified_radius(outcomes),
        "certified": [float(value) for value in certified_accuracy(outcomes, radii)],
        "kcr": sum(shares) / len(shares) if shares else None,
    }


def table(rows: dict[str, dict[str, object]], radii: Sequence[float], *, kcr: bool = False) -> str:
    """A Markdown table of certified rows, accuracies in percent."""
    head = ("classifier", "ACR", *(f"r = {r:g}" for r in radii), *(["KCR"] if kcr else []))
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, row in rows.items():
        cells = [name, acr_text(row["acr"]), *(f"{100 * share:.1f}" for share in row["certified"])]
        if kcr:
            cells.append("" if row["kcr"] is None else f"{100 * row['kcr']:.1f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
