"""A server in its own process: its address, slow and lost callers, and how it starts and ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import httpx
import pytest

from serve.services import grey

SERVER = """
import sys
sys.path.append(sys.argv[1])
from serve.services import make_service, served
from smoothcert import Anytime
from smoothcert.serve.run import run_service
procedure = Anytime(n_max=10_000_000, deadline=9.0)
service = make_service(served(procedure=procedure), body_seconds=0.5)
run_service(service, host=sys.argv[2], port=0, announce=lambda text: print(text, flush=True))
"""


def started(tests, host="127.0.0.1"):
    command = [sys.executable, "-c", SERVER, str(tests), host]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = []
    while not lines or "Serving" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], process.stderr.read()
    port = int(re.search(r":([0-9]+)", lines[-1])[1])
    until = time.monotonic() + 60
    while httpx.get(f"http://127.0.0.1:{port}/readyz").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.02)
    return process, port, lines


@pytest.fixture(scope="module")
def running(request):
    process, port, _ = started(request.path.parents[1])
    yield process, port
    process.kill()
    process.communicate()


def metric(port: int, name: str) -> float:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    return float(re.search(rf"^smoothcert_{name}{{[^}}]*}} (.*)$", text, flags=re.MULTILINE)[1])


def until(condition) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def hang_up(port: int, headers: dict) -> None:
    """Start a request, and close the connection while it is under work."""
    with (
        httpx.Client(timeout=0.3) as client,
        client.stream(
            "POST", f"http://127.0.0.1:{port}/v1/certify", json={"input": grey(0.5)}, headers=headers
        ) as response,
    ):
        next(response.iter_text())


@pytest.mark.parametrize("headers", [{}, {"accept": "text/event-stream"}])
def test_a_caller_that_hangs_up_frees_its_place(running, headers):
    _, port = running
    before = metric(port, "cancelled_total")
    with suppress(httpx.ReadTimeout):
        hang_up(port, headers)
    until(lambda: metric(port, "cancelled_total") > before)
    until(lambda: metric(port, "running") == metric(port, "pending") == 0)


def exchange(port: int, *parts: bytes, pause: float = 0.0) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause)
        return connection.recv(100_000)


def test_slow_senders_are_sent_away(running):
    _, port = running
    head = b"POST /v1/certify HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\nContent-Length: 1000\r\n\r\n"
    answer = exchange(port, head, b"abc")
    assert answer.startswith(b"HTTP/1.1 408")
    begin = time.monotonic()
    assert exchange(port, b"POST /v1/cert") == b""
    assert time.monotonic() - begin < 10


def test_what_is_no_http_is_refused(running):
    _, port = running
    assert exchange(port, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200


def test_it_listens_on_this_machine_only(running):
    process, port = running
    listening = (
        subprocess.run(["ss", "-ltnp"], capture_output=True, text=True) if os.path.exists("/usr/bin/ss") else None
    )
    if listening is None:
        pytest.skip("ss is not here")
    lines = [line for line in listening.stdout.splitlines() if f"pid={process.pid}," in line]
    assert lines
    assert all(f"127.0.0.1:{port}" in line for line in lines)


def test_a_warning_tells_that_others_can_reach_it(request):
    process, _, lines = started(request.path.parents[1], "0.0.0.0")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert any("WITHOUT API KEYS" in line for line in lines)


def test_the_command_refuses_what_it_cannot_serve(run, tmp_path):
    for arguments, words in (
        (["missing.safetensors"], "missing.safetensors"),
        (["torch.nn:Flatten", "--sigma", "0.5"], "give --shape"),
        (["torch.nn:Flatten", "--sigma", "0.5", "--shape", "abc"], "--shape must be"),
        (["torch.nn:Flatten", "--sigma", "0.5", "--shape", "4", "--max-alpha", "2"], "max_alpha"),
        (["torch.nn:Flatten", "--sigma", "0.5", "--shape", "4", "--record-inputs"], "give --record"),
        (["torch.nn:Flatten", "--sigma", "0.5", "--shape", "4", "--also", "x"], "NAME=MODEL"),
        (["torch.nn:Flatten", "--sigma", "0.5", "--shape", "4", "--simultaneous"], "--simultaneous"),
        (["torch.nn:Flatten", "--sigma", "0.5", "--shape", "4", "--keys", tmp_path / "none"], "cannot be read"),
        (["torch.nn:Flatten", "--sigma", "0.5", "--shape", "4", "--sigma-steps", "5", "--memory", "m"], "memory"),
        (["torch.nn:Flatten", "--sigma", "0.5", "--shape", "4", "--host", "256.0.0.1", "--radius", "0.1"], "256.0.0.1"),
        (["torch.nn:Flatten", "--sigma", "0.5", "--shape", "4", "--radius", "9", "--port", "0"], "cannot be certified"),
    ):
        code, _, error = run("serve", *arguments)
        assert code in (1, 2), (arguments, error)
        assert words in error, (arguments, error)
