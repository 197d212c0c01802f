"""``smoothcert report``: one HTML page about runs, for a browser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from smoothcert import data
from smoothcert.report.metrics import parse_radii
from smoothcert.report.page.html import report_html, write_report
from smoothcert.types import DataError, UsageError


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…",
            help="Run folders, log files, folders that hold some, or the common prefix of published ACES logs.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write; - is standard output.")] = Path(
        "report.html"
    ),
    radii: Annotated[
        str | None, typer.Option(help="Radii of the overview, as FIRST:LAST:STEP or a,b,c; by default 0, 0.25, …")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The heading of the page.")] = None,
    data_name: Annotated[
        str | None,
        typer.Option(
            "--data", metavar="NAME|FILE", help="Take images from this dataset; by default from the one a run names."
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="The split of --data.")] = "test",
    no_images: Annotated[bool, typer.Option("--no-images", help="Leave the images out.")] = False,
    core: Annotated[
        Path | None, typer.Option(help="Predictions of the core of ACES logs: a log (idx, label, predict).")
    ] = None,
) -> None:
    """Write a page that shows runs side by side: table, curves, thresholds of ACES, and every input with its votes.

    The page is one file. It opens in any browser without a network, and loads nothing. Runs in different norms or over
    different inputs are shown apart; what only some runs have is left out, and the page says so.

    **Examples**

        smoothcert report demo/runs -o report.html

        smoothcert report runs/mine published/sigma_0.50 --radii 0:2:0.25 --title "Mine against the published"

        smoothcert report runs/own-data --data images.npz

        smoothcert report logs/cifar10_consistency_025 --core logs/lanet_core_prediction --no-images
    """
    if no_images and data_name is not None:
        raise UsageError("--data names images that --no-images leaves out; give only one of them.")
    if output.suffix.lower() not in (".html", ".htm", "") and not output.exists():
        raise UsageError(f"the report is an HTML page, so {output} must end with .html; figures: `smoothcert plot`.")
    if not output.resolve().parent.is_dir():
        raise UsageError(f"there is no folder {output.resolve().parent} for the page; make it first.")
    page = report_html(
        paths,
        radii=parse_radii(radii) if radii is not None else None,
        title=title,
        core=core,
        find_dataset=None if no_images else find_dataset,
        dataset=data.load(data_name, split=split) if data_name is not None else None,
    )
    size = write_report(output, page)
    typer.echo(f"Report: {output} ({size / 1e6:.1f} MB), for any browser", err=True)


def find_dataset(recorded: Mapping[str, Any]) -> data.Dataset:
    """The dataset that a run recorded, by its name.

    Raises:
        DataError: If it has no name that leads to it: files are opened only where the user names them.
    """
    name, split = recorded.get("name"), recorded.get("split")
    if name not in data.DATASETS or not isinstance(split, str):
        raise DataError(f"the dataset {name!r} is not known by its name; name its file with --data.")
    return data.load(name, split=split)
