"""Download the named datasets, and resume after dropped connections."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pooch
import requests
import urllib3
from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from smoothcert.data.archive import SUFFIXES, unpack
from smoothcert.data.loading import load
from smoothcert.data.registry import DATASETS, IDENTITY, DatasetInfo, RemoteFile, resolve_root
from smoothcert.types import DataError, StrPath, unknown_name

ATTEMPTS = 4
PAUSE_SECONDS = 1.0
TIMEOUT_SECONDS = 30.0
CHUNK = 1 << 16


def fetch(
    name: str, *, root: StrPath | None = None, progress: bool = True, sources: Mapping[str, str] | None = None
) -> Path:
    """Download a named dataset, check it and unpack it, unless it is complete already.

    Args:
        name: The dataset, see ``DATASETS``.
        root: The folder of the datasets; :func:`default_root` by default.
        sources: Other addresses for files, by file name; the checksums stay the same.

    Returns:
        The folder of the dataset.

    Raises:
        DataError: If the network fails, or the content is not the expected one.
    """
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    info = DATASETS[name]
    place = resolve_root(root)
    folder = place / info.folders[0]
    if info.bundled or _complete(info, place):
        return folder
    if not info.files:
        load(name, root=place)  # which explains what to put where
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
        _download(url, Path(target), folder / f"{file.filename}.part", progress=progress)

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


def _download(url: str, target: Path, part: Path, *, progress: bool) -> None:
    """Download ``url`` to ``target``; incomplete content stays in ``part``, and the next call continues it."""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
        try:
            _receive(url, part, progress)
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            response = getattr(error, "response", None)
            if attempt == ATTEMPTS - 1 or (response is not None and response.status_code < 500):
                raise DataError(
                    f"{url} could not be downloaded ({_reason(error)}): check the network and run the same command "
                    "again, which continues the download."
                ) from error
        else:
            part.replace(target)
            return


def _receive(url: str, part: Path, progress: bool) -> None:
    """Request the missing bytes; a server that does not support ranges sends all of them."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
        content_range = response.headers.get("Content-Range", "")
        if response.status_code == 416 and content_range == f"bytes */{have}":  # the part is complete
            return
        partial = response.status_code == 206
        if response.status_code == 416 or (partial and not content_range.startswith(f"bytes {have}-")):
            part.unlink(missing_ok=True)
            raise requests.ConnectionError("the server does not have this range")
        response.raise_for_status()
        have = have if partial else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        bar = Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True), disable=not progress)
        with part.open("ab" if have else "wb") as file, bar:
            task = bar.add_task(url.rsplit("/", 1)[-1], total=total, completed=have)
            for chunk in response.raw.stream(CHUNK, decode_content=False):
                file.write(chunk)
                bar.advance(task, len(chunk))
    if total is not None and part.stat().st_size < total:
        raise requests.ConnectionError("the connection was closed too early")


def _reason(error: Exception) -> str:
    """Return the innermost cause; the text of requests repeats the address several times."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"status {response.status_code}"
    inner = error.args[0] if error.args else error
    return str(getattr(inner, "reason", inner)).rsplit(": ", 1)[-1] or type(error).__name__
