"""Unpack an archive without letting it write outside its folder."""

from __future__ import annotations

import gzip
import io
import shutil
import stat
import tarfile
import tempfile
import zipfile
from pathlib import Path, PureWindowsPath
from typing import IO, cast

from smoothcert.files import unpacked_limit
from smoothcert.types import DataError

SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")

LONGEST_HEADER = 1 << 20  # the limit for one read of a tar file: member names are read in one piece


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive (see ``SUFFIXES``) into an existing folder, completely or not at all.

    Existing entries of the folder are replaced. An archive is refused with a DataError if it is damaged, a member is a
    link, a device or outside the folder, or it unpacks to far more than its size.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpack-") as staging:
        try:
            (_extract_zip if archive.suffix == ".zip" else _extract_tar)(archive, staging)
        except DataError:
            raise
        except Exception as error:  # damaged archives raise many kinds of errors
            raise DataError(f"{archive} cannot be unpacked ({error}): delete it and download it again.") from error
        for entry in Path(staging).iterdir():
            target = folder / entry.name
            if target.is_dir():
                shutil.rmtree(target)
            entry.replace(target)


class _LimitedReader(io.RawIOBase):
    """The content of a tar file; refuses large single reads, which only a hostile header requests."""

    def __init__(self, content: io.BufferedIOBase) -> None:
        self._content = content

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LONGEST_HEADER:
            raise tarfile.ReadError(f"a header requests {size} bytes")
        return self._content.read(size)

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        return self._content.seek(place, whence)

    def tell(self) -> int:
        return self._content.tell()


def _extract_tar(archive: Path, folder: str) -> None:
    opened = gzip.open if archive.suffix in (".gz", ".tgz") else open
    with opened(archive, "rb") as content:
        stream = cast(IO[bytes], _LimitedReader(content))
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            size = 0
            for member in tar:
                _check_member(member.name, archive, plain=member.isfile() or member.isdir())
                size += max(member.size, 0) + tarfile.BLOCKSIZE
                _check_size(size, archive)
            # After the loop: going back to a header would decompress the file from its start for each member.
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
            tar.extractall(folder)


def _extract_zip(archive: Path, folder: str) -> None:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)  # 0 in archives that were not made on Unix
            _check_member(member.filename, archive, plain=kind in (0, stat.S_IFREG, stat.S_IFDIR))
        _check_size(sum(member.file_size for member in file.infolist()), archive)
        file.extractall(folder)


def _check_size(size: int, archive: Path) -> None:
    if size > unpacked_limit(archive.stat().st_size):
        raise DataError(f"{archive} would unpack to far more than its size; do not use this archive.")


def _check_member(name: str, archive: Path, *, plain: bool) -> None:
    path = PureWindowsPath(name)  # parses / and \ and drive letters
    if path.drive or path.root or ".." in path.parts:
        raise DataError(f"{archive} has the member {name!r}, which leaves its folder; do not use this archive.")
    if not plain:
        raise DataError(f"{archive} has the member {name!r}, a link or device; do not use this archive.")
