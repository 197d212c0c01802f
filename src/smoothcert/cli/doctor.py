"""``smoothcert doctor``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smoothcert.cli.classifiers import ClassifierOptions, DataOptions, InputOptions, load_smoothed
from smoothcert.cli.noises import DrawnNoiseOptions
from smoothcert.cli.options import choice
from smoothcert.cli.procedures import ProcedureOptions
from smoothcert.compositions import trained_noise
from smoothcert.doctor import Finding, Level, examine
from smoothcert.store.selection import select
from smoothcert.types import UsageError

_STYLES = {Level.INFO: ("ok", "green"), Level.WARNING: ("warning", "yellow"), Level.ERROR: ("ERROR", "bold red")}


def doctor(
    about: DataOptions,
    noise: DrawnNoiseOptions,
    how: ProcedureOptions,
    inputs: InputOptions,
    classifier: ClassifierOptions,
    seconds: Annotated[float, typer.Option(min=1, help="How long the examination may take.")] = 60.0,
    format: Annotated[str, choice("format", ["table", "json"], "Format", "--format", "-f")] = "table",
) -> None:
    """Look for what would invalidate certificates or waste a long run, before it starts.

    Give the options of the `certify` command you plan. Within a minute it compares values of inputs with what the model
    expects, looks for missing and double normalisation, training mode, randomness and dependence on the batch, compares
    σ with that of the training, measures accuracy with and without noise, forecasts abstentions, and measures runtimes
    and the time of the planned run. Each finding says what to do.

    Exit code: 0 without errors (there may be warnings), 1 if an error was found and the run should not be started, 2 if
    the examination itself could not be made.

    **Examples**

        smoothcert doctor demo/models/sigma-0.25.safetensors --data digits
        smoothcert doctor lenet.safetensors --data mnist --sigma 0.5 --procedure anytime --radius 0.5
        smoothcert doctor cohen.pth.tar --data cifar10 --sigma 0.5 --every 20 --format json
    """
    chosen, procedure = noise.build(), how.build(classifier.aces)
    dataset = about.load()
    loaded = load_smoothed(classifier, [dataset], chosen, noise.exact)
    smoothed, procedure = loaded.smoothed, loaded.completed(procedure)
    try:
        trained = trained_noise(loaded.opened.base)
    except UsageError:  # not recorded, or several
        trained = None
    procedure, _ = how.share(procedure, len(select(len(dataset), **vars(inputs))), smoothed.device)
    with Console(stderr=True).status("") as status:
        found = examine(
            smoothed,
            dataset,
            procedure,
            **vars(inputs),
            trained=trained,
            seconds=seconds,
            progress=status.update,
        )
    if format == "json":
        typer.echo(json.dumps([finding.as_dict() for finding in found], indent=2, ensure_ascii=False))
    else:
        _show(found)
    if any(finding.level is Level.ERROR for finding in found):
        raise typer.Exit(1)


def _show(found: Sequence[Finding]) -> None:
    table = Table("", "check", "found, and what to do", box=box.SIMPLE_HEAD)
    for finding in found:
        word, style = _STYLES[finding.level]
        advice = f"\n[bold]→ {escape(finding.advice)}[/bold]" if finding.advice else ""
        table.add_row(f"[{style}]{word}[/{style}]", finding.title, escape(finding.detail) + advice)
    Console().print(table)
    levels = Counter(finding.level for finding in found)
    errors, warnings = levels[Level.ERROR], levels[Level.WARNING]
    warned = f"{warnings} warning{'s' * (warnings != 1)}"
    if errors:
        typer.echo(f"{errors} error{'s' * (errors != 1)} and {warned}: do not start the run before they are fixed.")
    elif warnings:
        typer.echo(f"No errors and {warned}: certificates would be valid.")
    else:
        typer.echo("Nothing was found that would invalidate certificates or waste the run.")
