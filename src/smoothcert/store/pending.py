"""Rows on their way into a part: one line of JSON each, appended as soon as they are finished.

Every line ends with a checksum of what stands before it. The first line counts the rows: it is rewritten in place
after each of them, so a file that was cut short is noticed, while a process that is killed leaves at most one line more
than counted, or the beginning of one. Lines of earlier versions have no checksum and no count before them.
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
    """The pending rows of a run, read.

    Attributes:
        rows: The rows of the whole lines.
        size: The length of the whole lines in bytes.
        config: The digest of the configuration they belong to, where the file tells.
        counted: How many rows were written at least, where the file tells.
        torn: Whether a line without its end follows.
    """

    rows: list[Row]
    size: int = 0
    config: str | None = None
    counted: int | None = None
    torn: bool = False


def read_pending(folder: Path) -> Pending:
    """The pending rows of a run folder; a last line without its end was never finished and is left out.

    Raises:
        RunError: If a line is damaged.
    """
    file = folder / NAME
    try:
        content = file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise RunError(f"{file} cannot be read ({error.strerror or error}); make it readable, or delete it.") from error
    *lines, rest = content.split(b"\n")
    size = len(content) - len(rest)
    head = _parse(lines[0]) if lines else None
    counts = head is not None and "rows" in head
    rows = []
    for number, line in enumerate(lines[counts:], 1 + counts):
        row = _parse(line)
        if row is None or "index" not in row:
            raise _damaged(file, number, counts)
        rows.append(row)
    # A kill leaves the beginning of a line. The count is written whole, and a whole line ends in nothing but a newline.
    if (rest and not lines and not rest.startswith(b'{"index"')) or _has_sum(rest[:-1]):
        raise _damaged(file, len(lines) + 1, counts)
    mistyped = mistyped_row(rows)
    if mistyped is not None:
        raise _damaged(file, 1 + counts + mistyped, counts)
    if head is None or not counts:
        return Pending(rows, size, torn=bool(rest))
    if type(head["rows"]) is not int or not isinstance(head.get("config"), str):
        raise _damaged(file, 1, counts)
    return Pending(rows, size, head["config"], head["rows"], bool(rest))


def _damaged(file: Path, number: int, counts: bool) -> RunError:
    which = "that line and line 1, which counts the rows," if counts and number > 1 else "that line"
    return RunError(
        f"{file} is damaged in line {number}; delete {which} and run the same certify command again to compute what is "
        "missing anew."
    )


class PendingFile:
    """The pending file of a run that is being written.

    Args:
        folder: The run folder.
        config: The digest of the run's configuration.

    Raises:
        RunError: If the file is damaged, or has lost rows.
        OSError: If it cannot be written.
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
                "1, which counts them, and run the same certify command again to compute them anew."
            )
        if found.counted is None:
            with replacing(self.path) as temporary:
                lines = [_line(row) for row in found.rows]
                temporary.write_bytes(b"".join([self._count(len(lines)), *lines]))
        elif found.torn:
            os.truncate(self.path, found.size)
        self._file = self.path.open("r+b", buffering=0)
        self._head = len(self._count(0))
        self._rows = len(found.rows)
        self._synced = time.monotonic()

    def append(self, row: Row) -> None:
        """Add a row; once this returns, killing the process does not lose it.

        Raises:
            OSError: If it cannot be written; the file is then as it was before.
        """
        line = _line(row)
        size = self._file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._file.write(line) :]
            if time.monotonic() - self._synced > 1.0:
                os.fsync(self._file.fileno())
                self._synced = time.monotonic()
            self._write_count(self._rows + 1)
        except OSError:
            self._file.truncate(size)
            raise
        self._rows += 1

    def clear(self) -> None:
        """Drop all rows.

        Raises:
            OSError: If that fails; some or all rows are then still there.
        """
        self._write_count(0)
        self._file.truncate(self._head)
        self._rows = 0

    def close(self) -> None:
        self._file.close()

    def _write_count(self, rows: int) -> None:
        self._file.seek(0)
        self._file.write(self._count(rows))

    def _count(self, rows: int) -> bytes:
        return _sealed(f'{{"rows": {rows:12d}, "config": "{self._config}"}}'.encode())  # of one length, to be rewritten


def _line(row: Row) -> bytes:
    return _sealed(json.dumps(row, allow_nan=False).encode())


def _sealed(body: bytes) -> bytes:
    """An object of JSON as a line, with its checksum as one more entry."""
    return body[:-1] + _SUM + b'%08x"}\n' % zlib.crc32(body)


def _parse(line: bytes) -> dict[str, Any] | None:
    """What a line says, if it is whole; a line without a checksum must look like one of an earlier version."""
    try:
        entries = parse_json(line)
    except ValueError:
        return None
    if not isinstance(entries, dict):
        return None
    if entries.pop("crc", None) is not None:
        return entries if _sealed(line.rpartition(_SUM)[0] + b"}") == line + b"\n" else None
    return entries if entries.keys() <= set(SCHEMA.names) else None


def _has_sum(line: bytes) -> bool:
    """Whether a line is whole and has the right checksum."""
    return _SUM in line and _parse(line) is not None
