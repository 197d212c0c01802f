"""``smoothcert compare``: which of two runs is better, and is the difference real?"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smoothcert.cli.results import Alpha, Output, Samples, show_notes, write_text
from smoothcert.report import comparison as comparing
from smoothcert.report.load import load_outcomes
from smoothcert.report.metrics import Outcomes, parse_radii
from smoothcert.report.notes import chosen
from smoothcert.report.tables.comparison import render_comparison, rich_comparison
from smoothcert.types import UsageError


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A run folder or a log.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    radii: Annotated[str | None, typer.Option(help="Radii, as FIRST:LAST:STEP or a,b,c; by default 0, 0.25, …")] = None,
    n: Samples = None,
    alpha: Alpha = None,
    format: Annotated[str | None, typer.Option("--format", "-f", help="md, latex, csv or html.")] = None,
    output: Output = None,
) -> None:
    """Say which of two runs is better, and whether the difference is more than the chance of the test inputs.

    Over the inputs both have: average certified radius (ACR) with a paired-bootstrap interval and a sign-flip test,
    certified accuracy at radii with the exact McNemar test (p-values corrected by Holm's method), a sign test over the
    radii, and the inputs that differ most. Runs in different norms are refused; where the guarantees differ or are
    unknown, neither run is called better. Choose `--n` and `--alpha` before looking at results.

    **Examples**

        smoothcert compare runs/cat-rs runs/gaussian

        smoothcert compare runs/mine published/sigma_0.50 --radii 0,0.5,1

        smoothcert compare runs/long runs/short --n 10000
    """
    wanted = parse_radii(radii) if radii is not None else None
    one, two = _only(first, n, alpha), _only(second, n, alpha)
    if one.name == two.name:
        one, two = replace(one, name=str(first)), replace(two, name=str(second))
    found = comparing.compare(one, two, wanted)
    if output is not None:
        write_text(output, render_comparison(found, format or "md"))
    elif format is None and sys.stdout.isatty():
        Console().print(rich_comparison(found))
    else:
        typer.echo(render_comparison(found, format or "md"), nl=False)
    show_notes(chosen([one, two]))


def _only(path: Path, n: int | None, alpha: float | None) -> Outcomes:
    found = load_outcomes([path], n=n, alpha=alpha)
    if len(found) > 1:
        raise UsageError(f"{path} holds {len(found)} runs or logs; name the one to compare, such as {found[0].name}.")
    return found[0]
