"""Does a run over two nodes survive the loss of their network? Cut the link for a while, and compare the votes.

Two network namespaces are two machines, each with its addresses, ports and Ray node, joined by one link. ``smoothcert
certify --ray`` runs over both, and the link is cut in mid-run and restored. The run must end with the rows of one
process, none lost or doubled, or say in one sentence what is missing; then the same command must complete it. A node
that Ray has given up for lost ends itself, and is started again, as a supervisor would.

Needs Linux, root and iproute2. Exits with 1 if a run ends otherwise.

Usage: python benchmarks/network.py [--seconds 30] [--only NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smoothcert import load_run
from smoothcert.store.parts import parts_of, read_part
from smoothcert.training.recipes import load_recipe
from smoothcert.training.run import train_recipe

PREFIX = "smoothcert"
ADDRESSES = {"head": "10.77.0.1", "other": "10.77.0.2"}
PORT = 6390
CLIENT_PORT = 10_001
MEMORY = 100_000_000  # bytes of the object store of a node


def permitted() -> bool:
    """Whether this process may make network namespaces."""
    name = f"{PREFIX}-{os.getpid()}-try"
    try:
        made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
    if made:
        _ip("netns", "del", name)
    return made


@dataclass
class Network:
    """Two network namespaces and the link between them; all that runs in them ends with the block."""

    work: Path
    settings: dict[str, str] = field(default_factory=dict)  # of Ray, as environment variables
    started: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def __enter__(self) -> Network:
        _clear_leftovers()
        self.token = secrets.token_hex(32)
        try:
            for name in ADDRESSES:
                _ip("netns", "add", self.namespace(name))
            first, second = map(self.namespace, ADDRESSES)
            _ip("link", "add", "link0", "netns", first, "type", "veth", "peer", "name", "link0", "netns", second)
            for name, address in ADDRESSES.items():
                _ip("-n", self.namespace(name), "address", "add", f"{address}/24", "dev", "link0")
                _ip("-n", self.namespace(name), "link", "set", "lo", "up")
                _ip("-n", self.namespace(name), "link", "set", "link0", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in ADDRESSES:
            _remove(self.namespace(name))

    def namespace(self, name: str) -> str:
        return f"{PREFIX}-{os.getpid()}-{name}"

    def cut(self) -> None:
        _ip("-n", self.namespace("head"), "link", "set", "link0", "down")

    def restore(self) -> None:
        _ip("-n", self.namespace("head"), "link", "set", "link0", "up")

    def start(self, name: str, command: Sequence[object], **options: Any) -> subprocess.Popen[str]:
        """Start a command on one of the two machines."""
        given = ["ip", "netns", "exec", self.namespace(name), *map(str, command)]
        return subprocess.Popen(given, env=os.environ | self.environment(), text=True, **options)

    def environment(self) -> dict[str, str]:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        return token | {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"} | self.settings

    def start_node(self, name: str, cpus: int = 1) -> None:
        """Start the Ray node of a machine, and wait until it is ready."""
        folder, log = self.work / name, self.work / f"{name}.log"
        shutil.rmtree(folder, ignore_errors=True)  # of a node that ended
        command = [Path(sys.executable).with_name("ray"), "start", "--block", "--disable-usage-stats"]
        command += ["--node-ip-address", ADDRESSES[name], "--num-cpus", cpus, "--object-store-memory", MEMORY]
        command += ["--temp-dir", folder]
        if name == "head":
            command += ["--head", "--port", PORT, "--include-dashboard", "false"]
            command += ["--ray-client-server-port", CLIENT_PORT]
        else:
            command += ["--address", f"{ADDRESSES['head']}:{PORT}"]
        with log.open("w") as out:
            self.started[name] = self.start(name, command, stdout=out, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            if self.started[name].poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the Ray node of {name} did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)

    def node_ended(self, name: str) -> bool:
        return self.started[name].poll() is not None


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _remove(namespace: str) -> None:
    """End all processes of a namespace, and remove it."""
    for _ in range(50):
        listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
        if not listed.stdout.split():
            break
        for pid in map(int, listed.stdout.split()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _clear_leftovers() -> None:
    """Remove the namespaces of a process that was killed before it could."""
    for line in _ip("netns", "list").splitlines():
        name = line.split()[0]
        parts = name.split("-")
        if parts[0] == PREFIX and len(parts) == 3 and not Path("/proc", parts[1]).exists():
            _remove(name)
