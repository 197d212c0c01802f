"""Run folders: what was certified, how, and with which votes.

A run folder holds ``run.json`` (configuration and circumstances), ``part-*.parquet`` (one row per input) and, while it
is being written, ``pending.jsonl``: finished rows on their way into the next part. A row is safe as soon as its line is
appended; a part is written aside and renamed before its lines are dropped, so a row can be seen twice for a moment, and
is then read once, but never lost.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from smoothcert.files import replacing
from smoothcert.types import Certificate, Routing, RunError

FORMAT = 1
ROWS_PER_PART = 1000
_LOCK = ".lock"
Row = dict[str, Any]

_votes = pa.list_(pa.int64())
SCHEMA = pa.schema(
    [
        ("index", pa.int64()),
        ("label", pa.int64()),
        ("predict", pa.int64()),
        ("radius", pa.float64()),
        ("correct", pa.bool_()),
        ("p_lower", pa.float64()),
        ("alpha", pa.float64()),
        ("alpha_split", pa.list_(pa.struct([("bound", pa.string()), ("alpha", pa.float64())]))),
        ("norm", pa.string()),
        ("guarantee", pa.string()),
        ("n", pa.int64()),
        ("counts", _votes),
        ("n0", pa.int64()),
        ("selection", _votes),
        ("checkpoints", pa.list_(pa.struct([("n", pa.int64()), ("counts", _votes)]))),
        ("outcome", pa.string()),
        ("decisions", pa.list_(pa.struct([("radius", pa.float64()), ("outcome", pa.string())]))),
        ("stages", pa.list_(pa.struct([("n", pa.int64()), ("counts", _votes)]))),
        ("seconds", pa.float64()),
        ("consensus", pa.float64()),
        ("sigma", pa.float64()),
        ("choice", pa.int64()),
        ("choice_radius", pa.float64()),
        ("selector", _votes),
        ("selector0", _votes),
        ("core", pa.int64()),
    ]
)
"""The columns of a certification run.

``checkpoints`` are cumulative counts at powers of ten below ``n``; ``consensus`` is the share of noisy copies that the
first members of a consensus decided, null for other models; ``sigma`` the scale of a noise chosen for the input alone.
Where a selector chose who answers: its certified ``choice`` (-1: none) and how far it holds, the votes of the
estimation and the selection samples (for ACES, copies per threshold), and the class of a core that was asked. Parts of
earlier versions lack the last columns.
"""


def certificate_row(
    certificate: Certificate,
    label: int,
    seconds: float,
    consensus: float | None = None,
    sigma: float | None = None,
) -> Row:
    """One row of a run: the certificate of an input whose true class is ``label``."""
    c = certificate
    return {
        "index": c.index,
        "label": label,
        "predict": c.label,
        "radius": c.radius,
        "correct": c.label == label,
        "p_lower": c.p_lower,
        "alpha": c.alpha,
        "alpha_split": [{"bound": bound, "alpha": alpha} for bound, alpha in c.alpha_split.items()],
        "norm": c.norm.value,
        "guarantee": c.guarantee.value,
        "n": c.n,
        "counts": list(c.counts),
        "n0": c.n0,
        "selection": list(c.selection),
        "checkpoints": [{"n": n, "counts": list(counts)} for n, counts in c.checkpoints.items()],
        "outcome": c.outcome.value,
        "decisions": [{"radius": radius, "outcome": outcome.value} for radius, outcome in c.decisions.items()],
        "stages": [{"n": stage.n, "counts": list(stage.counts)} for stage in c.stages],
        "seconds": seconds,
        "consensus": consensus,
        "sigma": sigma,
        **_routing_columns(c.routing),
    }


def _routing_columns(routing: Routing | None) -> Row:
    if routing is None:
        return dict.fromkeys(("choice", "choice_radius", "selector", "selector0", "core"))
    return {
        "choice": routing.choice,
        "choice_radius": routing.radius,
        "selector": list(routing.counts),
        "selector0": list(routing.selection),
        "core": routing.core,
    }


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

    def table(self) -> pa.Table:
        """All rows as an Arrow table, ordered by input index.

        Raises:
            RunError: If a part is damaged.
        """
        pieces = [_read_part(part) for part in _parts(self.path)]
        seen = {index for piece in pieces for index in piece["index"].to_pylist()}
        pending = [row for row in _read_pending(self.path)[0] if row["index"] not in seen]
        if pending or not pieces:
            pieces.append(pa.Table.from_pylist(pending, schema=SCHEMA))
        return pa.concat_tables(pieces, promote_options="default").sort_by("index")

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
    file = folder / "run.json"
    if not file.is_file():
        raise RunError(f"{folder} is not a run folder: it has no run.json.")
    try:
        info = json.loads(file.read_text(encoding="utf-8"))
        version = int(info["format"])
        _ = info["config"]["kind"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} is damaged ({error}); restore it, or certify into another folder.") from error
    if version > FORMAT:
        raise RunError(f"{folder} was written by a newer smoothcert (run format {version}); update to read it.")
    return Run(folder, info)


class RunWriter:
    """Appends rows to a run folder; use through :func:`open_run`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        parts = _parts(run.path)
        rows, size = _read_pending(run.path)
        self._next_part = 1 + max((int(part.stem.removeprefix("part-")) for part in parts), default=-1)
        self.done: set[int] = {i for part in parts for i in _read_part(part, columns=["index"])["index"].to_pylist()}
        self._rows = [row for row in rows if row["index"] not in self.done]
        self.done.update(row["index"] for row in self._rows)
        self._file = (run.path / "pending.jsonl").open("ab", buffering=0)
        self._file.truncate(size)  # a line cut short by a kill
        self._synced = time.monotonic()

    def append(self, row: Row) -> None:
        """Add a finished row; once this returns, killing the process does not lose it.

        Raises:
            RunError: If it cannot be written; the run is then as it was before.
        """
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        size = self._file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._file.write(line) :]
            if time.monotonic() - self._synced > 1.0:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
        except OSError as error:
            self._file.truncate(size)
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
            _write_info(self.run.path, self.run.config, [*earlier, {**current, **facts}])
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
            with replacing(self.run.path / f"part-{self._next_part:06d}.parquet") as temporary:
                pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), temporary, compression="zstd")
            self._file.truncate(0)
        except OSError as error:
            raise _cannot_write(self.run.path, error) from error
        self._next_part += 1
        self._rows = []

    def close(self) -> None:
        self._file.close()


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
    if folder.exists() and not (folder / "run.json").exists() and not _is_new(folder):
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
    except OSError as error:
        lock.release()
        raise _cannot_write(folder, error) from error
    except RunError:
        lock.release()
        raise
    try:
        yield writer
    finally:
        writer.close()
        lock.release()


