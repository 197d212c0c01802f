"""``smoothcert serve --ray``: two replicas answer, one is killed, and the records of all are merged."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("ray.serve")
import httpx

from serve.services import Columns, grey, make_service, served
from smoothcert import load_run
from smoothcert.serve.cluster import labelled
from smoothcert.serve.record import Recorder
from smoothcert.serve.settings import Replicas
from smoothcert.store import merge_runs
from smoothcert.types import RunError, UsageError

NETS = """
import torch
from torch import nn

class Bright(nn.Module):
    def forward(self, x):
        score = x.flatten(1).mean(dim=1) - 0.5
        return torch.stack([-score, score], dim=1)
"""
INPUT = [[[230 / 255] * 4] * 4]
TRUE_RADIUS = (230 / 255 - 0.5) * 4


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def replicas_of(session: int) -> list[int]:
    """Processes of a session that are replicas."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cmdline").read_bytes().startswith(b"ray::ServeReplica"):
                found += [int(entry.name)] if os.getsid(int(entry.name)) == session else []
        except OSError:
            continue
    return found


class Caller:
    """Asks for certificates and keeps all answers."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.answers: list[dict] = []

    def certify(self, _: int = 0) -> int:
        found = httpx.post(f"{self.url}/v1/certify", json={"input": INPUT}, timeout=60)
        if found.status_code == 200:
            self.answers.append(found.json())
        return found.status_code

    def replicas(self) -> set[int]:
        return {answer["record"] >> 28 for answer in self.answers}

    def until(self, condition, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(self.certify, range(8)))


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_two_replicas_answer_and_one_is_killed(tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    port, record, log = free_port(), tmp_path / "record", tmp_path / "log"
    given = f"nets.py:Bright --shape 1x4x4 --sigma 0.25 --radius 0.1 --runtime eager --batch-size 100 --port {port}"
    command = [sys.executable, "-m", "smoothcert", "serve", *given.split(), "--ray", "--replicas", "2"]
    command += ["--record", str(record)]
    with log.open("w") as err:
        process = subprocess.Popen(command, cwd=tmp_path, stderr=err, start_new_session=True)
    try:
        deadline = time.monotonic() + 200
        while "Serving Bright" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        caller = Caller(port)
        caller.until(lambda: len(caller.replicas()) == 2)
        assert len({answer["seed"] for answer in caller.answers}) == len(caller.answers)
        assert all(answer["radius"] <= TRUE_RADIUS for answer in caller.answers)
        metrics = httpx.get(f"{caller.url}/metrics", timeout=60).text
        assert sum("smoothcert_answers_total{" in line for line in metrics.splitlines()) == 2
        os.kill(replicas_of(process.pid)[0], signal.SIGKILL)
        before = len(caller.answers)
        codes = []
        while len(caller.answers) < before + 20:  # a request that the lost replica had may fail, others do not
            codes.append(caller.certify())
            assert codes.count(200) + 2 >= len(codes), codes
        process.terminate()
        assert process.wait(120) == 0, log.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    records = [path for path in record.iterdir() if len(path.name) == len("replica-") + 8]
    merged = merge_runs(records, tmp_path / "merged")
    rows = {row["index"]: row for row in load_run(merged.path).rows()}
    assert {answer["record"] for answer in caller.answers} <= rows.keys()
    assert all(str(rows[answer["record"]]["seed"]) == answer["seed"] for answer in caller.answers)
    with pytest.raises(RunError, match="both hold answer"):
        merge_runs([merged.path, *(path for path in records if len(load_run(path)))], tmp_path / "twice")


def test_records_with_other_numbers_are_merged(call, tmp_path):
    for number in (0, 1 << 28):
        service = make_service(recorder=Recorder(tmp_path / f"replica-{number}", first=number))
        client = call(service)
        assert [client.post("/v1/certify", json={"input": grey(0.9)}).json()["record"] for _ in (0, 1)] == [
            number,
            number + 1,
        ]
        service.close()
    records = sorted(tmp_path.glob("replica-*[0-9]"))
    merged = merge_runs(records, tmp_path / "merged")
    assert [row["index"] for row in merged.rows()] == [0, 1, 1 << 28, (1 << 28) + 1]
    with pytest.raises(RunError, match="both hold answer 0; give each record once"):
        merge_runs([*records, merged.path], tmp_path / "twice")
    other = make_service(served(Columns(), name="columns"), recorder=Recorder(tmp_path / "other", first=7))
    call(other).post("/v1/certify", json={"input": grey(0.9)})
    other.close()
    with pytest.raises(RunError, match="are not records of one service"):
        merge_runs([records[0], tmp_path / "other"], tmp_path / "mixed")


def test_the_number_of_replicas():
    assert Replicas.parse("2").options(256) == {"num_replicas": 2}
    scaling = Replicas.parse("1:4").options(256)["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"], scaling["target_ongoing_requests"]) == (1, 4, 64)
    for text in ("0", "2:1", "0:3", "two", "1:", "-1"):
        with pytest.raises(UsageError, match="--replicas must be"):
            Replicas.parse(text)


def test_metrics_of_replicas_are_told_apart():
    text = 'c_total{model="m"} %d.0\n'
    joined = labelled({name: "# TYPE c counter\n" + text % count for name, count in (("a", 1), ("b", 2))}).decode()
    assert 'c_total{model="m",replica="a"} 1.0' in joined
    assert 'c_total{model="m",replica="b"} 2.0' in joined


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--replicas", "2"], "--replicas is for a Ray cluster; give --ray too."),
        (["--ray", "--port", "0"], "all replicas listen on the same port; give --port."),
        (["--ray", "ray://127.0.0.1:1"], "serving needs a node of the cluster"),
    ],
)
def test_what_cannot_be_is_refused(run, tmp_path, options, message):
    (tmp_path / "nets.py").write_text(NETS)
    given = ["--shape", "1x4x4", "--sigma", "0.25", "--radius", "0.1"]
    code, out, err = run("serve", f"{tmp_path / 'nets.py'}:Bright", *given, *options)
    assert (code, out) == (2, "")
    assert message in err
