"""Writing files whole or not at all, and what untrusted ones may ask for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

TEMPORARIES = ".*.tmp"
"""What the names of temporary files look like."""

_ALWAYS, _TIMES = 1 << 28, 100


def unpacked_limit(packed: int) -> int:
    """How many bytes a compressed file of this size may unpack to.

    Images pack to a tenth at best, and no compression of zip or gzip files goes beyond a thousandth. So a hundred times
    the size, or 256 MB for small files, is more than a dataset needs and less than a bomb does harm with.

    Example:
        >>> unpacked_limit(1_000), unpacked_limit(10_000_000)
        (268435456, 1000000000)
    """
    return max(_ALWAYS, _TIMES * packed)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text that nobody vouches for.

    Raises:
        ValueError: If it is no JSON, or nested more deeply than can be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def temporary_beside(path: Path) -> Path:
    """A name beside ``path`` for what is to take its place."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends well, and vanishes when it does not."""
    temporary = temporary_beside(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a new name survive a power cut, where the system lets folders be synced."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
