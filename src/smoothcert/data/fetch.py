"""Download the named datasets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pooch
from filelock import FileLock

from smoothcert.data.archive import SUFFIXES, unpack
from smoothcert.data.download import download
from smoothcert.data.layout import StrPath, resolve_root
from smoothcert.data.loading import load
from smoothcert.data.registry import DATASETS, IDENTITY, DatasetInfo, RemoteFile
from smoothcert.types import DataError, unknown_name


def fetch(
    name: str, *, root: StrPath | None = None, progress: bool = True, sources: Mapping[str, str] | None = None
) -> Path:
    """Download a named dataset, check it and unpack it, unless it is complete already.

    Args:
        name: The dataset, see ``DATASETS``.
        root: The folder of the datasets; :func:`default_root` by default.
        progress: Whether to show a progress bar.
        sources: Other addresses for files, by file name; the checksums stay the same.

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
    if info.bundled or _complete(info, place):
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".fetch.lock"):
            for file in () if _complete(info, place) else info.files:  # another process may have been first
                _fetch_file(file, (sources or {}).get(file.filename, file.url), folder, progress)
    except OSError as error:
        raise DataError(f"{folder} cannot be written ({error}): free some space or name another folder.") from error
    _check(info, place)
    return folder


def _fetch_file(file: RemoteFile, url: str, folder: Path, progress: bool) -> None:
    def resuming(url: str, target: str, _: object) -> None:
        download(url, Path(target), folder / f"{file.filename}.part", progress=progress)

    pooch.get_logger().setLevel(logging.WARNING)
    try:
        path = Path(pooch.retrieve(url, file.sha256, fname=file.filename, path=folder, downloader=resuming))
    except ValueError as error:  # pooch has removed the file
        raise DataError(
            f"the SHA-256 of {url} is not {file.sha256}, so the download was deleted: run the same command again, or "
            "use another source."
        ) from error
    if file.filename.endswith(SUFFIXES):
        unpack(path, folder)
        path.unlink()


def _check(info: DatasetInfo, root: Path) -> None:
    """Load everything that a download must contain."""
    names = [info.name]
    if info.types:
        ends = [f"/{severity}" for severity in info.severities] or [""]
        kinds = info.types if info.severities else (IDENTITY, *info.types)
        names = [f"{info.name}/{kind}{end}" for kind in kinds for end in ends]
    for name in names:
        for split in info.splits:
            load(name, split=split, root=root)


def _complete(info: DatasetInfo, root: Path) -> bool:
    with suppress(DataError):
        _check(info, root)
        return True
    return False
