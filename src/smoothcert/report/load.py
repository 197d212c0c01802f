"""Finding results on disk: run folders, logs of earlier systems, and folders of either."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from smoothcert.noise import noise_from_config
from smoothcert.report.metadata import COLUMNS as METADATA_COLUMNS
from smoothcert.report.metrics import Outcomes
from smoothcert.report.origins import origin_of
from smoothcert.report.recompute import natural_count, recompute
from smoothcert.stats import lower_bound
from smoothcert.store import Log, LogKind, Run, load_run, read_log
from smoothcert.types import Norm, RunError, UsageError

_SHOWN = ["index", "label", "predict", "radius", "norm", "alpha", "clean_predict", *METADATA_COLUMNS]
_MOST_VOTES = 100_000_000  # counts of all classes and inputs that are looked through for the natural accuracy
_LOG_SUFFIXES = (".tsv", ".txt", ".log")


def find_results(paths: Sequence[str | os.PathLike[str]]) -> list[tuple[str, Run | Log]]:
    """Find runs and certification logs.

    Args:
        paths: Run folders, log files, or folders that hold some of them (other kinds of logs there are passed over).

    Returns:
        One entry per run or log, in the order found: its name, after its folder or file, and itself.

    Raises:
        UsageError: If there is nothing at a path, or nothing that tells certified accuracy.
        RunError, LogError: If a run or a log is damaged.
    """
    found: list[tuple[str, Run | Log]] = []
    for path in map(Path, paths):
        if not path.exists():
            raise UsageError(f"there is no {path}; give run folders or log files.")
        if (path / "run.json").exists():
            run = load_run(path)
            found.append((run.name, run))
        elif path.is_dir():
            found.extend(_in_folder(path))
        else:
            found.append((log_name(path), read_log(path)))
    return found


def load_outcomes(
    paths: Sequence[str | os.PathLike[str]], *, n: int | None = None, alpha: float | None = None
) -> list[Outcomes]:
    """Read the outcomes of runs and certification logs.

    Args:
        paths: As for :func:`find_results`.
        n: Recompute what fewer samples would have proved; see ``recompute``.
        alpha: Recompute what would have been proved at this probability of a wrong statement.

    Returns:
        One entry per run or log, in the order found, named after its folder or file.

    Raises:
        UsageError: If there is nothing at a path, nothing that tells certified accuracy, or it cannot be recomputed.
        RunError, LogError: If a run or a log is damaged.
    """
    return [outcomes_of(name, result, n=n, alpha=alpha) for name, result in find_results(paths)]


def outcomes_of(name: str, result: Run | Log, *, n: int | None = None, alpha: float | None = None) -> Outcomes:
    """The outcomes of a run or a log, as stored or recomputed for another ``n`` or ``alpha``.

    Raises:
        UsageError, RunError: As for :func:`run_outcomes`; a log cannot be recomputed.
    """
    if isinstance(result, Run):
        return run_outcomes(result, name, n=n, alpha=alpha)
    if n is not None or alpha is not None:
        raise UsageError(
            f"{result.path} is a log, which keeps no votes to recompute from; leave out --at-n and --at-alpha."
        )
    return Outcomes.from_table(name, result.table, natural=_clean(result.table))


def run_outcomes(run: Run, name: str | None = None, *, n: int | None = None, alpha: float | None = None) -> Outcomes:
    """The outcomes of a run folder, as stored or recomputed for another ``n`` or ``alpha``.

    Raises:
        UsageError: If they are no certificates, or cannot be recomputed.
        RunError: If it has no rows yet, its rows are in several norms, or a row is damaged, which is then named.
    """
    if n is not None or alpha is not None:
        return recompute(run, n=n, alpha=alpha, name=name)
    fixed = run.settings.get("procedure", {}).get("name") == "cohen"
    table = run.table(
        [*_SHOWN, "counts"] if fixed else _SHOWN
    )  # a million inputs of a thousand classes have many votes
    if len(table) == 0:
        raise RunError(f"{run.path} holds no rows yet.")
    whole = {"index", "label", "predict", "radius"} <= set(table.column_names)
    _refuse_no_norm(run, table)
    try:
        return Outcomes.from_table(
            name or run.name,
            table,
            origin=origin_of(run),
            natural=_natural(run, table),
            seed=run.settings.get("seed"),
        )
    except UsageError as error:
        if whole:
            raise RunError(f"{run.path} is damaged: {error}") from error
        raise


def _refuse_no_norm(run: Run, table: pa.Table) -> None:
    """Refuse a row of a certification that lacks its norm, which every version writes; in a log it is unknown."""
    if run.config["kind"] != "certification" or "norm" not in table.column_names or not table["norm"].null_count:
        return
    place = table["norm"].to_pylist().index(None)
    raise RunError(f"{run.path} is damaged: input {table['index'][place].as_py()} has a radius without a norm.")


def _natural(run: Run, table: pa.Table) -> int | None:
    """How many inputs PREDICT answers rightly, where a fixed number of votes of one classifier was kept."""
    if "clean_predict" in table.column_names:
        return _clean(table)
    procedure = run.settings.get("procedure", {})
    if procedure.get("name") != "cohen" or "alpha" not in procedure or {"sigma", "experts"} & run.config.keys():
        return None
    if "counts" not in table.column_names or len(table) * len(table["counts"][0].as_py() or ()) > _MOST_VOTES:
        return None
    counts = table["counts"].to_pylist()
    if any(row is None or len(row) != len(counts[0]) or None in row for row in counts):
        return None
    return natural_count(np.array(counts), table["label"].to_numpy(), procedure["alpha"])


def _clean(table: pa.Table) -> int | None:
    columns = ("clean_predict", "label")
    if any(name not in table.column_names or table[name].null_count for name in columns):
        return None
    return int((table["clean_predict"].to_numpy() == table["label"].to_numpy()).sum())


def sampling_limit(run: Run) -> float | None:
    """The largest radius the run's number of samples could prove, when every vote agrees.

    Returns:
        The radius; None where no n or no noise is fixed, or where it depends on the size of an input, which a run does
        not keep.
    """
    if run.config["kind"] != "certification" or "sigma" in run.config or "experts" in run.config:
        return None
    procedure, noise = run.config["procedure"], noise_from_config(run.config["noise"])
    norm = noise.resolve_norm(procedure.get("norm"))
    if procedure["name"] != "cohen" or norm is Norm.LINF:
        return None
    return float(noise.radius(lower_bound(procedure["n"], procedure["n"], procedure["alpha"]), norm))


def log_name(path: Path) -> str:
    """A log's file name without a suffix that only says it is text; ``sigma_0.50`` stays whole."""
    return path.stem if path.suffix in _LOG_SUFFIXES else path.name


def _in_folder(folder: Path) -> list[tuple[str, Run | Log]]:
    name = folder.resolve().name
    found: list[tuple[str, Run | Log]] = []
    for entry in sorted(folder.iterdir()):
        if (entry / "run.json").exists():
            found.append((entry.name, load_run(entry)))
        elif (
            entry.is_file() and not entry.name.startswith(".") and entry.suffix.lower() not in {".md", ".json", ".png"}
        ):
            log = read_log(entry)
            if log.kind is LogKind.CERTIFICATION:
                found.append((f"{name}/{log_name(entry)}", log))
    if not found:
        raise UsageError(f"{folder} holds neither runs nor certification logs.")
    return found
