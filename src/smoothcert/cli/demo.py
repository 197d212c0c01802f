"""``smoothcert demo``."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from smoothcert import data, models
from smoothcert.certify import Aces, Cohen, Procedure, Smoothed
from smoothcert.cli.noises import with_arithmetic
from smoothcert.cli.options import output_folder
from smoothcert.cli.plot import PlotOptions, draw_curve
from smoothcert.cli.report import find_dataset
from smoothcert.cli.show import show_accuracy
from smoothcert.evaluate import certify_dataset
from smoothcert.noise import Gaussian
from smoothcert.report.metrics import abstention_rate, certified_accuracy, clean_accuracy
from smoothcert.report.page.html import report_html, write_report
from smoothcert.report.recompute import outcomes_of
from smoothcert.store import Outcomes, Run
from smoothcert.training import train

SIGMAS = (0.12, 0.25)
RADIUS = 0.25
"""The radius in the summary."""

_ACES_SIGMA = 0.5
_CORE_SIGMA = 0.01  # next to no noise: accurate on clean digits, useless under noise


def demo(
    output: Annotated[Path, output_folder("Folder for models, runs and the report.")] = Path("demo"),
    n: Annotated[int, "Estimation samples per input."] = 10_000,
    every: Annotated[int, "Use every N-th test digit."] = 5,
    fresh: Annotated[bool, "Delete earlier models and runs and start again."] = False,
) -> None:
    """Train on the bundled digits at two noise levels, certify, compare, and write a report, in under three minutes.

    A third run is a composition (ACES): a model under strong noise, and an accurate one where that is uncertain.

    **Examples**

        smoothcert demo
        smoothcert demo --n 100000 --every 10 -o /tmp/demo --fresh
    """
    from smoothcert.report.figures.style import save_figure

    if fresh:
        for folder in ("models", "runs"):
            shutil.rmtree(output / folder, ignore_errors=True)
    runs = []
    for sigma in SIGMAS:
        typer.echo(f"σ = {sigma:g}", err=True)
        model = _model(output / "models" / f"sigma-{sigma:.2f}.safetensors", sigma)
        runs.append(_certify(model, sigma, Cohen(n=n), output / "runs" / f"sigma-{sigma:.2f}", every))
    typer.echo(f"ACES: σ = {_ACES_SIGMA:g}, and an accurate core where that model is uncertain", err=True)
    core = _model(output / "models" / "core.safetensors", _CORE_SIGMA, epochs=15)
    model = _model(output / "models" / f"sigma-{_ACES_SIGMA:.2f}.safetensors", _ACES_SIGMA, epochs=20)
    procedure = Aces(core=core.model, n=n, theta=0.5)
    runs.append(_certify(model, _ACES_SIGMA, procedure, output / "runs" / f"aces-{_ACES_SIGMA:.2f}", every))
    outcomes = [outcomes_of(run) for run in runs]
    show_accuracy(outcomes)
    picture, page, paths = output / "certified-accuracy.png", output / "report.html", [run.path for run in runs]
    save_figure(draw_curve(paths, PlotOptions(title="Digits, Gaussian training")), picture)
    write_report(page, report_html(paths, title="Digits, certified", find_dataset=find_dataset))
    typer.echo(f"\n{summary(outcomes[1])}\n\nModels: {output / 'models'}\nRuns: {output / 'runs'}\nPicture: {picture}")
    typer.echo(f"Report: {page}")
    typer.echo(serving(output / "models" / f"sigma-{SIGMAS[-1]:.2f}.safetensors"))


def summary(outcomes: Outcomes) -> str:
    """Explain the result of a run to somebody who sees such numbers for the first time."""
    right, proved = clean_accuracy(outcomes), float(certified_accuracy(outcomes, RADIUS)[0])
    return (
        f"The model trained with σ = {SIGMAS[-1]:g} classifies {right:.1%} of {len(outcomes)} test digits correctly, "
        f"and abstains on {abstention_rate(outcomes):.1%}.\n"
        f"For {proved:.1%} of them it is proved that no change "
        f"of the image up to ℓ2 length {RADIUS:g} can alter the right answer.\nEach such statement is wrong with "
        "probability at most 0.001. A larger σ trades accuracy at 0 for larger radii.\nOpen the report in a browser to "
        "see curves, the votes of single digits, and how ACES trades certificates for accuracy."
    )


def serving(model: Path) -> str:
    """Tell how to open the page of a server on a model."""
    started = Path(sys.argv[0])
    on_path = started.name != "smoothcert" or shutil.which("smoothcert") == str(started)
    command = "smoothcert" if on_path else str(started)
    return (
        "\nDraw a digit and watch its certificate: run\n"
        f"  {command} serve {shlex.quote(str(model))} --radius 0.1,0.25,0.5\n"
        "and open http://127.0.0.1:8000/ in a browser."
    )


def _model(path: Path, sigma: float, epochs: int = 40) -> models.Checkpoint:
    if not path.exists():
        torch.manual_seed(0)
        model = models.build("digits-cnn")
        digits = data.load("digits", split="train")
        train(model, digits, noise=Gaussian(sigma), epochs=epochs, batch_size=64, rate=0.1, holdout=0)
        models.save_checkpoint(path, model, models.CheckpointInfo.of("digits-cnn", sigma=sigma))
    return models.load_checkpoint(path)


def _certify(checkpoint: models.Checkpoint, sigma: float, procedure: Procedure, run: Path, every: int) -> Run:
    digits = data.load("digits", split="test")
    smoothed = Smoothed(checkpoint.model, with_arithmetic(Gaussian(sigma), digits.levels, None))
    source = {"checkpoint": str(checkpoint.path), "sha256": checkpoint.sha256}
    return certify_dataset(smoothed, digits, procedure, run=run, every=every, source=source)
