"""Writing files whole or not at all, and what untrusted ones may ask for."""

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

from smoothcert.types import SmoothcertError

TEMPORARIES = ".*.tmp"
"""What the names of temporary files look like."""

STANDARD_OUTPUT = Path("-")
"""What a user writes instead of a file name to get the content on standard output."""

_ALWAYS, _TIMES = 1 << 28, 100
_LINKS = 40  # as many as Linux follows


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
    """The value of an untrusted JSON text.

    Raises:
        ValueError: If it is not JSON, or nested more deeply than can be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def temporary_beside(path: Path) -> Path:
    """A name in the folder of ``path`` for a temporary file that will replace it."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def saving(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path for a file that the user named; the content goes there when the block ends without an error.

    ``-`` is standard output. Everything else is as for :func:`replacing`.

    Raises:
        SmoothcertError: If it cannot be written.
    """
    path = Path(path)
    try:
        with _copied_to(None) if path == STANDARD_OUTPUT else replacing(path) as temporary:
            yield temporary
    except BrokenPipeError:  # the reader has gone; the command line ends quietly
        raise
    except OSError as error:
        raise SmoothcertError(f"{path} cannot be written ({error.strerror or error}).") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path whose content replaces that of ``path`` when the block ends without an error.

    A regular file is replaced in one step; a link to one stays a link. Where ``path`` is anything else (a device, a
    pipe, ``/dev/stdout``), the content is written into it, because renaming over it would destroy it.

    Raises:
        OSError: If it cannot be written.
    """
    target = _followed(path)
    if isinstance(target, Path) and target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if isinstance(target, Path) and (target.is_file() or not target.exists()):
        with _renamed_to(target) as temporary:
            yield temporary
    else:
        with _copied_to(target) as temporary:
            yield temporary


def _followed(path: Path) -> Path | int:
    """What a path leads to, or the descriptor where that is an open file of this process, such as ``/dev/stdout``.

    An open file has a position, and others may share it: it must be continued, whatever kind of file it is.

    Raises:
        OSError: If links lead in a circle.
    """
    descriptors = ("/dev/fd", f"/proc/{os.getpid()}/fd")
    for _ in range(_LINKS):
        folder = os.path.realpath(path.parent)
        if folder in descriptors and path.name.isdecimal():
            return int(path.name)
        if not path.is_symlink():
            return path
        path = folder / Path(os.readlink(path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


@contextmanager
def _renamed_to(path: Path) -> Iterator[Path]:
    temporary = temporary_beside(path)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _copied_to(target: Path | int | None) -> Iterator[Path]:
    """A temporary file whose content is written into a device, a pipe or an open file; ``None``: standard output."""
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / "content"
        yield temporary
        sys.stdout.flush()  # what was printed before comes first
        with (
            temporary.open("rb") as content,
            nullcontext(sys.stdout.buffer)
            if target is None
            else open(target, "wb", closefd=isinstance(target, Path)) as stream,
        ):
            shutil.copyfileobj(content, stream)
            stream.flush()


def _sync_folder(folder: Path) -> None:
    """Make a new name survive a power cut, where the system lets folders be synced."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
