"""Finding results on disk: run folders, logs of earlier systems, and folders of either."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from smoothcert.noise import noise_from_config
from smoothcert.report.metrics import Outcomes
from smoothcert.stats import lower_bound
from smoothcert.store import Log, LogKind, Run, load_run, read_log
from smoothcert.types import Norm, RunError, UsageError

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


def load_outcomes(paths: Sequence[str | os.PathLike[str]]) -> list[Outcomes]:
    """Read the outcomes of runs and certification logs.

    Args:
        paths: As for :func:`find_results`.

    Returns:
        One entry per run or log, in the order found, named after its folder or file.

    Raises:
        UsageError: If there is nothing at a path, or nothing that tells certified accuracy.
        RunError, LogError: If a run or a log is damaged.
    """
    return [outcomes_of(name, result) for name, result in find_results(paths)]


def outcomes_of(name: str, result: Run | Log) -> Outcomes:
    """The outcomes of a run or a log.

    Raises:
        UsageError, RunError: If it does not tell certified accuracy in one norm.
    """
    return run_outcomes(result, name) if isinstance(result, Run) else Outcomes.from_table(name, result.table)


def run_outcomes(run: Run, name: str | None = None) -> Outcomes:
    """The outcomes of a run folder.

    Raises:
        RunError: If it has no rows yet, or its rows are not all in one norm.
    """
    table = run.table()
    norms = {Norm(norm) for norm in table["norm"].to_pylist()} if "norm" in table.column_names else {Norm.L2}
    if len(table) == 0 or len(norms) != 1:
        raise RunError(f"{run.path} holds {'no rows yet' if len(table) == 0 else 'radii in several norms'}.")
    return Outcomes.from_table(name or run.name, table, norm=norms.pop())


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
