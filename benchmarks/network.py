"""Do runs and services over two nodes survive the loss of their network? Cut the link for a while, and look.

Two network namespaces are two machines, each with its address, ports and Ray node, joined by one link. The link is cut
in the middle and restored.

``smoothcert certify --ray`` must end with the rows of one process, none lost or doubled, or say in one sentence what is
missing; then the same command must complete the run. ``smoothcert serve --ray`` must answer on the side that its
command is on, and on both sides after the link is restored; no answer may be unrecorded, or claim more than the known
radius. A node that Ray has given up ends itself, and is started again, as a supervisor would.

Needs Linux, root and iproute2; everything that runs in the namespaces is ended with them. Exits with 1 if a run ends
otherwise.

Usage: python benchmarks/network.py [--seconds 30] [--only NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smoothcert import load_run
from smoothcert.evaluate.cluster import KEEPALIVE
from smoothcert.store import merge_runs
from smoothcert.store.parts import parts_of, read_part

PREFIX = "smoothcert"
ADDRESSES = {"head": "10.77.0.1", "other": "10.77.0.2"}
PORT = 6390
CLIENT_PORT = 10_001
MEMORY = 100_000_000  # bytes of the object store of a node
INPUTS, SAMPLES, BATCH = 120, 1_500, 500
CUT_AFTER = 20  # rows
PATIENCE = 600  # seconds for a command

NETS = """
import time
import torch
from torch import nn

class Slow(nn.Module):  # so that the run is not done before the link is cut
    seed = 0

    def __init__(self):
        super().__init__()
        torch.manual_seed(self.seed)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        time.sleep(0.1)
        return self.layers(x)

class Other(Slow):
    seed = 1

class Bright(nn.Module):  # for a mean m the radius is 4 |m - 1/2|
    def forward(self, x):
        score = x.flatten(1).mean(dim=1) - 0.5
        return torch.stack([-score, score], dim=1)
"""


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
        return token | KEEPALIVE | {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"} | self.settings

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


@dataclass
class Bench:
    """What all cases share."""

    work: Path
    seconds: float  # how long the link is cut
    settings: dict[str, str] = field(default_factory=dict)
    _whole: dict[tuple[str, ...], list[dict[str, Any]]] = field(default_factory=dict)

    def certify(self, run: Path, models: Sequence[str], *more: object) -> list[object]:
        what: list[object] = [sys.executable, "-m", "smoothcert", "certify"]
        what += [*(f"{self.work / 'nets.py'}:{model}" for model in models), "--data", "digits"]
        what += ["--stop", INPUTS, "--n", SAMPLES, "--sigma", 0.25, "--seed", 0, "--run", run]
        return [*what, "--runtime", "eager", "--batch-size", BATCH, *more]

    def whole(self, models: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of one process."""
        key = tuple(models)
        if key not in self._whole:
            run = self.work / "-".join(["whole", *models])
            command = [str(each) for each in self.certify(run, models, "--threads", 1)]
            subprocess.run(command, check=True, capture_output=True)
            self._whole[key] = rows(run)
        return self._whole[key]


def rows(run: Path) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if key not in ("seconds", "runtime")} for row in load_run(run).rows()
    ]


def written(run: Path) -> int:
    try:
        return max((run / "pending.jsonl").read_bytes().count(b"\n") - 1, 0)
    except FileNotFoundError:
        return 0


def doubled(run: Path) -> int:
    stored = [index for part in parts_of(run) for index in read_part(part)["index"].to_pylist()]
    return len(stored) - len(set(stored))


def sentences(log: Path) -> list[str]:
    """What a command has said, without its progress bar."""
    return re.findall(r"^smoothcert: (.+)$", log.read_text().replace("\r", "\n"), re.MULTILINE)


