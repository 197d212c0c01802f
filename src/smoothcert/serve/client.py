"""A client of a service, in a few lines: ``smoothcert.Client(url).certify(x)``."""

from __future__ import annotations

import asyncio
import io
import os
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smoothcert.types import SmoothcertError, UsageError

try:
    import httpx
except ImportError as _error:
    raise UsageError('the client needs httpx; pip install "smoothcert[serve]".') from _error

_LONGEST_WAIT = 30.0  # seconds that a server may ask to wait for


class ServiceError(SmoothcertError):
    """A refusal of a server.

    Attributes:
        status: The HTTP status; 0 if there was no answer.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Client:
    """Calls a service; each method also has an asynchronous form, as ``acertify``.

    A request is repeated only if the server has no room (429), after the time that it asks for, or if the connection is
    lost. Every answer to a repeated request has fresh noise: of k answers to one input, up to kα may be false.

    Args:
        url: The address of the server, such as ``http://127.0.0.1:8000``.
        key: The API key, if the server needs one; ``$SMOOTHCERT_API_KEY`` by default.
        retries: How often to repeat a request.
        timeout: Seconds to wait for an answer.

    Example:
        >>> client = Client("http://127.0.0.1:8000", retries=0)
        >>> try:
        ...     client.certify("digit.png", radius=0.25)["sentence"]
        ... except SmoothcertError as error:
        ...     print(type(error).__name__)
        UsageError
    """

    def __init__(self, url: str, *, key: str | None = None, retries: int = 5, timeout: float = 60.0) -> None:
        key = key or os.environ.get("SMOOTHCERT_API_KEY")
        self._options: dict[str, Any] = {
            "base_url": url,
            "timeout": timeout,
            "headers": {"Authorization": f"Bearer {key}"} if key else {},
            "trust_env": False,
        }
        self._retries = retries
        self._sync: httpx.Client | None = None
        self._async: httpx.AsyncClient | None = None

    def certify(self, x: Any, **options: Any) -> Any:
        """Return the answer to an input as a dict, or those to a batch as a list.

        Args:
            x: An image file (a path or bytes), a picture of Pillow, or floating-point values (a tensor, array or nested
                lists): an input, or a batch of them.
            **options: ``radius`` (one or several), ``alpha``, ``deadline``, ``model``, ``seed``.

        Raises:
            UsageError: If x cannot be sent.
            ServiceError: If the server refuses the request or does not answer.
        """
        return self._post("/v1/certify", x, options)

    def predict(self, x: Any, **options: Any) -> Any:
        """Return the class without a radius; arguments and errors are those of :meth:`certify`."""
        return self._post("/v1/predict", x, options)

    async def acertify(self, x: Any, **options: Any) -> Any:
        """Do as :meth:`certify`."""
        return await self._apost("/v1/certify", x, options)

    async def apredict(self, x: Any, **options: Any) -> Any:
        """Do as :meth:`predict`."""
        return await self._apost("/v1/predict", x, options)

    def models(self) -> list[dict[str, Any]]:
        """Return what is served."""
        for attempt in range(self._retries + 1):
            try:
                found: list[dict[str, Any]] = _answered(self._client.get("/v1/model"))["models"]
                return found
            except httpx.TransportError as error:
                self._give_up(error, attempt)
                time.sleep(_pause(attempt))
        raise AssertionError

    def close(self) -> None:
        """Close the connections of the synchronous methods."""
        if self._sync is not None:
            self._sync.close()
            self._sync = None

    async def aclose(self) -> None:
        """Close the connections of the asynchronous methods."""
        if self._async is not None:
            await self._async.aclose()
            self._async = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def _client(self) -> httpx.Client:
        if self._sync is None:
            self._sync = httpx.Client(**self._options)
        return self._sync

    def _post(self, path: str, x: Any, options: Mapping[str, Any]) -> Any:
        sent = _request(x, options)
        for attempt in range(self._retries + 1):
            try:
                response = self._client.post(path, **sent)
            except httpx.TransportError as error:
                self._give_up(error, attempt)
                time.sleep(_pause(attempt))
                continue
            if response.status_code != 429 or attempt == self._retries:
                return _unpacked(response)
            time.sleep(_pause(attempt, response))
        raise AssertionError

    async def _apost(self, path: str, x: Any, options: Mapping[str, Any]) -> Any:
        sent = _request(x, options)
        if self._async is None:
            self._async = httpx.AsyncClient(**self._options)
        for attempt in range(self._retries + 1):
            try:
                response = await self._async.post(path, **sent)
            except httpx.TransportError as error:
                self._give_up(error, attempt)
                await asyncio.sleep(_pause(attempt))
                continue
            if response.status_code != 429 or attempt == self._retries:
                return _unpacked(response)
            await asyncio.sleep(_pause(attempt, response))
        raise AssertionError

    def _give_up(self, error: httpx.TransportError, attempt: int) -> None:
        """Raise an error that another attempt does not help against."""
        slow = isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout)
        if attempt < self._retries and not slow and not isinstance(error, httpx.UnsupportedProtocol):
            return
        url, kind = self._options["base_url"], type(error).__name__
        raise ServiceError(0, f"{url} does not answer ({str(error) or kind}).") from error


def _pause(attempt: int, response: httpx.Response | None = None) -> float:
    """Return the seconds to wait: what the server asks for, or twice as long each time, and a random part."""
    asked = response.headers.get("retry-after", "") if response is not None else ""
    seconds = float(asked) if asked.isdecimal() else 0.1 * 2**attempt
    return min(seconds, _LONGEST_WAIT) * random.uniform(1.0, 1.2)


def _request(x: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    query = {name: _text(value) for name, value in options.items() if value is not None}
    kind, content = _encoded(x)
    return {"params": query, "content": content, "headers": {"Content-Type": kind}}


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def _encoded(x: Any) -> tuple[str, bytes]:
    """Return the media type and the bytes of an input."""
    if isinstance(x, (str, Path)):
        try:
            x = Path(x).read_bytes()
        except OSError as error:
            raise UsageError(f"{x} cannot be read ({error.strerror or error}); give the path of an image.") from error
    if isinstance(x, (bytes, bytearray)):
        return ("application/x-npy" if x[:6] == b"\x93NUMPY" else "image/*"), bytes(x)
    stream = io.BytesIO()
    if hasattr(x, "save") and hasattr(x, "mode"):  # of Pillow
        x.save(stream, format="PNG")
        return "image/png", stream.getvalue()
    if hasattr(x, "detach"):
        x = x.detach().cpu().numpy()
    try:
        array = np.asarray(x)
        array = array.astype(np.float32) if isinstance(x, (list, tuple)) else array
    except (TypeError, ValueError) as error:
        raise UsageError(f"a {type(x).__name__} cannot be sent ({error}); give an array or an image file.") from error
    if array.dtype.kind != "f":
        raise UsageError(f"the input has dtype {array.dtype}; convert it to floating point, for 8-bit images x / 255.")
    np.save(stream, array, allow_pickle=False)
    return "application/x-npy", stream.getvalue()


def _answered(response: httpx.Response) -> Any:
    try:
        found = response.json()
    except ValueError:
        found = {}
    if response.status_code == 200:
        return found
    known = isinstance(found, dict) and isinstance(found.get("error"), str)
    raise ServiceError(response.status_code, found["error"] if known else f"the server answers {response.status_code}.")


def _unpacked(response: httpx.Response) -> Any:
    found = _answered(response)
    return found.get("answers", found)
