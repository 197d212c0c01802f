"""``smoothcert table``, ``import``, ``export`` and ``info``: from runs and logs to answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

from smoothcert import models
from smoothcert.cli.options import output_folder
from smoothcert.cli.show import Format, Output, Radii, show
from smoothcert.report.metrics import parse_radii
from smoothcert.report.notes import chosen, notes
from smoothcert.report.recompute import load_outcomes, outcomes_of
from smoothcert.report.tables.accuracy import AccuracyTable, accuracy_table, render, rich_table
from smoothcert.report.tables.savings import consensus_text, savings, savings_text
from smoothcert.report.tables.styles import TABLE_STYLES
from smoothcert.store import Log, Outcomes, Run, load_run, read_log, write_log, write_run
from smoothcert.store.logs import METADATA
from smoothcert.store.result import log_name
from smoothcert.types import Guarantee, Norm, UsageError, radius_text

Paths = Annotated[list[Path], typer.Argument(help="Run folders, log files, or folders that hold some.")]
Samples = Annotated[
    int | None,
    typer.Option("--at-n", help="Recompute with the first N stored votes of each input. Choose N before looking."),
]
Alpha = Annotated[
    float | None,
    typer.Option("--at-alpha", help="Recompute at this alpha from the stored votes. Choose it before looking."),
]


def show_table(
    outcomes: Sequence[Outcomes], radii: Sequence[float] | None = None, format: str | None = None, **look: Any
) -> None:
    """Print a table of certified accuracy: drawn on a terminal, Markdown into a pipe, or as asked.

    Args:
        outcomes: The runs.
        radii: The radii of the columns.
        format: A format of ``render``.
        look: Options of ``render``.
    """
    show_accuracy(accuracy_table(outcomes, radii), format, **look)


def show_accuracy(table: AccuracyTable, format: str | None = None, output: Path | None = None, **look: Any) -> None:
    """Show a table that is already made; CSV has no place for notes, so they go to stderr."""
    shown = table.rows
    remarks = notes(shown) if format == "csv" else chosen([run for each in shown for run in each.runs])
    show(
        lambda wanted: rich_table(table, **look) if wanted is None else render(table, wanted, **look),
        format,
        output,
        notes=remarks,
    )


def show_savings(run: Run, reference: Run | None = None) -> None:
    """Say what early decisions and a consensus saved, for a run that made any or is compared with another."""
    if reference is not None or run.config.get("procedure", {}).get("name") in ("staged", "anytime"):
        named = {} if reference is None else {"reference": reference.name}
        typer.echo(savings_text(savings(run, reference=reference), **named))
    elif "consensus" in run.table(["consensus"]).column_names and (text := consensus_text(savings(run))):
        typer.echo(text)


def table(
    paths: Paths,
    radii: Radii = None,
    format: Format = None,
    style: Annotated[
        str, typer.Option(help=f"Columns and digits of a paper's tables: {', '.join(TABLE_STYLES)}.")
    ] = "plain",
    marks: Annotated[bool, typer.Option("--marks/--no-marks", help="Mark the best and the runner-up.")] = True,
    each: Annotated[bool, typer.Option("--each", help="Do not average over seeds.")] = False,
    intervals: Annotated[bool, typer.Option("--intervals", help="Add 95 % intervals over the test sample.")] = False,
    n: Samples = None,
    alpha: Alpha = None,
    output: Output = None,
) -> None:
    """Certified accuracy at radii, average certified radius (ACR) and abstentions of runs and logs, side by side.

    Accuracies are per cent of all inputs. The ACR is an average, rounded to the nearest as papers do; a single
    input's radius is only ever rounded down. The best value of a column is bold and the runner-up underlined, among the
    runs of the same noise scale, norm and guarantee. Runs that differ in seeds only are one line: mean ± standard
    deviation. Runs in different norms are refused: show each norm by itself. Below the table stand norm, guarantee and
    arithmetic (what is not recorded is unknown) and how many false statements to expect: at most α times the number of
    inputs. Choose `--at-n` and `--at-alpha` before looking at results: the best of several stored n is not a
    certificate at α.

    **Examples**

        smoothcert table demo/runs --radii 0:1:0.25

        smoothcert table runs/mine published/sigma_0.50 --format latex -o table.tex

        smoothcert table runs/* --style catrs --format html

        smoothcert table runs/* --at-n 10000 --at-alpha 0.01
    """
    chosen = parse_radii(radii) if radii is not None else None
    look: dict[str, Any] = {"intervals": intervals, "style": style, "marks": marks}
    shown = accuracy_table(load_outcomes(paths, n=n, alpha=alpha), chosen, each=each)
    show_accuracy(shown, format, output, **look)


def import_logs(
    logs: Annotated[list[Path], typer.Argument(help="Tab-separated logs of earlier systems.")],
    output: Annotated[Path, output_folder("Run folder; for several logs, the folder of their runs.")],
    norm: Annotated[
        Norm | None, typer.Option(help="The norm of all radii, where you know it and the logs do not tell it.")
    ] = None,
    guarantee: Annotated[
        Guarantee | None, typer.Option(help="What all radii cover, where you know it and the logs do not tell it.")
    ] = None,
) -> None:
    """Turn logs of earlier systems into run folders, read by their header.

    Radii are kept as logged: most earlier systems rounded them to three digits, some of them up. What a log does not
    tell, such as the norm of its radii, stays unknown unless you state it; what it does tell is never overridden.

    **Examples**

        smoothcert import sigma_0.50 -o runs/cohen-0.50

        smoothcert import sigma_0.50 -o runs/cohen-0.50 --norm l2 --guarantee global

        smoothcert import logs/*.tsv -o runs
    """
    read = [read_log(path) for path in logs]  # all before the first is written
    stated = {name: value for name, value in (("norm", norm), ("guarantee", guarantee)) if value is not None}
    for log in read:
        folder = output if len(read) == 1 else output / log_name(log.path)
        config = {
            "kind": f"imported {log.kind.value}",
            "file": log.path.name,
            "sha256": hashlib.sha256(log.path.read_bytes()).hexdigest(),
            "columns": list(log.columns),
            **({"stated": {name: value.value for name, value in stated.items()}} if stated else {}),
        }
        write_run(folder, _with_stated(log, stated), config, {"note": "radii as logged by the earlier system"})
        typer.echo(f"{folder}: {len(log.table)} rows ({log.kind.value})", err=True)


def _with_stated(log: Log, stated: Mapping[str, Norm | Guarantee]) -> pa.Table:
    """The rows of a log, with what the user states about all of them.

    Raises:
        UsageError: If the log itself tells it.
    """
    table = log.table
    for name, value in stated.items():
        if name in table.column_names:
            raise UsageError(f"{log.path} has a column {name}; leave out --{name}.")
        table = table.append_column(name, pa.array([value.value] * len(table), pa.string()))
    return table


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The log file to write; - is standard output.")],
    classic: Annotated[
        bool, typer.Option("--classic", help="Write the first six columns only, for scripts that expect no others.")
    ] = False,
) -> None:
    """Write a run as a log `idx label predict radius correct time` that earlier systems' scripts read.

    Behind these six columns stand norm, guarantee, arithmetic, runtime, model, seed, alpha and n, as far as the run
    knows them; an empty field is unknown. Without them a reader cannot tell what a radius is worth, so take `--classic`
    only where a script needs it. Radii are rounded down to six decimals.

    **Examples**

        smoothcert export demo/runs/sigma-0.25 -o sigma_0.25

        smoothcert export demo/runs/sigma-0.25 -o sigma_0.25 --classic
    """
    stored = load_run(run)
    rows = stored.table(["index", "label", "predict", "radius", "seconds", *METADATA]).to_pylist()
    seed = stored.settings.seed
    for row in rows:
        if row.get("seed") is None:  # rows of earlier versions, whose run tells it
            row["seed"] = seed
    write_log(output, rows, classic=classic)
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
            {
                "run": str(path),
                **run.config,
                "rows": len(run.table(["index"])),
                "last session": run.info["sessions"][-1],
            }
        )
        if _has_outcomes(run):
            show_table([outcomes_of(run)])
            _show_probabilities(run)
            show_savings(run, load_run(against) if against is not None else None)
    elif against is not None:
        raise UsageError(f"{path} is no run folder, so it cannot be compared with {against}; leave out --against.")
    else:
        _print_fields(models.describe(path).as_dict())


def _show_probabilities(run: Run) -> None:
    """Say how the lower bounds on p_A are spread over the inputs, which one ACR does not tell."""
    table = run.table(["p_lower"])
    if "p_lower" in table.column_names and table["p_lower"].null_count == 0:
        levels = (0.05, 0.25, 0.5, 0.75, 0.95)
        found = np.quantile(table["p_lower"].to_numpy(), levels, method="inverted_cdf")
        shown = ", ".join(f"{level:.0%}: {radius_text(p)}" for level, p in zip(levels, found.tolist(), strict=True))
        typer.echo(f"Lower bound on p_A, quantiles over inputs: {shown}")


def _has_outcomes(run: Run) -> bool:
    needed = ["label", "predict", "radius"]
    table = run.table(needed)
    return len(table) > 0 and table.column_names == needed


def _print_fields(fields: dict[str, Any], indent: str = "") -> None:
    for name, value in fields.items():
        if isinstance(value, dict):
            typer.echo(f"{indent}{name}:")
            _print_fields(value, indent + "  ")
        else:
            typer.echo(f"{indent}{name}: {value}")