def _prepare(folder: Path, config: Mapping[str, Any], session: Mapping[str, Any]) -> RunWriter:
    sessions: list[Any] = []
    if (folder / "run.json").exists():
        run = load_run(folder)
        _refuse_other(folder, run.config, json.loads(json.dumps(config)))
        sessions = list(run.info.get("sessions", []))
    _write_info(folder, config, [*sessions, session])
    return RunWriter(load_run(folder))


def _write_info(folder: Path, config: Mapping[str, Any], sessions: list[Any]) -> None:
    with replacing(folder / "run.json") as temporary:
        info = {"format": FORMAT, "config": config, "sessions": sessions}
        temporary.write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")


def _is_new(folder: Path) -> bool:
    """Whether nothing is there yet but perhaps the lock of an attempt that got no further."""
    return folder.is_dir() and all(file.name == _LOCK for file in folder.iterdir())


def write_run(
    path: str | os.PathLike[str], table: pa.Table, config: Mapping[str, Any], session: Mapping[str, Any]
) -> Run:
    """Store a finished table (an imported log) as a run folder.

    Raises:
        RunError: If the folder is not new or empty, or cannot be written.
    """
    folder = Path(path)
    if folder.exists() and not _is_new(folder):
        raise RunError(f"{folder} exists already; choose a new or empty folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / "part-000000.parquet") as temporary:
            pq.write_table(table, temporary, compression="zstd")
        _write_info(folder, config, [session])
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return load_run(folder)


def _parts(folder: Path) -> list[Path]:
    return sorted(folder.glob("part-*.parquet"))


def _read_part(part: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        return pq.read_table(part, columns=columns)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise RunError(
            f"{part} is damaged ({str(error).splitlines()[0]}); delete it and run the same certify command again to "
            "compute its rows anew."
        ) from error


def _read_pending(folder: Path) -> tuple[list[Row], int]:
    """The whole lines of the pending file and their length in bytes; a last line without its end was never finished."""
    file = folder / "pending.jsonl"
    if not file.exists():
        return [], 0
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    rows = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            _ = row["index"]
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"{file} is damaged in line {number}; delete that line and run the same certify command again."
            ) from error
        rows.append(row)
    return rows, len(whole)


def _refuse_other(folder: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    old, new = flat_config(there), flat_config(here)
    differences = [
        f"{key} is {old.get(key, 'not set')} there and {new.get(key, 'not set')} here"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
    ]
    if differences:
        raise RunError(
            f"{folder} holds a run with another configuration ({'; '.join(differences)}); "
            "choose another run folder, or delete this one to start anew."
        )


def flat_config(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted keys.

    Example:
        >>> flat_config({"noise": {"name": "gaussian", "sigma": 0.5}, "seed": 0})
        {'noise.name': 'gaussian', 'noise.sigma': 0.5, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
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
