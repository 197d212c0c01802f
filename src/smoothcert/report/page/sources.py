"""What the report page reads: run folders, folders of them, logs of earlier systems, and prefixes of ACES logs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from smoothcert.report.aces import Components, Single
from smoothcert.report.aces_load import load_components, load_single
from smoothcert.report.load import log_name
from smoothcert.report.metadata import KINDS
from smoothcert.report.metrics import Outcomes
from smoothcert.store import LogKind, Run, load_run, read_log
from smoothcert.types import ABSTAIN, RunError, SmoothcertError, UsageError

_NOT_LOGS = {".md", ".json", ".png", ".html"}
_OTHER_KINDS = {f"imported {kind.value}" for kind in LogKind if kind is not LogKind.CERTIFICATION}


@dataclass(frozen=True, eq=False)
class Source:
    """One run or log, as the page shows it.

    Attributes:
        path: Where it is.
        outcomes: Its answers, ordered by input index; the name in there is the one shown.
        table: All its columns, in the same order.
        run: The run folder; None for a log.
        components: The parts of ACES, where they are known.
        note: Why the parts of ACES are not known, where they should be.
    """

    path: Path
    outcomes: Outcomes
    table: pa.Table
    run: Run | None = None
    components: Components | None = None
    note: str = ""

    @property
    def name(self) -> str:
        return self.outcomes.name

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of a run; empty for a log."""
        return dict(self.run.config) if self.run is not None else {}

    @cached_property
    def single(self) -> Single | None:
        """The smoothed classifier by itself, where its natural accuracy is known."""
        try:
            return load_single(self.path)
        except SmoothcertError:
            return None

    def named(self, name: str) -> Source:
        return replace(self, outcomes=replace(self.outcomes, name=name))

    def restricted(self, index: NDArray[np.int64]) -> Source:
        """The same about some of its inputs."""
        places = np.searchsorted(self.outcomes.index, index)
        parts = None if self.components is None else _restricted(self.components, index)
        return replace(
            self, outcomes=self.outcomes.at(places), table=self.table.take(pa.array(places)), components=parts
        )


def load_sources(
    paths: Sequence[str | os.PathLike[str]], core: str | os.PathLike[str] | None = None
) -> tuple[Source, ...]:
    """Read everything that can be shown at some paths.

    Args:
        paths: Run folders, certification logs, folders that hold some of them, and common prefixes of ACES logs.
        core: Predictions of the core, for prefixes and for runs that asked none.

    Returns:
        The sources in the order found, under different names.

    Raises:
        UsageError: If there is nothing at a path, or nothing that can be shown.
        RunError, LogError: If a run or a log is empty or damaged; the sentence names it, and the row.
    """
    found: list[Source] = []
    for path in map(Path, paths):
        certification = path.with_name(f"{path.name}_certification")
        if (path / "run.json").exists():
            found.append(_from_run(path, core))
        elif path.is_dir():
            found.extend(_from_folder(path, core))
        elif path.exists():
            found.append(_from_log(path))
        elif certification.exists():
            parts = load_components(path, core)
            is_run = (certification / "run.json").exists()
            source = _from_run(certification, core) if is_run else _from_log(certification)
            found.append(replace(source, components=parts))
        else:
            raise UsageError(f"there is no {path}; give run folders or log files.")
    if not found:
        raise UsageError("there is nothing to report on; give run folders or log files.")
    return tuple(_with_names(found))


def _from_folder(folder: Path, core: str | os.PathLike[str] | None) -> list[Source]:
    found: list[Source] = []
    for entry in sorted(folder.iterdir()):
        if (entry / "run.json").exists():
            if load_run(entry).config["kind"] not in _OTHER_KINDS:
                found.append(_from_run(entry, core))
        elif (
            entry.is_file() and not entry.name.startswith(".") and entry.suffix.lower() not in _NOT_LOGS
        ) and read_log(entry).kind is LogKind.CERTIFICATION:
            found.append(_from_log(entry))
    if not found:
        raise UsageError(f"{folder} holds neither runs nor certification logs.")
    return found


def _from_log(path: Path) -> Source:
    table = read_log(path).table
    if not len(table):
        raise UsageError(f"{path} holds no rows; give a log with some.")
    table = table.sort_by("index")
    return Source(path, Outcomes.from_table(log_name(path), table), table)


