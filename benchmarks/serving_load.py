"""What the benchmarks of the service share: a server in its own process, and callers that cost little themselves."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HOST = "127.0.0.1"


@contextmanager
def server(*arguments: str, log: Any = subprocess.DEVNULL) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Start ``smoothcert serve`` with some arguments; yield its port once it is ready, and the process."""
    process = start([sys.executable, "-m", "smoothcert", "serve", *arguments, "--port", "0"], log)
    try:
        yield port_of(process), process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()


def start(command: Sequence[str], log: Any = subprocess.DEVNULL) -> subprocess.Popen[str]:
    reading, writing = os.pipe()
    process = subprocess.Popen(command, stdout=log, stderr=writing, text=True)
    os.close(writing)
    process.first_lines = os.fdopen(reading)  # type: ignore[attr-defined]
    return process


def port_of(process: subprocess.Popen[str]) -> int:
    """Wait until a server is ready; its later lines are thrown away."""
    import threading

    lines = process.first_lines  # type: ignore[attr-defined]
    seen = []
    for line in lines:
        seen.append(line)
        if found := re.search(r"http://[^:]+:([0-9]+)", line):
            port = int(found[1])
            break
    else:
        raise RuntimeError(f"the server ended: {''.join(seen)}")
    threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()
    until = time.monotonic() + 120
    while asyncio.run(one(port, b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))[0] != 200:
        if time.monotonic() > until or process.poll() is not None:
            raise RuntimeError(f"the server is not ready: {''.join(seen)}")
        time.sleep(0.02)
    return port


def request(body: bytes, kind: str, query: str = "", path: str = "/v1/certify") -> bytes:
    head = f"POST {path}{query} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def one(port: int, sent: bytes) -> tuple[int, bytes]:
    """Send a request on its own connection; return the status and the body, or status 0 if the connection is lost."""
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return 0, b""
    try:
        return await exchange(reader, writer, sent)
    except (OSError, asyncio.IncompleteReadError, ValueError, IndexError):
        return 0, b""
    finally:
        writer.close()


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes) -> tuple[int, bytes]:
    writer.write(sent)
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    length = re.search(rb"content-length: ([0-9]+)", head, re.IGNORECASE)
    return status, await reader.readexactly(int(length[1])) if length else await reader.read()


@dataclass
class Load:
    """What callers saw: seconds and samples of the answers, and how many requests failed by status."""

    seconds: list[float] = field(default_factory=list)
    samples: int = 0
    failed: dict[int, int] = field(default_factory=dict)
    took: float = 0.0

    def note(self, status: int, body: bytes, seconds: float) -> None:
        if status == 200:
            self.seconds.append(seconds)
            self.samples += int(re.search(rb'"samples":([0-9]+)', body)[1])  # type: ignore[index]
        else:
            self.failed[status] = self.failed.get(status, 0) + 1

    def row(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "requests/s": round(len(self.seconds) / self.took, 1),
            "samples/s": round(self.samples / self.took),
            "samples per request": round(self.samples / max(len(self.seconds), 1)),
        }
        for q in (50, 99):
            found[f"p{q} ms"] = round(1e3 * float(np.percentile(self.seconds or [np.nan], q)), 1)
        return {**found, "failed": dict(self.failed)}


async def closed_loop(port: int, clients: int, bodies: Sequence[bytes], seconds: float) -> Load:
    """Let clients send one request after the other, each on its own connection."""
    load, began, place = Load(), time.monotonic(), 0

    async def client() -> None:
        nonlocal place
        reader, writer = await asyncio.open_connection(HOST, port)
        while time.monotonic() - began < seconds:
            sent = bodies[place % len(bodies)]
            place += 1
            begin = time.monotonic()
            status, body = await exchange(reader, writer, sent)
            load.note(status, body, time.monotonic() - begin)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    load.took = time.monotonic() - began
    return load


async def open_loop(port: int, rate: float, bodies: Sequence[bytes], seconds: float, seed: int = 0) -> Load:
    """Send requests at random times (a Poisson process), however many are open; latency counts from these times."""
    load, rng, tasks = Load(), np.random.default_rng(seed), []
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    began = due = time.monotonic()

    async def ask(sent: bytes, due: float) -> None:
        connection = free.pop() if free else await asyncio.open_connection(HOST, port)
        if connection[0].at_eof():  # the server closes idle connections
            connection = await asyncio.open_connection(HOST, port)
        status, body = await exchange(*connection, sent)
        load.note(status, body, time.monotonic() - due)
        free.append(connection)

    place = 0
    while (due := due + rng.exponential(1 / rate)) - began < seconds:
        await asyncio.sleep(max(due - time.monotonic(), 0))
        tasks.append(asyncio.ensure_future(ask(bodies[place % len(bodies)], due)))
        place += 1
    await asyncio.gather(*tasks)
    load.took = time.monotonic() - began
    return load


def show(rows: dict[str, dict[str, Any]]) -> None:
    """Print rows as a Markdown table."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    print("| | " + " | ".join(names) + " |\n|---" + "|---" * len(names) + "|")
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(str(row.get(each, "")) for each in names) + " |", flush=True)


def save(file: str, found: Any) -> None:
    with open(file, "w", encoding="utf-8") as stream:
        json.dump(found, stream, indent=2)


Action = Callable[[int], Any]