def certify_over(
    bench: Bench, place: Path, driver: str, cpus: dict[str, int], client: bool = False, spread: bool = False
) -> dict[str, Any]:
    """Cut the link in the middle of a run; ``driver`` is the machine of the command, ``cpus`` those of the nodes."""
    models, options = (("Slow", "Other"), ["--ray-spread"]) if spread else (("Slow",), [])
    run, log = place / "run", place / "log"
    head = ADDRESSES["head"]
    address = f"ray://{head}:{CLIENT_PORT}" if client else f"{head}:{PORT}"
    with Network(place, bench.settings) as network:
        for name, count in cpus.items():
            network.start_node(name, count)
        begin, cut, restored, tries, said = time.monotonic(), 0.0, 0.0, 0, list[str]()
        while True:
            tries += 1
            with log.open("w") as err:
                process = network.start(
                    driver,
                    bench.certify(run, models, "--ray", address, *options),
                    stdout=subprocess.DEVNULL,
                    stderr=err,
                )
            while process.poll() is None and time.monotonic() - begin < PATIENCE:
                time.sleep(0.2)
                now = time.monotonic()
                if not cut and written(run) >= CUT_AFTER:
                    network.cut()
                    cut = now
                if cut and not restored and now - cut > bench.seconds:
                    network.restore()
                    restored = now
                if restored and "other" in network.started and network.node_ended("other"):
                    network.start_node("other", cpus["other"])
            said += sentences(log) or [log.read_text()[-500:]] * (process.poll() not in (0, None))
            if process.poll() is None:
                return {"failed": f"the run does not end ({written(run)} rows)", "said": said}
            if not cut:
                return {"failed": "the run was over before the link was cut", "said": said}
            if process.returncode == 0 or tries == 3:
                break
            if not restored:
                time.sleep(max(0.0, cut + bench.seconds - time.monotonic()))
                network.restore()
                restored = time.monotonic()
            if "other" in network.started and network.node_ended("other"):
                network.start_node("other", cpus["other"])
    found: dict[str, Any] = {"tries": tries, "seconds after the cut": round(time.monotonic() - cut), "said": said}
    found |= {"lost": INPUTS - len(rows(run)), "doubled": doubled(run)}
    if process.returncode:
        found["failed"] = f"the command failed {tries} times"
    elif rows(run) != bench.whole(models):
        found["failed"] = "the rows differ from those of one process"
    return found


INPUT = [[[230 / 255] * 4] * 4]
TRUE_RADIUS = (230 / 255 - 0.5) * 4
SERVICE_PORT = 8000
ASK = """
import json, sys, httpx
try:
    found = httpx.post(sys.argv[1] + "/v1/certify", content=sys.argv[2], timeout=8,
                       headers={"content-type": "application/json"})
    print(json.dumps([found.status_code, found.json() if found.status_code == 200 else found.text[:200]]))
except httpx.HTTPError as error:
    print(json.dumps([0, type(error).__name__]))
"""


def ask(network: Network, name: str) -> tuple[int, Any]:
    """Ask the service on a machine, from this machine."""
    command = [sys.executable, "-c", ASK, f"http://{ADDRESSES[name]}:{SERVICE_PORT}", json.dumps({"input": INPUT})]
    out, _ = network.start(name, command, stdout=subprocess.PIPE).communicate()
    status, found = json.loads(out)
    return status, found


