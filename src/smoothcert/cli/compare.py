"""``smoothcert compare``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType

from smoothcert.cli.results import AtAlpha, AtN
from smoothcert.cli.show import Format, Output, Radii, show
from smoothcert.report import comparison as comparing
from smoothcert.report.notes import chosen
from smoothcert.report.recompute import load_outcomes
from smoothcert.report.tables.comparison import render_comparison, rich_comparison
from smoothcert.store import Outcomes
from smoothcert.types import UsageError


def compare(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN", help="Runs or logs; the first is compared with each.")],
    radii: Radii = None,
    at_n: AtN = None,
    at_alpha: AtAlpha = None,
    format: Format = None,
    output: Output = None,
) -> None:
    """Test whether the difference between two runs is more than chance; of several, compare the first with each other.

    Over the inputs that both have: average certified radius (ACR) with a paired-bootstrap interval and a sign-flip
    test, certified accuracy at radii with the exact McNemar test (p-values corrected by Holm's method), a sign test
    over the radii, and the inputs that differ most. Runs in different norms are refused; where the guarantees differ or
    are unknown, neither run is called better. Choose `--at-n` and `--at-alpha` before looking at results.

    **Examples**

        smoothcert compare runs/cat-rs runs/gaussian
        smoothcert compare runs/mine published/sigma_0.50 --radii 0,0.5,1
        smoothcert compare runs/mine runs/gaussian runs/smoothadv
        smoothcert compare runs/long runs/short --at-n 10000
    """
    if len(paths) < 2:
        raise UsageError("a comparison needs at least two runs; name another one.")
    runs = [_only(path, at_n, at_alpha) for path in paths]
    if len({run.name for run in runs}) < len(runs):
        runs = [replace(run, name=str(path)) for run, path in zip(runs, paths, strict=True)]
    found = [comparing.compare(runs[0], other, radii) for other in runs[1:]]

    def shown(format: str | None) -> RenderableType:
        if format is None:
            return Group(*map(rich_comparison, found))
        return "\n".join(render_comparison(each, format) for each in found)

    several = ["p-values are not corrected for the number of comparisons."] if len(found) > 1 else []
    show(shown, format, output, notes=[*chosen(runs), *several])


def _only(path: Path, n: int | None, alpha: float | None) -> Outcomes:
    found = load_outcomes([path], n=n, alpha=alpha)
    if len(found) > 1:
        raise UsageError(f"{path} holds {len(found)} runs or logs; name the one to compare, such as {found[0].name}.")
    return found[0]
