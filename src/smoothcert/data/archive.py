"""Unpack an archive without letting it write outside its folder."""

from __future__ import annotations

import lzma
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path, PureWindowsPath

from smoothcert.types import DataError

SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")
"""How the names of archives end."""

_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    zlib.error,
    EOFError,
    OSError,
    RuntimeError,  # an encrypted member of a .zip file, or one packed in a way nobody knows
)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ``.tar.gz``, ``.tgz``, ``.tar`` or ``.zip`` archive into a folder, all of it or nothing.

    Top entries that exist are replaced.

    Args:
        archive: The archive.
        folder: The folder to unpack into; it must exist.

    Raises:
        DataError: If the archive is damaged, or a member is a link, a device or leaves the folder.
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


def _extract_tar(archive: Path, folder: str) -> None:
    with tarfile.open(archive, "r:gz" if archive.suffix in (".gz", ".tgz") else "r:") as tar:
        for member in tar.getmembers():
            _check(member.name, archive, plain=member.isfile() or member.isdir())
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
        file.extractall(folder)


def _check(name: str, archive: Path, *, plain: bool) -> None:
    path = PureWindowsPath(name)  # knows / and \ and drive letters
    if path.drive or path.root or ".." in path.parts:
        raise DataError(f"{archive} has the member {name!r}, which leaves its folder; do not use this archive.")
    if not plain:
        raise DataError(f"{archive} has the member {name!r}, a link or device; do not use this archive.")
