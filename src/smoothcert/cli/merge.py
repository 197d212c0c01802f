"""``smoothcert merge``, and the option that makes the shards it unites."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from smoothcert.cli.options import output_folder
from smoothcert.cli.results import show_table
from smoothcert.report.recompute import outcomes_of
from smoothcert.store import merge_runs
from smoothcert.types import UsageError

Shard = Annotated[
    str | None,
    typer.Option("--shard", metavar="I/K", help="Certify the I-th of K equal shares of the inputs, for `merge`."),
]


def parse_shard(text: str) -> tuple[int, int]:
    """The numbers in ``I/K``.

    Raises:
        UsageError: If there are none.

    Example:
        >>> parse_shard("2/5")
        (2, 5)
    """
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if not found:
        raise UsageError(f"--shard must be I/K, such as 2/5 for the second of five shards, got {text!r}.")
    return int(found[1]), int(found[2])


def merge(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The run folders of all shards.")],
    output: Annotated[Path, output_folder("The run folder to write; new or empty.")],
) -> None:
    """Unite the shards of a run, certified by several processes or machines with `certify --shard`.

    The result is the run that one process would have written: the same configuration, and the same rows.

    **Example**

        smoothcert certify lenet.safetensors --data mnist --shard 1/2 --run runs/first

        smoothcert certify lenet.safetensors --data mnist --shard 2/2 --run runs/second

        smoothcert merge runs/first runs/second -o runs/lenet
    """
    united = merge_runs(runs, output)
    show_table([outcomes_of(united)])
    typer.echo(f"Run: {output}", err=True)
