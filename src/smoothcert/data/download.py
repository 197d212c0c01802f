"""Download a file, and resume after dropped connections."""

from __future__ import annotations

import time
from pathlib import Path

import requests
import urllib3
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from smoothcert.types import DataError

ATTEMPTS = 4
PAUSE_SECONDS = 1.0
TIMEOUT_SECONDS = 30.0
CHUNK = 1 << 16


def download(url: str, target: Path, part: Path, *, progress: bool) -> None:
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