def _from_run(path: Path, core: str | os.PathLike[str] | None) -> Source:
    run = load_run(path)
    try:
        table = run.table()
    except (pa.ArrowException, TypeError) as error:
        raise RunError(f"{path} is damaged ({str(error).splitlines()[0]}); certify into another folder.") from error
    # Of a router, the classes in its configuration are experts.
    check_rows(
        path,
        table,
        None if "experts" in run.config else run.config.get("num_classes"),
        needs_norm=run.config["kind"] == "certification",
    )
    seed = run.config.get("seed")
    try:
        outcomes = Outcomes.from_table(run.name, table, seed=seed if isinstance(seed, int) else None)
    except UsageError as error:
        raise RunError(f"{path} is damaged: {error}") from error
    source = Source(path, outcomes, table, run)
    procedure = run.config.get("procedure")
    if not isinstance(procedure, dict) or procedure.get("name") != "aces":
        return source
    for asked in (None, core):  # a run's own core comes first: its stored answers are about that one
        try:
            return replace(source, components=load_components(path, asked))
        except UsageError as error:
            note = str(error)
    return replace(source, note=note)


def check_rows(path: Path, table: pa.Table, num_classes: object = None, *, needs_norm: bool = False) -> None:
    """Refuse a run that has no rows, or one that cannot be right.

    Args:
        path: The run, for the sentence.
        table: Its rows.
        num_classes: The number of classes, if known.
        needs_norm: Whether rows without a norm are damaged, not just of unknown norm.

    Raises:
        RunError: Naming the run and the first such row.
        UsageError: If a column is missing.
    """
    missing = [name for name in ("index", "label", "predict", "radius") if name not in table.column_names]
    if missing:
        raise UsageError(f"{path} has no {' and no '.join(missing)}, so there is no certified accuracy to report.")
    if not len(table):
        raise RunError(f"{path} holds no rows yet; certify some inputs first.")
    for wrong, problem in _problems(table, num_classes, needs_norm):
        if wrong.any():
            place = int(np.argmax(wrong))
            index = table["index"][place].as_py()
            which = f"row {place + 1}" if index is None else f"the row of input {index}"
            raise RunError(f"{path} is damaged: {which} {problem}; certify into another folder.")


def _problems(table: pa.Table, num_classes: object, needs_norm: bool) -> Iterator[tuple[NDArray[np.bool_], str]]:
    """What can be wrong with rows, one after the other: later checks rely on earlier ones."""
    for name in ("index", "label", "predict", "radius"):
        yield _mask(pc.is_null(table[name])), f"has no {name}"
    index, label, predict = (table[name].to_numpy() for name in ("index", "label", "predict"))
    yield np.append(False, index[1:] == index[:-1]), "appears twice"
    yield (index < 0) | (label < 0) | (predict < ABSTAIN), "holds a negative index or class"
    if isinstance(num_classes, int):
        yield (label >= num_classes) | (predict >= num_classes), f"holds a class beyond the {num_classes} there are"
    radius = table["radius"].to_numpy()
    yield ~(np.isfinite(radius) & (radius >= 0)), "holds a radius that is no number from 0 up"
    yield (predict == ABSTAIN) & (radius > 0), "abstains, but holds a radius above 0"
    for name in ("p_lower", "alpha", "sigma", "seconds", "choice_radius"):
        if name in table.column_names:
            values = pc.fill_null(table[name].cast(pa.float64()), 0.0).to_numpy()
            yield ~(np.isfinite(values) & (values >= 0)), f"holds a {name} that is no number from 0 up"
    for name, values in KINDS.items():
        if name in table.column_names:
            known = pa.array([*values] if name == "norm" and needs_norm else [*values, None], pa.string())
            yield ~_mask(pc.is_in(table[name], value_set=known)), f"holds an invalid {name}"
    if {"counts", "n"} <= set(table.column_names):
        pairs = zip(table["counts"].to_pylist(), table["n"].to_pylist(), strict=True)
        votes = [(counts or [], n or 0) for counts, n in pairs]
        wrong = [None in counts or min(counts, default=0) < 0 or sum(counts) > n for counts, n in votes]
        yield np.array(wrong), "holds votes that are negative or more than its samples"


def _mask(values: Any) -> NDArray[np.bool_]:
    return np.asarray(values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy())


def _with_names(sources: Sequence[Source]) -> Iterator[Source]:
    """The same sources; those of one name get that of their folder too, and then a number."""
    names = [source.name for source in sources]
    fuller = [
        f"{source.path.resolve().parent.name}/{name}" if names.count(name) > 1 else name
        for source, name in zip(sources, names, strict=True)
    ]
    for place, (source, name) in enumerate(zip(sources, fuller, strict=True)):
        before = fuller[:place].count(name)
        yield source.named(f"{name} ({before + 1})" if before else name)


def _restricted(parts: Components, index: NDArray[np.int64]) -> Components:
    places = np.searchsorted(parts.index, index)
    arrays = {name: getattr(parts, name)[places] for name in ("predicted", "core")}
    choices = {name: getattr(parts, name)[:, places] for name in ("choice", "choice_radius", "choice_predicted")}
    median = None if parts.median is None else parts.median[places]
    return replace(parts, certifier=parts.certifier.at(places), median=median, **arrays, **choices)
