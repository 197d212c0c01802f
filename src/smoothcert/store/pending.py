"""Pending rows: finished rows that are not in a part yet, one line of JSON each.

Every line ends with a checksum of the text before it. The first line counts the rows and is rewritten in place after
each of them, so a file that was cut short is noticed; a killed process leaves at most one line more than counted, or
the beginning of one. Files of earlier versions have neither checksums nor a count.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smoothcert.files import parse_json, replacing
from smoothcert.store.rows import SCHEMA, Row, mistyped_row
from smoothcert.types import RunError

NAME = "pending.jsonl"
_SUM = b', "crc": "'


@dataclass(frozen=True)
class Pending:
    """The content of a pending file; config digest and count are None in files of earlier versions."""

    rows: list[Row]
    config: str | None = None
    counted: int | None = None
    torn: bool = False  # whether an incomplete line follows


def read_pending(folder: Path) -> Pending:
    """Read the pending rows of a run folder, without an incomplete last line; refuse a damaged file."""
    file = folder / NAME
    try:
        content = file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise RunError(f"{file} cannot be read ({error.strerror or error}); make it readable, or delete it.") from error
    *lines, rest = content.split(b"\n")
    head = _parse(lines[0]) if lines else None
    counts = head is not None and "rows" in head

    def damaged(number: int) -> RunError:
        which = "that line and line 1, which counts the rows," if counts and number > 1 else "that line"
        return RunError(
            f"{file} is damaged in line {number}; delete {which} and run the same command again to compute missing "
            "rows again."
        )

    rows = []
    for number, line in enumerate(lines[counts:], 1 + counts):
        row = _parse(line)
        if row is None or "index" not in row:
            raise damaged(number)
        rows.append(row)
    # A kill leaves the beginning of a row. The count is written whole, and a whole line ends with a newline.
    if (rest and not lines and not rest.startswith(b'{"index"')) or (_SUM in rest and _parse(rest[:-1]) is not None):
        raise damaged(len(lines) + 1)
    mistyped = mistyped_row(rows)
    if mistyped is not None:
        raise damaged(1 + counts + mistyped)
    if head is None or not counts:
        return Pending(rows, torn=bool(rest))
    if type(head["rows"]) is not int or not isinstance(head.get("config"), str):
        raise damaged(1)
    return Pending(rows, head["config"], head["rows"], bool(rest))


class PendingFile:
    """The pending file of a run that is open for writing; refuses a file that is damaged or has lost rows.

    All methods raise ``OSError`` if the file cannot be written.
    """

    def __init__(self, folder: Path, config: str) -> None:
        self.path = folder / NAME
        self._config = config
        found = read_pending(folder)
        self.rows = found.rows
        self.torn = found.torn
        lost = (found.counted or 0) - len(found.rows) - found.torn
        if lost > 0:
            raise RunError(
                f"{self.path} has lost {lost + found.torn} of the {found.counted} rows written to it; delete its line "
                "1, which counts them, and run the same command again to compute them again."
            )
        if found.counted is None or found.torn:
            with replacing(self.path) as temporary:
                lines = (_sealed(json.dumps(row).encode()) for row in found.rows)
                temporary.write_bytes(b"".join([self._head(len(found.rows)), *lines]))
        self._file = self.path.open("r+b", buffering=0)
        self._count = len(found.rows)
        self._synced = time.monotonic()

    def append(self, row: Row) -> None:
        """Add a row; once this returns, killing the process does not lose it. After an error the file is as before."""
        line = _sealed(json.dumps(row, allow_nan=False).encode())
        size = self._file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._file.write(line) :]
            if time.monotonic() - self._synced > 1.0:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
            self._write_count(self._count + 1)
        except OSError:
            self._file.truncate(size)
            raise

    def clear(self) -> None:
        """Drop all rows; after an error, some or all are still there."""
        self._write_count(0)
        self._file.truncate(len(self._head(0)))

    def close(self) -> None:
        self._file.close()

    def _write_count(self, count: int) -> None:
        self._file.seek(0)
        self._file.write(self._head(count))
        self._count = count

    def _head(self, count: int) -> bytes:
        return _sealed(f'{{"rows": {count:12d}, "config": "{self._config}"}}'.encode())  # always of the same length


def _sealed(body: bytes) -> bytes:
    """Return a JSON object as a line, with its checksum as the last entry."""
    return body[:-1] + _SUM + b'%08x"}\n' % zlib.crc32(body)


def _parse(line: bytes) -> dict[str, Any] | None:
    """Read a line; None if its checksum differs, or if it has none and is not a row of an earlier version."""
    try:
        entries = parse_json(line)
    except ValueError:
        return None
    if not isinstance(entries, dict):
        return None
    if entries.pop("crc", None) is not None:
        return entries if _sealed(line.rpartition(_SUM)[0] + b"}") == line + b"\n" else None
    return entries if entries.keys() <= set(SCHEMA.names) else None