def serve_over(bench: Bench, place: Path) -> dict[str, Any]:
    """Cut the link under a service of two replicas, one on each machine, and ask it on both."""
    record, log = place / "record", place / "log"
    answers: list[dict[str, Any]] = []
    codes: dict[str, Counter[int]] = {when: Counter() for when in ("before", "cut, here", "cut, there", "after")}

    def answered(network: Network, name: str, when: str) -> bool:
        status, found = ask(network, name)
        codes[when][status] += 1
        answers.extend([found] if status == 200 else [])
        return status == 200

    with Network(place, bench.settings) as network:
        for name in ADDRESSES:
            network.start_node(name)
        given = "--shape 1x4x4 --sigma 0.25 --radius 0.1 --deadline 2 --runtime eager --batch-size 100 --replicas 2"
        command = [sys.executable, "-m", "smoothcert", "serve", bench.work / "nets.py:Bright", *given.split()]
        command += ["--host", "0.0.0.0", "--ray", f"{ADDRESSES['head']}:{PORT}", "--record", record]
        with log.open("w") as err:
            process = network.start("head", command, stdout=subprocess.DEVNULL, stderr=err)
        deadline = time.monotonic() + PATIENCE
        while "Serving" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                return {"failed": f"the service did not start: {log.read_text()[-1000:]}"}
            time.sleep(0.5)
        while len({answer["record"] >> 28 for answer in answers}) < 2 and time.monotonic() < deadline:
            for name in ADDRESSES:
                answered(network, name, "before")
        network.cut()
        cut = time.monotonic()
        while time.monotonic() < cut + bench.seconds:
            answered(network, "head", "cut, here")
        answered(network, "other", "cut, there")
        network.restore()
        restored, back = time.monotonic(), {}
        while len(back) < 2 and time.monotonic() < restored + PATIENCE:
            if network.node_ended("other"):
                network.start_node("other")
            for name in ADDRESSES:
                if answered(network, name, "after"):
                    back.setdefault(name, round(time.monotonic() - restored, 1))
        process.terminate()  # ip netns exec becomes the command
        with suppress(subprocess.TimeoutExpired):
            process.wait(120)
        code = process.poll()
    records = [each for each in record.iterdir() if re.fullmatch("replica-[0-9a-f]{8}", each.name)]
    merged = {row["index"] for row in load_run(merge_runs(records, place / "merged").path).rows()}
    found: dict[str, Any] = {"codes": {when: dict(count) for when, count in codes.items()}, "back after": back}
    found |= {"answers": len(answers), "said": log.read_text().splitlines()}
    found["unrecorded"] = sum(answer["record"] not in merged for answer in answers)
    found["overstated"] = sum(answer["radius"] > TRUE_RADIUS for answer in answers)
    found["doubled"] = len(answers) - len({answer["seed"] for answer in answers})
    if found["unrecorded"] or found["overstated"] or found["doubled"]:
        found["failed"] = "answers are unrecorded, overstated, or share their noise"
    elif not codes["cut, here"][200]:
        found["failed"] = "nobody answered while the link was cut"
    elif len(back) < 2:
        found["failed"] = "the service did not come back on both machines"
    elif code != 0:
        found["failed"] = f"the service ended with {code} on SIGTERM"
    return found


Case = Callable[[Bench, Path], dict[str, Any]]

CASES: dict[str, Case] = {
    "one of two workers": lambda bench, place: certify_over(bench, place, "head", {"head": 1, "other": 1}),
    "all workers": lambda bench, place: certify_over(bench, place, "head", {"head": 0, "other": 1}),
    "the driver's node": lambda bench, place: certify_over(bench, place, "other", {"head": 1, "other": 1}),
    "a driver outside": lambda bench, place: certify_over(bench, place, "other", {"head": 1}, client=True),
    "members of an ensemble": lambda bench, place: certify_over(
        bench, place, "head", {"head": 1, "other": 1}, spread=True
    ),
    "a service": serve_over,
}
"""What is behind the cut."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30, help="how long the link is cut")
    parser.add_argument("--only", choices=CASES, help="one case")
    chosen = parser.parse_args()
    if not permitted():
        print("Skipped: network namespaces need Linux, root and iproute2.")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces are removed
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        bench = Bench(Path(work), chosen.seconds)
        (bench.work / "nets.py").write_text(NETS)
        for number, name in enumerate([chosen.only] if chosen.only else CASES):
            place = bench.work / str(number)
            place.mkdir()
            found = CASES[name](bench, place)
            failed += "failed" in found
            print(json.dumps({"cut off": name, **found}, ensure_ascii=False), flush=True)
    print("Every run and service passed." if not failed else f"{failed} failed.")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
