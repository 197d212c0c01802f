"""Unpack an archive without letting it write outside its folder."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PureWindowsPath

from smoothcert.types import DataError


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ``.tar.gz`` archive into a folder, all of it or nothing.

    Top entries that exist are replaced.

    Args:
        archive: The archive.
        folder: The folder to unpack into; it must exist.

    Raises:
        DataError: If the archive is damaged, or a member is a link, a device or leaves the folder.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpack-") as staging:
        try:
            with tarfile.open(archive, "r:gz") as tar:
                for member in tar.getmembers():
                    _check(member, archive)
                if hasattr(tarfile, "data_filter"):
                    tar.extractall(staging, filter="data")
                else:
                    tar.extractall(staging)
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise DataError(f"{archive} cannot be unpacked ({error}): delete it and download it again.") from error
        for entry in Path(staging).iterdir():
            target = folder / entry.name
            if target.is_dir():
                shutil.rmtree(target)
            entry.replace(target)


def _check(member: tarfile.TarInfo, archive: Path) -> None:
    path = PureWindowsPath(member.name)  # knows / and \ and drive letters
    if path.drive or path.root or ".." in path.parts:
        raise DataError(f"{archive} has the member {member.name!r}, which leaves its folder; do not use this archive.")
    if not (member.isfile() or member.isdir()):
        raise DataError(f"{archive} has the member {member.name!r}, a link or device; do not use this archive.")
