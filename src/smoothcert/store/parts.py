"""Parquet parts of a run, with a checksum over every byte.

A part is an ordinary Parquet file. The checksums of its pages leave out headers and the footer, where a flipped byte
can rename a column. So the footer also holds a SHA-256 of the whole file, computed with zeros in place of its digits.
Parts of earlier versions have neither checksum.
"""

from __future__ import annotations

import hashlib
import io
import re
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from smoothcert.files import replacing
from smoothcert.store.rows import typed
from smoothcert.types import RunError

_KEY, _CONFIG = b"smoothcert.checksum", b"smoothcert.config"
_ZEROS = b"sha256:" + b"0" * 64
_DIGITS = re.compile(rb"sha256:([0-9a-f]{64})")


def parts_of(folder: Path) -> list[Path]:
    """List the parts in a run folder, in the order written."""
    return sorted(folder.glob("part-*.parquet"))


def write_part(path: Path, table: pa.Table, config: str | None) -> None:
    """Write a part atomically, with the digest of the configuration that it belongs to."""
    facts = {_KEY: _ZEROS} if config is None else {_KEY: _ZEROS, _CONFIG: config.encode()}
    stream = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(facts), stream, compression="zstd", write_page_checksum=True)
    content = stream.getvalue()
    assert content.count(_ZEROS) == 1, "the place of the checksum must be unique"
    with replacing(path) as temporary:
        temporary.write_bytes(content.replace(_ZEROS, b"sha256:" + hashlib.sha256(content).hexdigest().encode()))


def read_part(path: Path, columns: list[str] | None = None) -> pa.Table:
    """Read the rows of a part, or some columns of them; refuse a damaged file."""
    return _read(path, columns).replace_schema_metadata(None)


def part_config(path: Path) -> str | None:
    """Read the digest of the configuration that a part belongs to; None in parts of earlier versions."""
    facts = _read(path, ["index"]).schema.metadata or {}
    return facts[_CONFIG].decode() if _CONFIG in facts else None


def _read(path: Path, columns: list[str] | None) -> pa.Table:
    try:
        stat = path.stat()
        _verify(path, stat.st_size, stat.st_mtime_ns, stat.st_ino)
        # Neither threads nor buffering ahead: Arrow's threads can abort the process while the interpreter ends.
        with pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False) as file:
            return typed(file.read(columns=columns, use_threads=False))
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"{path} is damaged ({reason}); delete it and run the same command again to compute its rows again."
        ) from error


@lru_cache(maxsize=65_536)
def _verify(path: Path, _size: int, _changed: int, _inode: int) -> None:
    """Check the sum over the whole file before anything is parsed, once as long as the file does not change."""
    content = path.read_bytes()
    places = list(_DIGITS.finditer(content))
    if not places:
        if _KEY in content:
            raise ValueError("its checksum is unreadable")
        return
    digits = places[-1]  # the last one is in the footer
    zeros = content[: digits.start()] + _ZEROS + content[digits.end() :]
    if hashlib.sha256(zeros).hexdigest().encode() != digits[1]:
        raise ValueError("its checksum differs")
