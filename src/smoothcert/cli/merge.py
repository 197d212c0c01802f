"""``smoothcert merge``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smoothcert.cli.options import output_folder
from smoothcert.cli.show import show_accuracy
from smoothcert.report.recompute import outcomes_of
from smoothcert.store import merge_runs


def merge(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The run folders of all shards.")],
    output: Annotated[Path, output_folder("The run folder to write; new or empty.")],
) -> None:
    """Merge the shards of a run, certified by several processes or machines with `certify --shard`.

    The result is the run that one process would have written: the same configuration and the same rows.

    **Example**

        smoothcert certify lenet.safetensors --data mnist --shard 1/2 --run runs/first
        smoothcert certify lenet.safetensors --data mnist --shard 2/2 --run runs/second
        smoothcert merge runs/first runs/second -o runs/lenet
    """
    merged = merge_runs(runs, output)
    show_accuracy([outcomes_of(merged)])
    typer.echo(f"Run: {output}", err=True)
