"""Run a service as a process: start, warm up, and drain on SIGTERM."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from smoothcert.serve.app import create_app
from smoothcert.serve.keys import Keys
from smoothcert.serve.service import Service
from smoothcert.types import UsageError

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_MOST_CONNECTIONS = 1024
_DRAIN_SECONDS = 30


class _Server(uvicorn.Server):
    """A server that refuses new requests as soon as it is told to end."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._service, self._started = service, started

    async def startup(self, *arguments: Any, **options: Any) -> None:
        await super().startup(*arguments, **options)
        if not self.should_exit:
            self._started()

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._service.draining = True
        super().handle_exit(sig, frame)


def _protocol(seconds: float) -> type[Any]:
    """Return the HTTP protocol, the fastest there is, that closes connections on which no request arrives in time."""
    base: Any = AutoHTTPProtocol

    class Impatient(base):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._first = self.loop.call_later(seconds, self._give_up)

        def connection_lost(self, exc: Exception | None) -> None:
            self._first.cancel()
            super().connection_lost(exc)

        def _give_up(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.close()

    return Impatient


def run_service(
    service: Service,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    keys: Keys | None = None,
    start: Callable[[], None] | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or Ctrl-C, then answer what was accepted.

    Args:
        service: The service.
        host, port: The address; port 0 is any free one.
        keys: The API keys.
        start: As in :func:`create_app`, but an error ends the server and is raised.
        announce: Called with sentences for the operator.

    Raises:
        UsageError: If the address cannot be used.
    """
    failures: list[BaseException] = []

    def starting() -> None:
        try:
            (start or service.warm_up)()
        except BaseException as error:
            failures.append(error)
            server.should_exit = True
            raise

    app: FastAPI = create_app(service, keys, start=starting)
    _log_to_stderr()
    listening = listen(host, port)
    with listening:
        port = listening.getsockname()[1]
        if host not in LOOPBACK:
            announce(exposed(host, bool(keys)))
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            http=_protocol(service.settings.body_seconds),
            ws="none",
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_DRAIN_SECONDS,
            proxy_headers=False,
        )
        shown = f"[{host}]" if ":" in host else host
        names = ", ".join(service.served)
        server = _Server(
            config, service, lambda: announce(f"Serving {names} at http://{shown}:{port} (page at /, API at /docs).")
        )
        server.run(sockets=[listening])
    if failures:
        raise failures[0]


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{host}:{port} cannot be used ({reason}); choose another --host or --port.") from error
    found.setblocking(False)
    return found


def exposed(host: str, keys: bool) -> str:
    """Return the warning about an address that other machines can reach."""
    if keys:
        return (
            f"Warning: the server listens on {host}, so other machines can reach it, without encryption; put a proxy "
            "with TLS in front of it, or API keys and inputs can be read on the way."
        )
    return (
        f"Warning: the server listens on {host} WITHOUT API KEYS: everybody who reaches this machine can use it; give "
        "--keys FILE, or --host 127.0.0.1."
    )


def _log_to_stderr() -> None:
    for name, level in (("smoothcert.serve", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        if not logger.handlers:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            logger.addHandler(handler)
            logger.setLevel(level)
            logger.propagate = False
