"""``smoothcert plot``: pictures of runs and logs."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from smoothcert.cli.options import check_choice
from smoothcert.cli.pictures import KINDS, PlotOptions
from smoothcert.types import UsageError


def plot(
    paths: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders, log files, or folders that hold some.")
    ],
    options: PlotOptions,
    kind: Annotated[str, typer.Option("--kind", "-k", help=f"What to draw: {', '.join(KINDS)}.")] = "curve",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Picture: .png, .pdf or .svg (KIND.png); - is a PNG on standard output."),
    ] = None,
) -> None:
    """Draw runs and logs.

    `curve`: certified accuracy over the radius. `tradeoff`: robustness over natural accuracy. `effect`: robustness over
    a setting in which the runs differ. `confidence`: how the probability of the top class is distributed over inputs.
    `samples`: how many samples the inputs took. `inputs`: inputs under noise, and their votes.

    **Examples**

        smoothcert plot demo/runs -o curves.pdf

        smoothcert plot runs/mine published/sigma_0.50 --envelope --intervals

        smoothcert plot runs/* --kind tradeoff --radius 0.5

        smoothcert plot runs/* --kind effect --over noise.sigma --radii 0,0.25,0.5

        smoothcert plot runs/* --kind effect --over recipe.method.lam --bars sd

        smoothcert plot demo/runs --kind confidence

        smoothcert plot runs/anytime runs/fixed --kind samples

        smoothcert plot demo/runs/sigma-0.25 --kind inputs --index 4,18
    """
    check_choice("kind of picture", kind, KINDS)
    for option in fields(options):
        users = [name for name, each in KINDS.items() if option.name in each.options]
        if users and kind not in users and getattr(options, option.name) not in (None, False):
            raise UsageError(f"--{option.name.replace('_', '-')} is for the kind {' or '.join(users)}, not for {kind}.")
    from smoothcert.report.figures.style import check_suffix, save_figure  # matplotlib takes a second to load

    picture = output or Path(f"{kind}.png")
    check_suffix(picture)
    save_figure(KINDS[kind].draw(paths, options), picture)
    typer.echo(f"Picture: {picture}", err=True)
