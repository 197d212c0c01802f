"""Write files atomically, and limit what untrusted ones can request."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from smoothcert.types import SmoothcertError, StrPath

TEMPORARIES = ".*.tmp"
"""The pattern of the names of temporary files."""

STANDARD_OUTPUT = Path("-")
"""The file name that stands for standard output."""


def unpacked_limit(packed: int) -> int:
    """Return how many bytes a compressed file of this size may unpack to.

    Images compress to a tenth at best, and zip or gzip files to a thousandth. So a hundred times the size, or 256 MB
    for small files, is enough for a dataset and keeps a decompression bomb harmless.
    """
    return max(1 << 28, 100 * packed)


def parse_json(text: str | bytes) -> Any:
    """Parse untrusted JSON; raise a ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def temporary_next_to(path: Path) -> Path:
    """Return a path in the folder of ``path`` for a temporary file that will replace it."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def saving(path: StrPath) -> Iterator[Path]:
    """Write a file that the user named, as :func:`replacing` does, or explain the error; ``-`` is standard output."""
    path = Path(path)
    try:
        with _copied_to(None) if path == STANDARD_OUTPUT else replacing(path) as temporary:
            yield temporary
    except BrokenPipeError:  # the reader has closed the pipe; the command line ends without a message
        raise
    except OSError as error:
        raise SmoothcertError(f"{path} cannot be written ({error.strerror or error}).") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path whose content replaces that of ``path`` if the block ends without an error.

    A regular file is replaced in one step; a link to one stays a link. If ``path`` is anything else (a device, a pipe,
    ``/dev/stdout``), the content is written into it, because renaming over it would destroy it.
    """
    target = _followed(path)
    if isinstance(target, Path) and (target.is_file() or not target.exists()):
        writing = _renamed_to(target)
    else:
        writing = _copied_to(target)
    with writing as temporary:
        yield temporary


def _followed(path: Path) -> Path | int:
    """Follow links; return the descriptor of an open file of this process, such as ``/dev/stdout``.

    An open file has a position that other processes may share, so it must be continued, whatever kind of file it is.
    """
    descriptors = ("/dev/fd", f"/proc/{os.getpid()}/fd")
    for _ in range(40):  # as many links as Linux follows
        folder = os.path.realpath(path.parent)
        if folder in descriptors and path.name.isdecimal():
            return int(path.name)
        if not path.is_symlink():
            return path
        path = folder / Path(os.readlink(path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


@contextmanager
def _renamed_to(path: Path) -> Iterator[Path]:
    temporary = temporary_next_to(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        with suppress(OSError):  # makes the new name survive a power cut, if the system can sync folders
            descriptor = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _copied_to(target: Path | int | None) -> Iterator[Path]:
    """Yield a temporary path whose content is written into a device, pipe or open file; ``None``: standard output."""
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "content"
        yield temporary
        sys.stdout.flush()  # earlier prints come first
        with (
            temporary.open("rb") as content,
            nullcontext(sys.stdout.buffer)
            if target is None
            else open(target, "wb", closefd=isinstance(target, Path)) as stream,
        ):
            shutil.copyfileobj(content, stream)
            stream.flush()
