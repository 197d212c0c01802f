"""``smoothcert demo``."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import torch
import typer

from smoothcert import data, models
from smoothcert.certify import Aces, Cohen, Procedure, Smoothed
from smoothcert.cli.noises import with_arithmetic
from smoothcert.cli.options import output_folder
from smoothcert.cli.plot import PlotOptions, draw_curve, draw_tradeoff
from smoothcert.cli.report import find_dataset
from smoothcert.cli.show import show, show_accuracy
from smoothcert.evaluate import certify_dataset
from smoothcert.noise import Gaussian
from smoothcert.report.aces import load_components, load_single, natural_accuracy
from smoothcert.report.metrics import (
    abstention_rate,
    acr_text,
    average_certified_radius,
    certified_accuracy,
    clean_accuracy,
)
from smoothcert.report.page.html import report_html, write_report
from smoothcert.report.recompute import outcomes_of
from smoothcert.report.tables.layout import Cell, Column, Line, Sheet
from smoothcert.store import Outcomes, Run, find_results
from smoothcert.training import train
from smoothcert.types import UsageError

SIGMAS = (0.75, 0.5)
"""Noise so strong that it costs accuracy on digits, as usual noise does on photos; ACES composes the last model."""

RADIUS = 0.25
"""The radius in the summary."""

THETA = 0.3

_CORE_SIGMA = 0.01  # next to no noise: accurate on clean digits, useless under noise


def demo(
    output: Annotated[Path, output_folder("Folder for models, runs and the report.")] = Path("demo"),
    n: Annotated[int, "Estimation samples per input."] = 1_000,
    every: Annotated[int, "Use every N-th test digit."] = 1,
    fresh: Annotated[bool, "Delete earlier models and runs and start again."] = False,
) -> None:
    """Train on the bundled digits at two noise levels, certify, compare, and write a report, in under three minutes.

    A third run is a composition (ACES): the better of the two models, and an accurate one where that is uncertain. It
    is right more often than both, and still proves radii.

    **Examples**

        smoothcert demo
        smoothcert demo --n 10000 --every 5 -o /tmp/demo --fresh
    """
    for name in ("lightning_fabric", "matplotlib", "plotly"):
        if find_spec(name) is None:
            raise UsageError(f'the demo needs {name}; pip install "smoothcert[train,report]".')
    from smoothcert.report.figures.style import save_figure

    if fresh:
        for folder in ("models", "runs"):
            shutil.rmtree(output / folder, ignore_errors=True)
    runs = []
    for sigma in SIGMAS:
        typer.echo(f"σ = {sigma:g}", err=True)
        model = _model(output / "models" / f"sigma-{sigma:.2f}.safetensors", sigma)
        runs.append(_certify(model, sigma, Cohen(n=n), output / "runs" / f"sigma-{sigma:.2f}", every))
    typer.echo(f"ACES: the model of σ = {sigma:g}, and an accurate core where it is uncertain", err=True)
    core = _model(output / "models" / "core.safetensors", _CORE_SIGMA, epochs=15)
    procedure = Aces(core=core.model, n=n, theta=THETA)
    runs.append(_certify(model, sigma, procedure, output / "runs" / f"sigma-{sigma:.2f}-aces", every))
    outcomes = [outcomes_of(run) for run in runs]
    show_accuracy(outcomes)
    # In the order of the folder, as in other pictures of it, so that every run has the same colour there.
    picture, page, paths = output / "certified-accuracy.png", output / "report.html", sorted(run.path for run in runs)
    save_figure(draw_curve(paths, PlotOptions(title="Digits, Gaussian training")), picture)
    save_figure(draw_tradeoff(paths, PlotOptions(title="Digits, accuracy and robustness")), output / "tradeoff.png")
    natural = natural_accuracies(runs)
    show(accuracy_and_robustness(outcomes, natural))
    write_report(page, report_html(paths, title="Digits, certified", find_dataset=find_dataset))
    typer.echo(f"\n{summary(outcomes[1])}\n\nModels: {output / 'models'}\nRuns: {output / 'runs'}\nPicture: {picture}")
    typer.echo(f"Report: {page}")
    typer.echo(serving(output / "models" / f"sigma-{SIGMAS[-1]:.2f}.safetensors"))


def natural_accuracies(runs: Sequence[Run]) -> list[float]:
    """Return the share of inputs that PREDICT answers right, for each run."""
    results = find_results([run.path for run in runs])
    return [
        natural_accuracy(load_components(result), THETA) if result.settings.composed else load_single(result).natural
        for result in results
    ]


def accuracy_and_robustness(outcomes: Sequence[Outcomes], natural: Sequence[float]) -> Sheet:
    """Make a table of natural accuracy and average certified radius."""
    cells = (
        (Cell(run.name), Cell(f"{100 * share:.1f}"), Cell(acr_text(average_certified_radius(run))))
        for run, share in zip(outcomes, natural, strict=True)
    )
    columns = (Column("run"), Column("NAC %", better="high"), Column("ACR", better="high"))
    return Sheet("Natural accuracy and average certified radius", columns, tuple(map(Line, cells)))


def summary(outcomes: Outcomes) -> str:
    """Explain the result of a run to somebody who sees such numbers for the first time."""
    right, proved = clean_accuracy(outcomes), float(certified_accuracy(outcomes, RADIUS)[0])
    return (
        f"The model trained with σ = {SIGMAS[-1]:g} classifies {right:.1%} of {len(outcomes)} test digits correctly, "
        f"and abstains on {abstention_rate(outcomes):.1%}.\n"
        f"For {proved:.1%} of them it is proved that no change "
        f"of the image up to ℓ2 length {RADIUS:g} can alter the right answer.\nEach such statement is wrong with "
        "probability at most 0.001.\nNoise costs natural accuracy (NAC). ACES gives the digits on which that model is "
        "uncertain to an accurate one, which proves nothing about them: compare NAC and ACR with those of the models "
        "alone.\nOpen the report in a browser to see curves, the votes of single digits, and how ACES trades "
        "certificates for accuracy."
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
