"""Certified accuracy in ℓ1 and ℓ0 on MNIST, single models and ensembles of three.

Uniform noise with λ = 1 and discrete noise that keeps a binary pixel with probability 0.8, as in Tables 17 and 19 of
Horváth et al. (2022). Rebuilds ``docs/norms-mnist.md``; trainings and runs are kept in the work folder and continued.

Usage: python benchmarks/norms.py [--work DIR] [--every 50]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from shared import DOCS, certified, kept_out, members, table
from smoothcert import Ensemble
from smoothcert.training.ensembles import rank_members
from smoothcert.training.recipes import load_recipe

SETTINGS = {
    "ℓ1": ("mnist-uniform-1.00-quick", (0.0, 0.25, 0.5, 0.75)),
    "ℓ0": ("mnist-binary-discrete-0.80-quick", tuple(map(float, range(10)))),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("models"), help="where trainings and runs are kept")
    parser.add_argument("--every", type=int, default=50, help="certify every this many-th test image")
    chosen = parser.parse_args()
    results, parts = {}, ["# ℓ1 and ℓ0 on MNIST\n"]
    for norm, (name, radii) in SETTINGS.items():
        recipe = load_recipe(name)
        noise = recipe.build_noise()
        found = members(name, range(3), chosen.work)
        ranked = rank_members(found, *kept_out(recipe.dataset), noise)
        found = [found[member.position] for member in ranked]
        rows = {
            title: certified(
                title, model, noise, dataset=recipe.dataset, work=chosen.work, every=chosen.every, radii=radii
            )
            for title, model in {"k = 1": found[0], "k = 3": Ensemble(found)}.items()
        }
        results[norm] = rows
        parts.append(
            f"## {norm}: {noise!r}\n\n`{name}`, LeNet, n = 10 000, α = 0.001, {rows['k = 1']['inputs']} test images; "
            f"radii in {norm}, certified accuracy in percent.\n\n{table(rows, radii)}"
        )
    print(json.dumps({"benchmark": "norms", "results": results}))
    text = "\n".join(parts) + "\n`python benchmarks/norms.py` rebuilds this page.\n"
    (DOCS / "norms-mnist.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
