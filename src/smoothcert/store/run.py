"""Run folders: what was certified, how, and with which votes.

A run folder holds ``run.json`` (configuration and circumstances), ``part-*.parquet`` (one row per input) and, while it
is being written, ``pending.jsonl``: finished rows on their way into the next part. A row is safe as soon as its line is
appended; a part is written aside and renamed before its lines are dropped, so a row can be seen twice for a moment, and
is then read once, but never lost.
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

from smoothcert.files import TEMPORARIES, temporary_beside
from smoothcert.store import pending, run_json
from smoothcert.store.parts import parts_of, read_part, write_part
from smoothcert.store.pending import PendingFile, read_pending
from smoothcert.store.rows import SCHEMA, Row, certificate_row, check_rows
from smoothcert.store.run_json import (
    RunSettings,
    config_digest,
    parse_settings,
    read_info,
    refuse_other_answers,
    refuse_strangers,
    write_info,
)
from smoothcert.types import RunError

__all__ = ["SCHEMA", "Row", "Run", "RunWriter", "certificate_row", "flat_config", "load_run", "open_run", "write_run"]

ROWS_PER_PART = 1000
_LOCK = ".lock"


@dataclass(frozen=True)
class Run:
    """A run folder, read.

    Attributes:
        path: The folder.
        info: The content of ``run.json``.
    """

    path: Path
    info: Mapping[str, Any]

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def config(self) -> Mapping[str, Any]:
        """What was asked for; the same configuration gives the same rows."""
        return self.info["config"]  # type: ignore[no-any-return]

    @cached_property
    def settings(self) -> RunSettings:
        """The configuration with typed fields.

        Raises:
            RunError: If a setting is not of the type that any version writes.
        """
        return parse_settings(self.config, self.path)

    @property
    def sessions(self) -> list[Mapping[str, Any]]:
        """The circumstances of each session, oldest first; those of an unknown form are left out."""
        sessions = self.info.get("sessions")
        return [each for each in sessions if isinstance(each, Mapping)] if isinstance(sessions, list) else []

    @property
    def dimension(self) -> int | None:
        """The number of values of an input; None for runs of earlier versions, which did not store it."""
        found = {each["dimension"] for each in self.sessions if type(each.get("dimension")) is int}
        return found.pop() if len(found) == 1 and min(found) > 0 else None

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows as an Arrow table, ordered by input index.

        Args:
            columns: Only those of these columns that it has, for a run whose votes do not fit into memory; all by
                default.

        Raises:
            RunError: If a part or a pending row is damaged.
        """
        wanted = None if columns is None else list(dict.fromkeys(["index", *columns]))
        pieces = list(self.pieces(wanted))
        try:
            found = pa.concat_tables(pieces, promote_options="default").sort_by("index")
        except (pa.ArrowException, KeyError) as error:
            reason = str(error).partition("\n")[0]
            raise RunError(f"the parts of {self.path} do not fit together ({reason}); delete the odd one.") from error
        return found if columns is None else found.select([name for name in columns if name in found.column_names])

    def pieces(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """All rows in tables as they were written, by default of a thousand, each read when it is asked for.

        Args:
            columns: Only those of these columns that it has, ``index`` among them; all by default.

        Yields:
            At least one table, each ordered by input index.

        Raises:
            RunError: If a part or a pending row is damaged.
        """
        waiting = read_pending(self.path).rows  # before the parts: rows may move there meanwhile, and are then in both
        seen: dict[int, Path] = {}
        parts = parts_of(self.path)
        for part in parts:
            piece = read_part(part, None if columns is None else list(columns))
            self._check(part, piece)
            _note(part, piece, seen)
            yield piece.sort_by("index")
        waiting = [row for row in waiting if row["index"] not in seen]
        if waiting or not parts:
            rest = pa.Table.from_pylist(waiting, schema=SCHEMA).sort_by("index")
            self._check(self.path / pending.NAME, rest)
            yield rest if columns is None else rest.select([name for name in columns if name in SCHEMA.names])

    def _check(self, file: Path, rows: pa.Table) -> None:
        classes = None if "experts" in self.config else self.config.get("num_classes")  # a router's are its experts
        try:
            check_rows(
                rows,
                num_classes=classes if isinstance(classes, int) else None,
                needs_norm=self.config["kind"] == "certification",
            )
        except ValueError as error:
            raise RunError(
                f"{file} is damaged: {error}; delete the file and run the same certify command again to compute its "
                "rows anew."
            ) from error

    def rows(self) -> list[Row]:
        """All rows as dicts, ordered by input index; ``checkpoints``, ``alpha_split`` and ``decisions`` as mappings."""
        rows: list[Row] = self.table().to_pylist()
        for row in rows:
            for column in ("checkpoints", "alpha_split", "decisions"):
                if row.get(column) is not None:
                    row[column] = dict(tuple(entry.values()) for entry in row[column])
        return rows


def load_run(path: str | os.PathLike[str]) -> Run:
    """Open a run folder for reading; it may still be written to by another process.

    Args:
        path: The folder.

    Returns:
        The run.

    Raises:
        RunError: If the folder is no run, or was written by a newer version.
    """
    folder = Path(path)
    return Run(folder, read_info(folder))


class RunWriter:
    """Appends rows to a run folder; use through :func:`open_run`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._config = config_digest(run.config)
        parts = parts_of(run.path)
        sealed: dict[int, Path] = {}
        for part in parts:
            _note(part, read_part(part, columns=["index"]), sealed)
        self._next_part = 1 + max((int(part.stem.removeprefix("part-")) for part in parts), default=-1)
        self._pending = PendingFile(run.path, self._config)
        if self._pending.torn:
            warnings.warn(f"{self._pending.path} ended in the middle of a row; it is computed anew.", stacklevel=2)
        waiting = {row["index"]: row for row in self._pending.rows if row["index"] not in sealed}
        self._rows = list(waiting.values())
        self.done: set[int] = sealed.keys() | waiting.keys()

    def append(self, row: Row) -> None:
        """Add a finished row; once this returns, killing the process does not lose it.

        Raises:
            RunError: If it cannot be written; the run is then as it was before.
        """
        try:
            self._pending.append(row)
        except OSError as error:
            raise _cannot_write(self.run.path, error) from error
        self._rows.append(row)
        self.done.add(row["index"])
        if len(self._rows) >= ROWS_PER_PART:
            self.seal()

    def annotate(self, **facts: Any) -> None:
        """Add facts to this session's entry in ``run.json``.

        Raises:
            RunError: If it cannot be written.
        """
        *earlier, current = self.run.info["sessions"]
        try:
            write_info(self.run.path, self.run.config, [*earlier, {**current, **facts}])
        except OSError as error:
            raise _cannot_write(self.run.path, error) from error
        self.run = load_run(self.run.path)

    def seal(self) -> None:
        """Move the pending rows into a Parquet part.

        Raises:
            RunError: If the part cannot be written; the rows then stay pending.
        """
        if not self._rows:
            return
        rows = sorted(self._rows, key=lambda row: int(row["index"]))
        try:
            path = self.run.path / f"part-{self._next_part:06d}.parquet"
            write_part(path, pa.Table.from_pylist(rows, schema=SCHEMA), self._config)
            self._pending.clear()
        except OSError as error:
            raise _cannot_write(self.run.path, error) from error
        self._next_part += 1
        self._rows = []

    def close(self) -> None:
        self._pending.close()


@contextmanager
def open_run(
    path: str | os.PathLike[str], config: Mapping[str, Any], session: Mapping[str, Any]
) -> Iterator[RunWriter]:
    """Create a run folder, or continue the one that is there.

    Args:
        path: The folder.
        config: What decides the rows; must equal the folder's when it already holds a run.
        session: Circumstances worth keeping (versions, batch size, checkpoint file); a list grows in ``run.json``.

    Yields:
        The writer; nobody else can open the run for writing meanwhile.

    Raises:
        RunError: If the folder cannot be written, belongs to another configuration, is no run, or is in use.
    """
    folder = Path(path)
    if folder.exists() and not (folder / run_json.NAME).exists() and not _is_ours(folder):
        raise RunError(f"{folder} exists and is not a run folder; choose a new or empty folder.")
    lock = FileLock(folder / _LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        writer = _prepare(folder, config, session)
    except Timeout as error:
        raise RunError(
            f"{folder} is being written by another process; wait for it or choose another folder."
        ) from error
    except BaseException as error:  # Ctrl-C too must not leave the folder locked
        lock.release()
        if isinstance(error, OSError):
            raise _cannot_write(folder, error) from error
        raise
    try:
        yield writer
    finally:
        writer.close()
        if not writer.done and _is_ours(folder):  # nothing was answered, so nothing is left behind
            shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def clear_run(path: str | os.PathLike[str]) -> None:
    """Delete a run folder, if there is one.

    Raises:
        RunError: If the folder holds other files, or another process writes to it.
    """
    folder = Path(path)
    if not folder.exists():
        return
    if not _is_ours(folder):
        raise RunError(
            f"{folder} holds files that do not belong to a run, so it is not deleted; choose another folder."
        )
    try:
        with FileLock(folder / _LOCK, timeout=0):
            shutil.rmtree(folder)
    except Timeout as error:
        raise RunError(f"{folder} is being written by another process; wait for it to end.") from error
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _prepare(folder: Path, config: Mapping[str, Any], session: Mapping[str, Any]) -> RunWriter:
    for leftover in folder.glob(TEMPORARIES):  # of a process that was killed; we hold the lock
        leftover.unlink(missing_ok=True)
    sessions: list[Any] = []
    if (folder / run_json.NAME).exists() and not _is_empty(folder):
        run = load_run(folder)
        _refuse_other(folder, run.config, json.loads(json.dumps(config)))
        sessions = run.info.get("sessions", [])
        if not isinstance(sessions, list):
            raise RunError(f"{folder / run_json.NAME} is damaged (its sessions are no list); restore it.")
        refuse_other_answers(folder, sessions, [session])
        config = run.config  # one of an earlier version may tell less
    elif refuse_strangers(folder, config_digest(config)):
        sessions = [{"note": "earlier sessions are unknown: run.json was lost"}]
    write_info(folder, config, [*sessions, session])
    return RunWriter(load_run(folder))


def _is_empty(folder: Path) -> bool:
    """Whether a run has no rows yet, so that another one may take its place."""
    return not parts_of(folder) and not read_pending(folder).rows


def _is_new(folder: Path) -> bool:
    """Whether nothing is there yet but perhaps the lock and temporaries of an attempt that got no further."""
    return folder.is_dir() and all(file.name == _LOCK or file.match(TEMPORARIES) for file in folder.iterdir())


def _is_ours(folder: Path) -> bool:
    """Whether nothing is there but what a run consists of."""
    if not folder.is_dir():
        return False
    known = {_LOCK, run_json.NAME, pending.NAME, *(part.name for part in parts_of(folder))}
    return all(file.name in known or file.match(TEMPORARIES) for file in folder.iterdir())


def write_run(
    path: str | os.PathLike[str],
    rows: pa.Table | Iterable[pa.Table],
    config: Mapping[str, Any],
    session: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> Run:
    """Store finished rows (an imported log, or runs put together) as a run folder, whole or not at all.

    Args:
        path: The folder.
        rows: The rows, in one table or in several, of which each becomes a part before the next one is asked for.
        config: What decided them.
        session: The circumstances, or those of several sessions.

    Returns:
        The run.

    Raises:
        RunError: If the folder is not new or empty, or cannot be written.
    """
    folder = Path(path)
    refuse_existing(folder)
    place = folder.resolve()
    sessions = [session] if isinstance(session, Mapping) else session
    owner = config_digest(config) if config["kind"] == "certification" else None
    beside = temporary_beside(place)
    try:
        beside.mkdir(parents=True)
        for number, table in enumerate([rows] if isinstance(rows, pa.Table) else rows):
            write_part(beside / f"part-{number:06d}.parquet", table, owner)
        write_info(beside, config, sessions)
        if place.exists():
            shutil.rmtree(place)  # nothing but leftovers, as was made sure
        os.replace(beside, place)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return load_run(folder)


def refuse_existing(folder: Path) -> None:
    """Refuse a folder that holds anything.

    Raises:
        RunError: If it does.
    """
    if folder.exists() and not _is_new(folder):
        raise RunError(f"{folder} exists already; choose a new or empty folder.")


def _note(part: Path, table: pa.Table, seen: dict[int, Path]) -> None:
    """Note which part an input is in, and refuse one that is in two."""
    for index in table["index"].to_pylist():
        if seen.get(index, part) != part:
            raise RunError(
                f"input {index} is in {seen[index]} and in {part}; delete one of them and run the same certify command "
                "again."
            )
        seen[index] = part


def _refuse_other(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    if _is_earlier(there):
        warnings.warn(
            f"{folder} was begun by an earlier version, which did not record the code and the attributes of the model; "
            "continue it only with the same model.",
            stacklevel=4,
        )
    found = differences(there, here)
    if found:
        raise RunError(
            f"{folder} holds a run with another configuration ({found}); "
            "choose another run folder, or delete this one to start anew."
        )


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """In what two configurations differ, as text; empty where they do not.

    Example:
        >>> differences({"noise": {"sigma": 0.5}}, {"noise": {"sigma": 0.25}, "seed": 1})
        'noise.sigma is 0.5 there and 0.25 here; seed is not set there and 1 here'
    """
    old, new = flat_config(there), flat_config(here)
    if _is_earlier(there):
        new = {key: value for key, value in new.items() if key in old or not _is_added(key)}
    return "; ".join(
        f"{key} is {old.get(key, 'not set')} there and {new.get(key, 'not set')} here"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    )


def _is_earlier(config: Mapping[str, Any]) -> bool:
    """Whether a configuration was written before models were identified by their code and attributes too."""
    model = config.get("model")
    return isinstance(model, Mapping) and "sha256" in model and "code" not in model


def _is_added(key: str) -> bool:
    """Whether configurations of earlier versions lack a key."""
    return key == "stream.dtype" or key.endswith(".code")


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted keys.

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


def _cannot_write(folder: Path, error: OSError) -> RunError:
    return RunError(
        f"cannot write to {folder} ({error.strerror or error}); free space or choose a folder you may write to, then "
        "run the same command again to continue."
    )
