"""Download a file in a way that survives dropped connections."""

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


class ResumingDownloader:
    """A downloader for pooch that keeps what has arrived in a ``.part`` file and goes on from there.

    A server that does not answer the range asked for is read from the start.

    Args:
        part: The file to keep incomplete content in.
        progress: Whether to show a progress bar.
    """

    def __init__(self, part: Path, *, progress: bool) -> None:
        self.part = part
        self.progress = progress

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        """Download ``url`` to ``output_file``.

        Raises:
            DataError: If the server refuses, or the connection fails too often.
        """
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE_SECONDS * 2 ** (attempt - 1))
            try:
                self._receive(url)
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                response = getattr(error, "response", None)
                if attempt == ATTEMPTS - 1 or (response is not None and response.status_code < 500):
                    raise DataError(
                        f"{url} could not be downloaded ({_reason(error)}): check the network and run the same again, "
                        "it goes on where it stopped."
                    ) from error
            else:
                self.part.replace(output_file)
                return

    def _receive(self, url: str) -> None:
        have = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
            answered = response.headers.get("Content-Range", "")
            if response.status_code == 416 and answered == f"bytes */{have}":  # all of it is here already
                return
            partial = response.status_code == 206
            if response.status_code == 416 or (partial and not answered.startswith(f"bytes {have}-")):
                self.part.unlink(missing_ok=True)
                raise requests.ConnectionError("the server has no such range")
            response.raise_for_status()
            have = have if partial else 0
            length = response.headers.get("Content-Length")
            total = have + int(length) if length else None
            with self.part.open("ab" if have else "wb") as file, self._bar() as bar:
                task = bar.add_task(url.rsplit("/", 1)[-1], total=total, completed=have)
                for chunk in response.raw.stream(CHUNK, decode_content=False):
                    file.write(chunk)
                    bar.advance(task, len(chunk))
        if total is not None and self.part.stat().st_size < total:
            raise requests.ConnectionError("the connection was closed too early")

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self.progress,
        )


def _reason(error: Exception) -> str:
    """The innermost cause in a few words; the text of requests repeats the address several times."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"status {response.status_code}"
    inner = error.args[0] if error.args else error
    return str(getattr(inner, "reason", inner)).rsplit(": ", 1)[-1] or type(error).__name__
