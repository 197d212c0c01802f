"""``smoothcert leaderboard``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smoothcert.cli.options import output_file
from smoothcert.cli.results import Results
from smoothcert.report.page.html import write_report
from smoothcert.report.page.leaderboard import leaderboard_html
from smoothcert.types import UsageError


def leaderboard(
    paths: Results,
    output: Annotated[Path, output_file("The page")] = Path("leaderboard.html"),
    radius: Annotated[float | None, "The radius at which the page ranks first; the reader can choose another."] = None,
    alpha: Annotated[float, "Probability that a statement is wrong, at which all runs are computed."] = 0.001,
    title: Annotated[str | None, "The heading of the page."] = None,
) -> None:
    """Write a page that ranks runs at a radius that the reader chooses, with intervals and the distribution of p_A.

    Radii are computed again from the stored votes; results without votes, such as logs, are left out and named. Runs
    over other inputs, in another norm or of another guarantee are ranked separately.

    **Examples**

        smoothcert leaderboard zoo -o leaderboard.html
        smoothcert leaderboard zoo runs/mine --radius 0.5
    """
    if output.suffix.lower() not in (".html", ".htm", "") and not output.exists():
        raise UsageError(f"the leaderboard is an HTML page, so {output} must end with .html.")
    size = write_report(output, leaderboard_html(paths, radius=radius, alpha=alpha, title=title))
    typer.echo(f"Leaderboard: {output} ({size / 1e6:.1f} MB), for any browser", err=True)
