"""The variance model against what is measured: success probabilities of Gaussian LeNets on MNIST at σ = 0.50.

Usage: python benchmarks/variance.py [--work DIR] [--inputs 50]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from rich.progress import track

from shared import DOCS, members
from smoothcert import Gaussian, data
from smoothcert.report.figures.style import save_figure
from smoothcert.report.figures.variance import success_figure
from smoothcert.sampling.member_logits import member_logits
from smoothcert.stats import compare_with_votes, estimate_variance

NOISE, SIZES, COPIES = Gaussian(0.5), (1, 3, 5), 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("models"), help="where trainings are kept")
    parser.add_argument("--inputs", type=int, default=50, help="how many test images")
    chosen = parser.parse_args()
    found = members("mnist-gaussian-0.50-quick", range(5), chosen.work)
    test = data.load("mnist", split="test")
    differences, zetas, widest = [], [], (0.0, None)
    for index in track(range(0, len(test), len(test) // chosen.inputs), "compare"):
        drawn = member_logits(found, test[index][0], NOISE, n=COPIES, index=index)
        fresh = member_logits(found, test[index][0], NOISE, n=COPIES, index=index, start=COPIES)
        model = estimate_variance(drawn.clean, drawn.noisy)
        agreement = compare_with_votes(model, fresh.noisy, SIZES)
        differences.append(np.abs(agreement.given_members - agreement.measured))
        zetas.append(model.zeta_p)
        spread = float(np.ptp(agreement.measured))
        if spread >= widest[0]:
            widest = (spread, agreement)
    mean = {k: float(value) for k, value in zip(SIZES, np.mean(differences, axis=0), strict=True)}
    print(json.dumps({"benchmark": "variance", "inputs": len(differences), "difference": mean}))
    print(f"Mean |modelled − measured| over {len(differences)} images: {mean}; mean zeta_p {np.mean(zetas):.2f}.")
    save_figure(success_figure(widest[1]), DOCS / "variance-mnist.png")


if __name__ == "__main__":
    main()
