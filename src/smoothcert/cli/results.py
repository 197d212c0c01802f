"""``smoothcert table``, ``import``, ``export`` and ``info``: from runs and logs to answers."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from smoothcert import models
from smoothcert.files import replacing
from smoothcert.report.adaptive import consensus_text, savings, savings_text
from smoothcert.report.load import load_outcomes, log_name, run_outcomes
from smoothcert.report.metrics import Outcomes, parse_radii
from smoothcert.report.tables import accuracy_table, render, rich_table
from smoothcert.store import Run, load_run, read_log, write_log, write_run
from smoothcert.types import SmoothcertError, UsageError

Paths = Annotated[list[Path], typer.Argument(help="Run folders, log files, or folders that hold some.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of the screen.")]


def show_table(
    outcomes: Sequence[Outcomes],
    radii: Sequence[float] | None = None,
    format: str | None = None,
    intervals: bool = False,
) -> None:
    """Print a table of certified accuracy: drawn on a terminal, Markdown into a pipe, or as asked."""
    table = accuracy_table(outcomes, radii)
    if format is None and sys.stdout.isatty():
        Console().print(rich_table(table, intervals=intervals))
    else:
        typer.echo(render(table, format or "md", intervals=intervals), nl=False)


def show_savings(run: Run, reference: Run | None = None) -> None:
    """Say what early decisions and a consensus saved, for a run that made any or is compared with another."""
    if reference is not None or run.config.get("procedure", {}).get("name") in ("staged", "anytime"):
        named = {} if reference is None else {"reference": reference.name}
        typer.echo(savings_text(savings(run, reference=reference), **named))
    elif "consensus" in run.table().column_names and (text := consensus_text(savings(run))):
        typer.echo(text)


def table(
    paths: Paths,
    radii: Annotated[str | None, typer.Option(help="Radii, as FIRST:LAST:STEP or a,b,c; by default 0, 0.25, …")] = None,
    format: Annotated[str | None, typer.Option("--format", "-f", help="md, latex or csv.")] = None,
    intervals: Annotated[bool, typer.Option(help="Add 95 % intervals over the test sample.")] = False,
    output: Output = None,
) -> None:
    """Certified accuracy at radii, average certified radius (ACR) and abstentions of runs and logs, side by side.

    Accuracies are per cent of all inputs. The ACR is an average, rounded to the nearest as papers do; a single
    input's radius is only ever rounded down.

    **Examples**

        smoothcert table demo/runs --radii 0:1:0.25

        smoothcert table runs/mine published/sigma_0.50 --format latex -o table.tex
    """
    outcomes = load_outcomes(paths)
    chosen = parse_radii(radii) if radii is not None else None
    if output is None:
        show_table(outcomes, chosen, format, intervals)
        return
    text = render(accuracy_table(outcomes, chosen), format or "md", intervals=intervals)
    try:
        with replacing(output) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SmoothcertError(f"{output} cannot be written ({error.strerror}).") from error


def import_logs(
    logs: Annotated[list[Path], typer.Argument(help="Tab-separated logs of earlier systems.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Run folder; for several logs, the folder of their runs.")
    ],
) -> None:
    """Turn logs of earlier systems into run folders, read by their header.

    Radii are kept as logged: most earlier systems rounded them to three digits, some of them up.

    **Examples**

        smoothcert import sigma_0.50 -o runs/cohen-0.50

        smoothcert import logs/*.tsv -o runs
    """
    read = [read_log(path) for path in logs]  # all before the first is written
    for log in read:
        folder = output if len(read) == 1 else output / log_name(log.path)
        config = {
            "kind": f"imported {log.kind.value}",
            "file": log.path.name,
            "sha256": hashlib.sha256(log.path.read_bytes()).hexdigest(),
            "columns": list(log.columns),
        }
        write_run(folder, log.table, config, {"note": "radii as logged by the earlier system"})
        typer.echo(f"{folder}: {len(log.table)} rows ({log.kind.value})", err=True)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The log file to write.")],
) -> None:
    """Write a run as a log `idx label predict radius correct time` that earlier systems' scripts read.

    Radii are rounded down to six decimals.

    **Example**

        smoothcert export demo/runs/sigma-0.25 -o sigma_0.25
    """
    rows = load_run(run).rows()
    write_log(output, rows)
    typer.echo(f"{output}: {len(rows)} rows", err=True)


def info(
    path: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run folder or a checkpoint.")],
    against: Annotated[
        Path | None,
        typer.Option(help="Another run over the same inputs: how many times more samples and time that one took."),
    ] = None,
) -> None:
    """Say what a run folder or a checkpoint holds.

    **Examples**

        smoothcert info demo/runs/sigma-0.25

        smoothcert info demo/models/sigma-0.25.safetensors

        smoothcert info runs/five-consensus --against runs/five
    """
    if not path.exists():
        raise UsageError(f"there is no {path}; give a run folder or a checkpoint.")
    if (path / "run.json").exists():
        run = load_run(path)
        _print_fields(
            {"run": str(path), **run.config, "rows": len(run.table()), "last session": run.info["sessions"][-1]}
        )
        if _has_outcomes(run):
            show_table([run_outcomes(run)])
            show_savings(run, load_run(against) if against is not None else None)
    elif against is not None:
        raise UsageError(f"{path} is no run folder, so it cannot be compared with {against}; leave out --against.")
    else:
        _print_fields(models.describe(path).as_dict())


def _has_outcomes(run: Run) -> bool:
    table = run.table()
    return len(table) > 0 and {"label", "predict", "radius"} <= set(table.column_names)


def _print_fields(fields: dict[str, Any], indent: str = "") -> None:
    for name, value in fields.items():
        if isinstance(value, dict):
            typer.echo(f"{indent}{name}:")
            _print_fields(value, indent + "  ")
        else:
            typer.echo(f"{indent}{name}: {value}")
