"""``smoothcert compare``: which of two runs is better, and is the difference real?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from smoothcert.cli.results import Alpha, Output, Samples, show_notes, write_text
from smoothcert.report import comparison as comparing
from smoothcert.report.metrics import parse_radii
from smoothcert.report.notes import chosen
from smoothcert.report.recompute import outcomes_of
from smoothcert.report.tables.comparison import render_comparison, rich_comparison
from smoothcert.store import Result, find_results
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
    one, two = (outcomes_of(each, n=n, alpha=alpha) for each in _pair(first, second))
    found = comparing.compare(one, two, wanted)
    if output is not None:
        write_text(output, render_comparison(found, format or "md"))
    elif format is None and sys.stdout.isatty():
        Console().print(rich_comparison(found))
    else:
        typer.echo(render_comparison(found, format or "md"), nl=False)
    show_notes(chosen([one, two]))


def _pair(*paths: Path) -> list[Result]:
    found = find_results(paths)
    for path in paths:
        here = [each for each in found if each.path.is_relative_to(path)]
        if len(here) > 1:
            raise UsageError(f"{path} holds {len(here)} runs or logs; name the one to compare, such as {here[0].name}.")
    return found if len(found) == 2 else [found[0], found[0]]  # a run compared with itself
