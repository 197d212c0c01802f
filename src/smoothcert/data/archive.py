"""Unpack an archive without letting it write outside its folder."""

from __future__ import annotations

import gzip
import io
import lzma
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path, PureWindowsPath
from typing import IO, cast

from smoothcert.files import unpacked_limit
from smoothcert.types import DataError

SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")
"""How the names of archives end."""

LONGEST_HEADER = 1 << 20
"""What a tar file may have read at once, which is what the names of its members take."""

_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,  # an encrypted member of a .zip file, or one packed in a way nobody knows
    ValueError,  # numbers and names in damaged headers
    IndexError,
    OverflowError,
    struct.error,
)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ``.tar.gz``, ``.tgz``, ``.tar`` or ``.zip`` archive into a folder, all of it or nothing.

    Top entries that exist are replaced.

    Args:
        archive: The archive.
        folder: The folder to unpack into; it must exist.

    Raises:
        DataError: If the archive is damaged, a member is a link, a device or leaves the folder, or it unpacks to far
            more than its size.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpack-") as staging:
        try:
            if archive.suffix == ".zip":
                _extract_zip(archive, staging)
            else:
                _extract_tar(archive, staging)
        except _DAMAGE as error:
            raise DataError(f"{archive} cannot be unpacked ({error}): delete it and download it again.") from error
        for entry in Path(staging).iterdir():
            target = folder / entry.name
            if target.is_dir():
                shutil.rmtree(target)
            entry.replace(target)


class _Careful(io.RawIOBase):
    """The content of a tar file that is read piece by piece; a header that asks for much at once is refused."""

    def __init__(self, content: io.BufferedIOBase) -> None:
        self._content = content

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LONGEST_HEADER:
            raise tarfile.ReadError(f"a header asks for {size} bytes")
        return self._content.read(size)

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        return self._content.seek(place, whence)

    def tell(self) -> int:
        return self._content.tell()


def _extract_tar(archive: Path, folder: str) -> None:
    limit = unpacked_limit(archive.stat().st_size)
    opened = gzip.open if archive.suffix in (".gz", ".tgz") else open
    with opened(archive, "rb") as content, tarfile.open(fileobj=cast(IO[bytes], _Careful(content)), mode="r:") as tar:
        for member in tar:
            _check(member.name, archive, plain=member.isfile() or member.isdir())
            limit -= max(member.size, 0) + tarfile.BLOCKSIZE
            _check_limit(limit, archive)
        # Not while they are listed: a step back to a header would unpack a compressed file from its start, every time.
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:
            tar.extractall(folder)


def _extract_zip(archive: Path, folder: str) -> None:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            # Files packed elsewhere than on Unix have no mode, so no kind either.
            kind = stat.S_IFMT(member.external_attr >> 16)
            _check(member.filename, archive, plain=kind in (0, stat.S_IFREG, stat.S_IFDIR))
        _check_limit(
            unpacked_limit(archive.stat().st_size) - sum(member.file_size for member in file.infolist()), archive
        )
        file.extractall(folder)


def _check_limit(left: int, archive: Path) -> None:
    if left < 0:
        raise DataError(f"{archive} would unpack to far more than its size; do not use this archive.")


def _check(name: str, archive: Path, *, plain: bool) -> None:
    path = PureWindowsPath(name)  # knows / and \ and drive letters
    if path.drive or path.root or ".." in path.parts:
        raise DataError(f"{archive} has the member {name!r}, which leaves its folder; do not use this archive.")
    if not plain:
        raise DataError(f"{archive} has the member {name!r}, a link or device; do not use this archive.")
