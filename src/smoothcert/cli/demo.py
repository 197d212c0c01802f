"""``smoothcert demo``: the whole way from data to certified accuracy on the bundled digits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import torch
import typer

from smoothcert import data, models
from smoothcert.certify import Cohen, Smoothed
from smoothcert.cli.results import show_table
from smoothcert.noise import Gaussian
from smoothcert.report.load import run_outcomes, sampling_limit
from smoothcert.store import certify_dataset
from smoothcert.training import METHODS, TrainingSettings, train

SIGMAS = (0.12, 0.25)


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where models, runs and the picture go.")] = Path(
        "demo"
    ),
    n: Annotated[int, typer.Option("--n", help="Estimation samples per input.")] = 10_000,
    every: Annotated[int, typer.Option(help="Certify every this many-th test digit.")] = 2,
    fresh: Annotated[bool, typer.Option(help="Start anew instead of continuing what is there.")] = False,
) -> None:
    """Train on the bundled digits at two noise levels, certify, compare, and draw: about a minute on a laptop.

    **Examples**

        smoothcert demo

        smoothcert demo --n 100000 --every 10 -o /tmp/demo --fresh
    """
    from smoothcert.report.plots import certified_accuracy_figure
    from smoothcert.report.style import save_figure

    if fresh:
        for folder in ("models", "runs"):
            shutil.rmtree(output / folder, ignore_errors=True)
    runs = []
    for sigma in SIGMAS:
        typer.echo(f"σ = {sigma:g}", err=True)
        path = output / "models" / f"sigma-{sigma:.2f}.safetensors"
        if not path.exists():
            _train(path, sigma)
        checkpoint = models.load_checkpoint(path)
        runs.append(
            certify_dataset(
                Smoothed(checkpoint.model, Gaussian(sigma)),
                data.load("digits", split="test"),
                Cohen(n=n),
                run=output / "runs" / f"sigma-{sigma:.2f}",
                every=every,
                source={"checkpoint": str(checkpoint.path), "sha256": checkpoint.sha256},
            )
        )
    outcomes = [run_outcomes(run) for run in runs]
    show_table(outcomes)
    limits = {run.name: limit for run in runs if (limit := sampling_limit(run)) is not None}
    picture = output / "certified-accuracy.png"
    save_figure(certified_accuracy_figure(outcomes, limits=limits, title="Digits, Gaussian training"), picture)
    typer.echo(
        "\nEach number is the share of test digits that are classified correctly *and* stay so, provably, under any"
        "\nperturbation of at most that ℓ2 length. A larger σ trades accuracy at 0 for larger radii."
        f"\n\nModels: {output / 'models'}\nRuns: {output / 'runs'}\nPicture: {picture}"
        f"\nNext: smoothcert info {runs[0].path}"
    )


def _train(path: Path, sigma: float) -> None:
    digits = data.load("digits", split="train")
    torch.manual_seed(0)
    model = models.build("digits-cnn")
    settings = TrainingSettings(epochs=40, batch_size=64, rate=0.1, holdout=0)
    train(model, digits, Gaussian(sigma), METHODS["gaussian"](), settings)
    models.save_checkpoint(path, model, models.CheckpointInfo.of("digits-cnn", sigma=sigma))
