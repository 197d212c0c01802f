"""Run folders: the configuration of a run, and a row with certificate and votes for each input.

A run folder holds ``run.json`` (configuration and sessions), ``part-*.parquet`` (rows) and, while it is written,
``pending.jsonl`` (finished rows that are not in a part yet). A row is safe once its line is appended. A part is written
to a temporary file and renamed before its lines are dropped; a row that is in both is read once.

All functions raise ``RunError`` where a file of a run is damaged or cannot be written.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import FileLock, Timeout

from smoothcert.files import TEMPORARIES, temporary_next_to
from smoothcert.store import pending, run_json
from smoothcert.store.metrics import Measured
from smoothcert.store.outcomes import METADATA_COLUMNS, Outcomes
from smoothcert.store.parts import parts_of, read_part, write_part
from smoothcert.store.pending import PendingFile, read_pending
from smoothcert.store.rows import ANSWERS, SCHEMA, Row, check_rows
from smoothcert.types import RunError, StrPath

ROWS_PER_PART = 1000
_LOCK = ".lock"


@dataclass(frozen=True)
class Run(Measured):
    """A run folder and the content of its ``run.json``.

    Rows are read from the folder each time, because another process may still write to it. ``len(run)`` is their
    number.
    """

    path: Path
    info: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name in tables and figures: that of the folder, unless an imported log was given another."""
        return self.settings.name or self.path.resolve().name

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration as written; equal configurations have equal rows."""
        return self.info["config"]  # type: ignore[no-any-return]

    @cached_property
    def settings(self) -> run_json.RunSettings:
        """The configuration with typed fields."""
        return run_json.parse_settings(self.config, self.path)

    @property
    def sessions(self) -> list[Mapping[str, Any]]:
        """The sessions that wrote the run, oldest first; those of an unknown form are left out."""
        sessions = self.info.get("sessions")
        return [each for each in sessions if isinstance(each, Mapping)] if isinstance(sessions, list) else []

    @property
    def dimension(self) -> int | None:
        """The number of values of an input; None for runs of earlier versions, which did not store it."""
        found = {each["dimension"] for each in self.sessions if type(each.get("dimension")) is int}
        return found.pop() if len(found) == 1 and min(found) > 0 else None

    def __len__(self) -> int:
        return len(self.table(["index"]))

    def __bool__(self) -> bool:
        return True  # also a run without rows is a run

    @property
    def outcomes(self) -> Outcomes:
        table = self.table([*ANSWERS, "norm", "alpha", *METADATA_COLUMNS])
        if len(table) == 0:
            raise RunError(f"{self.path} holds no rows yet.")
        return Outcomes.from_table(self.name, table)

    def _all_rows(self) -> pa.Table:
        return self.table()

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the rows, ordered by input index; only those of the columns that exist, or all."""
        wanted = None if columns is None else list(dict.fromkeys(["index", *columns]))
        pieces = list(self.pieces(wanted))
        try:
            found = pa.concat_tables(pieces, promote_options="default").sort_by("index")
        except (pa.ArrowException, KeyError) as error:
            reason = str(error).partition("\n")[0]
            raise RunError(f"the parts of {self.path} do not fit together ({reason}); delete the odd one.") from error
        return found if columns is None else found.select([name for name in columns if name in found.column_names])

    def pieces(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Read the rows part by part, each ordered by input index; ``columns`` must contain ``index``."""
        waiting = read_pending(self.path).rows  # before the parts: rows that move there meanwhile are then in both
        seen: dict[int, Path] = {}
        parts = parts_of(self.path)
        for part in parts:
            piece = self._checked(part, read_part(part, columns))
            _note(part, piece, seen)
            yield piece
        waiting = [row for row in waiting if row["index"] not in seen]
        if waiting or not parts:
            rest = self._checked(self.path / pending.NAME, pa.Table.from_pylist(waiting, schema=SCHEMA))
            yield rest if columns is None else rest.select([name for name in columns if name in rest.column_names])

    def _checked(self, file: Path, rows: pa.Table) -> pa.Table:
        if self.config["kind"] == run_json.VOTES:  # without answers
            rows = rows.drop_columns([name for name in ("predict", "radius") if name in rows.column_names])
        classes = None if "experts" in self.config else self.config.get("num_classes")  # those of a router are experts
        try:
            check_rows(
                rows,
                num_classes=classes if isinstance(classes, int) else None,
                needs_norm=self.config["kind"] == "certification",
            )
        except ValueError as error:
            raise RunError(
                f"{file} is damaged: {error}; delete the file and run the same command again to compute its rows again."
            ) from error
        return rows.sort_by("index")

    def rows(self) -> list[Row]:
        """Read the rows as dicts, ordered by index; ``checkpoints``, ``alpha_split`` and ``decisions`` as mappings."""
        rows: list[Row] = self.table().to_pylist()
        for row in rows:
            for column in ("checkpoints", "alpha_split", "decisions"):
                if row.get(column) is not None:
                    row[column] = dict(tuple(entry.values()) for entry in row[column])
        return rows


def load_run(path: StrPath) -> Run:
    """Open a run folder for reading; another process may still write to it."""
    folder = Path(path)
    return Run(folder, run_json.read_info(folder))


class RunWriter:
    """Appends rows to a run folder; use through :func:`open_run`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._config = run_json.config_digest(run.config)
        sealed: dict[int, Path] = {}
        self._next_part = 0
        for part in parts_of(run.path):
            self._next_part = max(self._next_part, 1 + _number(part))
            _note(part, read_part(part, columns=["index"]), sealed)
        self._pending = PendingFile(run.path, self._config)
        if self._pending.torn:
            warnings.warn(f"{self._pending.path} ends in the middle of a row, which is computed again.", stacklevel=2)
        waiting = {row["index"]: row for row in self._pending.rows if row["index"] not in sealed}
        self._rows = list(waiting.values())
        self.done: set[int] = sealed.keys() | waiting.keys()

    def append(self, row: Row) -> None:
        """Add a finished row; once this returns, killing the process does not lose it."""
        with _writing(self.run.path):
            self._pending.append(row)
        self._rows.append(row)
        self.done.add(row["index"])
        if len(self._rows) >= ROWS_PER_PART:
            self.seal()

    def annotate(self, **facts: Any) -> None:
        """Add facts to this session's entry in ``run.json``."""
        *earlier, current = self.run.info["sessions"]
        with _writing(self.run.path):
            run_json.write_info(self.run.path, self.run.config, [*earlier, {**current, **facts}])
        self.run = load_run(self.run.path)

    def seal(self) -> None:
        """Move the pending rows into a Parquet part; they stay pending if it cannot be written."""
        if not self._rows:
            return
        rows = sorted(self._rows, key=lambda row: int(row["index"]))
        with _writing(self.run.path):
            path = self.run.path / f"part-{self._next_part:06d}.parquet"
            write_part(path, pa.Table.from_pylist(rows, schema=SCHEMA), self._config)
            self._pending.clear()
        self._next_part += 1
        self._rows = []

    def close(self) -> None:
        self._pending.close()


@contextmanager
def open_run(path: StrPath, config: Mapping[str, Any], session: Mapping[str, Any]) -> Iterator[RunWriter]:
    """Create a run folder, or continue an existing one.

    Args:
        config: What decides the rows; must equal the configuration of a run that is already there.
        session: Other facts (versions, batch size, checkpoint file), which ``run.json`` lists for each session.

    Yields:
        The only writer; without any rows at the end, the folder is deleted.

    Raises:
        RunError: If the folder cannot be written, has another configuration, is not a run, or is in use.
    """
    folder = Path(path)
    if folder.exists() and not (folder / run_json.NAME).exists() and not _holds_only_a_run(folder):
        raise RunError(f"{folder} exists and is not a run folder; choose a new or empty folder.")
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            writer = _prepare(folder, config, session)
    except BaseException:  # also Ctrl-C must not leave the folder locked
        lock.release()
        raise
    try:
        yield writer
    finally:
        writer.close()
        if not writer.done and _holds_only_a_run(folder):
            shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def clear_run(path: StrPath) -> None:
    """Delete a run folder, if it exists, unless it holds other files or another process writes to it."""
    folder = Path(path)
    if not folder.exists():
        return
    if not _holds_only_a_run(folder):
        raise RunError(
            f"{folder} holds files that do not belong to a run, so it is not deleted; choose another folder."
        )
    with _writing(folder), FileLock(folder / _LOCK, timeout=0):
        shutil.rmtree(folder)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except Timeout as error:
        raise RunError(
            f"{folder} is being written by another process; wait for it or choose another folder."
        ) from error
    except OSError as error:
        raise RunError(
            f"cannot write to {folder} ({error.strerror or error}); free space or choose a folder you may write to, "
            "then run the same command again to continue."
        ) from error


def _prepare(folder: Path, config: Mapping[str, Any], session: Mapping[str, Any]) -> RunWriter:
    for leftover in folder.glob(TEMPORARIES):  # of a killed process; we hold the lock
        leftover.unlink(missing_ok=True)
    sessions: list[Any] = []
    empty = not parts_of(folder) and not read_pending(folder).rows  # then another run may take its place
    if (folder / run_json.NAME).exists() and not empty:
        run = load_run(folder)
        if _is_earlier(run.config):
            warnings.warn(
                f"{folder} was started by an earlier version, which did not record the code and the attributes of the "
                "model; continue it only with the same model.",
                stacklevel=3,
            )
        found = differences(run.config, json.loads(json.dumps(config)))
        if found:
            raise RunError(
                f"{folder} holds a run with another configuration ({found}); choose another run folder, or delete this "
                "one to start again."
            )
        sessions = run.info.get("sessions", [])
        if not isinstance(sessions, list):
            raise RunError(f"{folder / run_json.NAME} is damaged (its sessions are not a list); restore it.")
        run_json.refuse_other_answers(folder, sessions, [session])
        config = run.config  # that of an earlier version may have fewer entries
    elif run_json.rows_without_info(folder, run_json.config_digest(config)):
        sessions = [{"note": "earlier sessions are unknown: run.json was lost"}]
    run_json.write_info(folder, config, [*sessions, session])
    return RunWriter(load_run(folder))


def _holds_only_a_run(folder: Path) -> bool:
    parts = (part.name for part in parts_of(folder))
    return _holds_only(folder, {_LOCK, run_json.NAME, pending.NAME, *parts})


def _holds_only(folder: Path, names: set[str]) -> bool:
    """Return whether a path is a folder with these files and temporaries of killed processes only."""
    return folder.is_dir() and all(file.name in names or file.match(TEMPORARIES) for file in folder.iterdir())


def write_run(
    path: StrPath,
    rows: pa.Table | Iterable[pa.Table],
    config: Mapping[str, Any],
    session: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> Run:
    """Store finished rows (an imported log, or united shards) as a new run folder, atomically.

    Each table of ``rows`` becomes a part before the next one is requested.
    """
    folder = Path(path)
    refuse_existing(folder)
    place = folder.resolve()
    owner = run_json.config_digest(config) if config["kind"] == "certification" else None
    temporary = temporary_next_to(place)
    try:
        with _writing(folder):
            temporary.mkdir(parents=True)
            for number, table in enumerate([rows] if isinstance(rows, pa.Table) else rows):
                write_part(temporary / f"part-{number:06d}.parquet", table, owner)
            run_json.write_info(temporary, config, [session] if isinstance(session, Mapping) else session)
            if place.exists():
                shutil.rmtree(place)  # refuse_existing has found only leftovers in it
            os.replace(temporary, place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return load_run(folder)


def refuse_existing(folder: Path) -> None:
    """Refuse a path that exists and is not an empty folder."""
    if folder.exists() and not _holds_only(folder, {_LOCK}):
        raise RunError(f"{folder} exists already; choose a new or empty folder.")


def _number(part: Path) -> int:
    try:
        return int(part.stem.removeprefix("part-"))
    except ValueError:
        raise RunError(
            f"{part} is not named like the parts of a run, such as part-000000.parquet; rename it, or move it out of "
            "the run folder."
        ) from None


def _note(part: Path, table: pa.Table, seen: dict[int, Path]) -> None:
    """Note the part of each input, and refuse an input in two parts."""
    for index in table["index"].to_pylist():
        if seen.get(index, part) != part:
            raise RunError(
                f"input {index} is in {seen[index]} and in {part}; delete one of them and run the same command again."
            )
        seen[index] = part


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Describe how two configurations differ; empty where they do not.

    Example:
        >>> differences({"noise": {"sigma": 0.5}}, {"noise": {"sigma": 0.25}, "seed": 1})
        'noise.sigma is 0.5 there and 0.25 here; seed is not set there and 1 here'
    """
    old, new = flat_config(there), flat_config(here)
    if _is_earlier(there):  # which lacks these keys
        new = {key: new[key] for key in new if key in old or not (key == "stream.dtype" or key.endswith(".code"))}
    return "; ".join(
        f"{key} is {old.get(key, 'not set')} there and {new.get(key, 'not set')} here"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    )


def _is_earlier(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration identifies the model by its weights only, without code and attributes."""
    model = config.get("model")
    return isinstance(model, Mapping) and "sha256" in model and "code" not in model


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to dotted keys.

    Example:
        >>> flat_config({"noise": {"name": "gaussian", "sigma": 0.5}, "seed": 0})
        {'noise.name': 'gaussian', 'noise.sigma': 0.5, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            flat.update(flat_config(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
