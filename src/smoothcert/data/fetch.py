"""Download the named datasets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pooch
from filelock import FileLock

from smoothcert.data.archive import SUFFIXES, unpack
from smoothcert.data.download import ResumingDownloader
from smoothcert.data.layout import StrPath, resolve_root
from smoothcert.data.loading import load, parts
from smoothcert.data.registry import DATASETS, RemoteFile
from smoothcert.types import DataError, unknown_name


def fetch(
    name: str, *, root: StrPath | None = None, progress: bool = True, sources: Mapping[str, str] | None = None
) -> Path:
    """Download a named dataset, check it and unpack it; nothing is done if it is there and reads well.

    Args:
        name: The dataset, see ``DATASETS``.
        root: Where the datasets are; :func:`default_root` if not given.
        progress: Whether to show a progress bar.
        sources: Other addresses to take files from, by file name; the checksums stay the same.

    Returns:
        The folder of the dataset.

    Raises:
        UsageError: If the name is unknown.
        DataError: If the network fails, or the content is not the expected one.
    """
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    info = DATASETS[name]
    place = resolve_root(root)
    folder = place / info.folder
    if info.bundled or _reads_well(name, place):
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".fetch.lock"):
            for file in () if _reads_well(name, place) else info.files:  # another process may have been first
                _fetch_file(file, (sources or {}).get(file.filename, file.url), folder, progress)
    except OSError as error:
        raise DataError(f"{folder} cannot be written ({error}): make room or name another folder.") from error
    for part, split in parts(info):
        load(part, split=split, root=place)
    return folder


def _fetch_file(file: RemoteFile, url: str, folder: Path, progress: bool) -> None:
    pooch.get_logger().setLevel(logging.WARNING)
    downloader = ResumingDownloader(folder / f"{file.filename}.part", progress=progress)
    try:
        path = pooch.retrieve(url, file.sha256, fname=file.filename, path=folder, downloader=downloader)
    except ValueError as error:  # pooch has removed the file
        raise DataError(
            f"{url} was downloaded but its SHA-256 is not {file.sha256}; it was deleted: "
            "run the same again, or take it from another source."
        ) from error
    if file.filename.endswith(SUFFIXES):
        unpack(Path(path), folder)
        Path(path).unlink()


def _reads_well(name: str, root: Path) -> bool:
    try:
        for part, split in parts(DATASETS[name]):
            load(part, split=split, root=root)
    except DataError:
        return False
    return True
