"""``smoothcert table``, ``compare``, ``merge``, ``import`` and ``export``."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from rich.console import Group, RenderableType

from smoothcert.cli.noises import NoiseOptions
from smoothcert.cli.options import choice, output_file, output_folder
from smoothcert.cli.show import Format, Output, Radii, show, show_accuracy
from smoothcert.noise import NOISES
from smoothcert.report import comparison as comparing
from smoothcert.report.notes import chosen
from smoothcert.report.recompute import load_outcomes, outcomes_of
from smoothcert.report.tables.accuracy import TABLE_STYLES
from smoothcert.report.tables.comparison import render_comparison, rich_comparison
from smoothcert.store import Outcomes, load_run, merge_runs, read_log, write_log, write_run
from smoothcert.store.logs import LOGGED_RADIUS, METADATA
from smoothcert.store.result import log_name
from smoothcert.types import BOUNDS, Guarantee, Norm, UsageError

Results = Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, logs, or folders of them.")]
AtN = Annotated[int | None, "Recompute with the first N stored votes of each input; choose N before looking."]
AtAlpha = Annotated[float | None, "Recompute at this alpha from the stored votes; choose it before looking."]
Bound = Annotated[str | None, choice("bound", BOUNDS, "Recompute with this bound; choose it before looking", "--bound")]


def table(
    paths: Results,
    radii: Radii = None,
    format: Format = None,
    style: Annotated[str, f"Columns and digits of a paper's tables: {', '.join(TABLE_STYLES)}."] = "plain",
    marks: Annotated[bool, typer.Option(help="Mark the best and the runner-up.")] = True,
    each: Annotated[bool, "Do not average over seeds."] = False,
    intervals: Annotated[bool, "Add 95 % intervals over the test sample."] = False,
    at_n: AtN = None,
    at_alpha: AtAlpha = None,
    bound: Bound = None,
    output: Output = None,
) -> None:
    """Show certified accuracy at radii, average certified radius (ACR) and abstentions of runs and logs side by side.

    Accuracies are per cent of all inputs. The ACR is rounded to the nearest, as papers do; a single input's radius is
    always rounded down. The best value of a column is bold and the runner-up underlined, among runs of the same noise
    scale, norm, guarantee, dataset and inputs. Runs that differ only in seeds are one line: mean ± standard deviation.
    Runs in different norms are refused. The notes below the table state norm, guarantee, arithmetic and the expected
    number of false statements: at most α times the number of inputs. Choose `--at-n`, `--at-alpha` and `--bound` before
    looking at results: the best of several choices is not a certificate at α. Files in a folder that are not results
    are skipped with a warning.

    **Examples**

        smoothcert table demo/runs --radii 0:1:0.25
        smoothcert table runs/mine published/sigma_0.50 --format latex -o table.tex
        smoothcert table runs/* --style catrs --format html
        smoothcert table runs/* --at-n 10000 --at-alpha 0.01
        smoothcert table runs/* --bound runner-up
    """
    runs = load_outcomes(paths, n=at_n, alpha=at_alpha, bound=bound)
    show_accuracy(runs, radii, format, output, each=each, intervals=intervals, style=style, marks=marks)


def compare(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN", help="Runs or logs; the first is compared with each.")],
    radii: Radii = None,
    at_n: AtN = None,
    at_alpha: AtAlpha = None,
    bound: Bound = None,
    format: Format = None,
    output: Output = None,
) -> None:
    """Test whether the difference between two runs is more than chance; of several, compare the first with each other.

    Over the inputs that both have: average certified radius (ACR) with a paired-bootstrap interval and a sign-flip
    test, certified accuracy at radii with the exact McNemar test (p-values corrected by Holm's method), a sign test
    over the radii, and the inputs that differ most. Runs in different norms are refused; where the guarantees or the
    datasets differ, or a guarantee is unknown, neither run is called better. Choose `--at-n`, `--at-alpha` and
    `--bound` before looking at results.

    **Examples**

        smoothcert compare runs/cat-rs runs/gaussian
        smoothcert compare runs/mine published/sigma_0.50 --radii 0,0.5,1
        smoothcert compare runs/mine runs/gaussian runs/smoothadv
        smoothcert compare runs/long runs/short --at-n 10000
    """
    if len(paths) < 2:
        raise UsageError("a comparison needs at least two runs; name another one.")
    runs = [_only(path, at_n, at_alpha, bound) for path in paths]
    if len({run.name for run in runs}) < len(runs):
        runs = [replace(run, name=str(path)) for run, path in zip(runs, paths, strict=True)]
    found = [comparing.compare(runs[0], other, radii) for other in runs[1:]]

    def shown(format: str | None) -> RenderableType:
        if format is None:
            return Group(*map(rich_comparison, found))
        return "\n".join(render_comparison(each, format) for each in found)

    several = ["p-values are not corrected for the number of comparisons."] if len(found) > 1 else []
    show(shown, format, output, notes=[*chosen(runs), *several])


def _only(path: Path, n: int | None, alpha: float | None, bound: str | None) -> Outcomes:
    found = load_outcomes([path], n=n, alpha=alpha, bound=bound)
    if len(found) > 1:
        raise UsageError(f"{path} holds {len(found)} runs or logs; name the one to compare, such as {found[0].name}.")
    return found[0]


def merge(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="The run folders of all shards, or of all replicas.")
    ],
    output: Annotated[Path, output_folder("The run folder to write; new or empty.")],
) -> None:
    """Merge the shards of a run, certified by several processes or machines with `certify --shard`.

    It also merges the records that the replicas of `serve --ray --record` have written.

    The result is the run that one process would have written: the same configuration and the same rows.

    **Example**

        smoothcert certify lenet.safetensors --data mnist --shard 1/2 --run runs/first
        smoothcert certify lenet.safetensors --data mnist --shard 2/2 --run runs/second
        smoothcert merge runs/first runs/second -o runs/lenet
        smoothcert merge runs/served/replica-???????? -o runs/answers
    """
    merged = merge_runs(runs, output)
    show_accuracy([outcomes_of(merged)])
    typer.echo(f"Run: {output}", err=True)


@dataclass(kw_only=True)
class LoggedNoiseOptions(NoiseOptions):
    """The noise of a log."""

    noise: Annotated[str | None, f"The noise of the logs: {', '.join(NOISES)}; unknown by default."] = None


def import_logs(
    logs: Annotated[list[Path], typer.Argument(help="Tab-separated logs of earlier systems.")],
    noise: LoggedNoiseOptions,
    output: Annotated[Path, output_folder("Run folder; for several logs, the folder of their runs.")],
    name: Annotated[str | None, "The name of the run in tables and figures; by default that of its folder."] = None,
    norm: Annotated[Norm | None, "The norm of all radii, if the logs do not record it."] = None,
    guarantee: Annotated[Guarantee | None, "The guarantee of all radii, if the logs do not record it."] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The seed, if the logs do not record it.")] = None,
) -> None:
    """Turn logs of earlier systems into run folders.

    Columns are found by the header of the log. Radii are kept as logged: most earlier systems rounded them to three
    digits, some of them up. What a log does not record, such as the norm, stays unknown unless you state it. Tables
    group runs by the noise scale, and average runs with the same `--name` and different seeds.

    **Examples**

        smoothcert import sigma_0.50 -o runs/cohen-0.50
        smoothcert import sigma_0.50 -o runs/cohen-0.50 --norm l2 --guarantee global --sigma 0.5
        smoothcert import first.tsv -o runs/cat-rs-0 --name CAT-RS --sigma 0.5 --seed 0
        smoothcert import logs/*.tsv -o runs
    """
    if name is not None and len(logs) > 1:
        raise UsageError(f"--name names one run, but {len(logs)} logs are given; import them one by one.")
    if name is not None and not (name.strip() and name.isprintable()):
        raise UsageError(f"--name must be printable text, got {name!r}.")
    read = [read_log(path) for path in logs]  # all before the first is written
    known = noise.build()
    settings = {"name": name, "noise": None if known is None else known.config(), "seed": seed}
    stated = {key: value.value for key, value in (("norm", norm), ("guarantee", guarantee)) if value is not None}
    for log in read:
        rows = log.table
        for key in (*stated, *["seed"] * (seed is not None)):
            if key in rows.column_names and rows[key].null_count < len(rows):
                raise UsageError(f"{log.path} has a column {key}; leave out --{key}.")
        for key, value in stated.items():
            rows = rows.drop_columns([key] if key in rows.column_names else [])
            rows = rows.append_column(key, pa.array([value] * len(rows), pa.string()))
        if log.radii:
            rows = rows.append_column(LOGGED_RADIUS, pa.array(log.radii, pa.string()))
        folder = output if len(read) == 1 else output / log_name(log.path)
        config = {
            "kind": f"imported {log.kind.value}",
            "file": log.path.name,
            "sha256": hashlib.sha256(log.path.read_bytes()).hexdigest(),
            "columns": list(log.columns),
            **{key: value for key, value in settings.items() if value is not None},
            **({"stated": stated} if stated else {}),
        }
        write_run(folder, rows, config, {"note": "radii as logged by the earlier system"})
        typer.echo(f"{folder}: {len(rows)} rows ({log.kind.value})", err=True)


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    output: Annotated[Path, output_file("The log file")],
    classic: Annotated[bool, "Write the first six columns only, for scripts that expect no others."] = False,
) -> None:
    """Write a run as a log `idx label predict radius correct time` that scripts of earlier systems read.

    Further columns record norm, guarantee, arithmetic, runtime, model, seed, alpha and n; an empty field is unknown.
    Without them a reader does not know what a radius means, so use `--classic` only where a script needs it. Radii are
    rounded down to six decimals; those of an imported log are written as that log printed them.

    **Examples**

        smoothcert export demo/runs/sigma-0.25 -o sigma_0.25
        smoothcert export demo/runs/sigma-0.25 -o sigma_0.25 --classic
    """
    stored = load_run(run)
    rows = stored.table(["index", "label", "predict", "radius", "seconds", LOGGED_RADIUS, *METADATA]).to_pylist()
    seed = stored.settings.seed
    for row in rows:
        if row.get("seed") is None:  # earlier versions recorded it for the run only
            row["seed"] = seed
    write_log(output, rows, classic=classic)
    typer.echo(f"{output}: {len(rows)} rows", err=True)
