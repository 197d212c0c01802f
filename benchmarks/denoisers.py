"""What denoisers do for a classifier that never saw noise, alone and as an ensemble of three: digits at σ = 0.25.

Trains a classifier on the clean digits and three denoisers for it that differ in their seed (by squared error, then by
stability), and certifies every fifth test digit with n = 10 000. Rebuilds ``docs/denoisers-digits.md``; nothing else is
kept.

Usage: python benchmarks/denoisers.py [--epochs 40]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import torch

from shared import DOCS, certified, table
from smoothcert import Gaussian, data, models
from smoothcert.classifiers.denoised import Denoised, denoised_ensemble
from smoothcert.training import TrainingSettings, train, train_denoiser

NOISE = Gaussian(0.25)
RADII = (0.0, 0.25, 0.5, 0.75)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=40, help="epochs of each denoiser")
    chosen = parser.parse_args()
    digits = data.load("digits", split="train")
    torch.manual_seed(0)
    classifier = models.build("digits-cnn")
    # Noise a thousand times smaller than a grey level: none.
    train(classifier, digits, noise=Gaussian(1e-6), epochs=20, batch_size=64, rate=0.1)
    denoisers = []
    for seed in range(3):
        torch.manual_seed(seed)
        denoiser = models.build_denoiser("dncnn-small")
        settings = TrainingSettings(epochs=chosen.epochs, batch_size=64, rate=0.02, seed=seed)
        train_denoiser(
            denoiser, digits, NOISE, classifier=classifier, objective="mse-then-stability", settings=settings
        )
        denoisers.append(denoiser)
    named = {
        "classifier": classifier,
        **{f"denoiser {number}": Denoised(classifier, denoiser) for number, denoiser in enumerate(denoisers, 1)},
        "three denoisers": denoised_ensemble(classifier, denoisers),
    }
    with tempfile.TemporaryDirectory() as work:
        rows = {
            name: certified(name, model, NOISE, dataset="digits", work=Path(work), every=5, radii=RADII)
            for name, model in named.items()
        }
    print(json.dumps({"benchmark": "denoisers", "rows": rows}))
    text = f"""\
# Denoisers on the digits at σ = {NOISE.sigma:g}

A small CNN trained without noise, and three small DnCNNs for it ({chosen.epochs} epochs: squared error, then
stability), certified with n = 10 000, α = 0.001 on {rows["classifier"]["inputs"]} test digits. Certified accuracy
is in percent.
`python benchmarks/denoisers.py` rebuilds this page.

{table(rows, RADII)}"""
    (DOCS / "denoisers-digits.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
