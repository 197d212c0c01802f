"""``smoothcert report``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from smoothcert import data
from smoothcert.cli.options import output_file
from smoothcert.cli.results import Results
from smoothcert.cli.show import Radii
from smoothcert.report.page.html import report_html, write_report
from smoothcert.types import DataError, UsageError


def report(
    paths: Results,
    output: Annotated[Path, output_file("The page")] = Path("report.html"),
    radii: Radii = None,
    title: Annotated[str | None, "The heading of the page."] = None,
    data_name: Annotated[str | None, typer.Option("--data", help="Dataset of the images; default: the run's.")] = None,
    split: Annotated[str, "The split of --data."] = "test",
    no_images: Annotated[bool, "Leave the images out."] = False,
    core: Annotated[Path | None, "Predictions of the core of ACES logs: a log (idx, label, predict)."] = None,
) -> None:
    """Write a page that shows runs side by side: table, curves, thresholds of ACES, and every input with its votes.

    The page is one file, opens in any browser and needs no network. Runs in different norms or over different inputs
    are shown separately. Published ACES logs are named by their common prefix.

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
    page = report_html(
        paths,
        radii=radii,
        title=title,
        core=core,
        find_dataset=None if no_images else find_dataset,
        dataset=data.load(data_name, split=split) if data_name is not None else None,
    )
    size = write_report(output, page)
    typer.echo(f"Report: {output} ({size / 1e6:.1f} MB), for any browser", err=True)


def find_dataset(recorded: Mapping[str, Any]) -> data.Dataset:
    """Load the named dataset that a run records; files are opened only if the user names them."""
    name, split = recorded.get("name"), recorded.get("split")
    if not (isinstance(name, str) and isinstance(split, str)) or not (name in data.DATASETS or name in data.LOADERS):
        raise DataError(f"{name!r} is not a named dataset; give its file with --data.")
    return data.load(name, split=split)
