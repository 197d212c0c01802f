"""Every answer that is sent is in the run folder, once; a server that was killed continues it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from serve.services import Columns, grey, make_service, served
from smoothcert import Cohen, RunError, load_run
from smoothcert.serve.record import Recorder
from smoothcert.store.pending import PendingFile


def test_every_answer_is_a_row(call, tmp_path, run):
    folder = tmp_path / "run"
    service = make_service(recorder=Recorder(folder, inputs=True))
    client = call(service)
    answers = [client.post("/v1/certify", json={"input": grey(value)}).json() for value in (0.9, 0.1, 0.5)]
    answers += client.post("/v1/certify", json={"inputs": [grey(0.8), grey(0.2)]}).json()["answers"]
    assert sorted(each["record"] for each in answers) == [0, 1, 2, 3, 4]
    predicted = client.post("/v1/predict", json={"input": grey(0.9)}).json()
    client.post("/v1/certify", json={"input": [1]})
    rows = {row["index"]: row for row in load_run(folder).rows()}
    assert len(rows) == 5
    for each in answers:
        row = rows[each["record"]]
        assert row["predict"] == each["label"]
        assert row["radius"] == each["radius"]
        assert row["counts"] == each["votes"]
        assert str(row["seed"]) == each["seed"]
        assert row["model"] == each["model"]["identity"]
        kept = np.load(tmp_path / "run-inputs" / f"bright-certificate-{each['record']}.npy")
        assert kept.shape == (1, 4, 4)
    (row,) = load_run(tmp_path / "run-predictions").rows()
    assert (row["predict"], row["radius"], row["counts"]) == (predicted["label"], 0.0, predicted["votes"])
    service.close()
    for command in (["table", folder], ["report", folder, "--no-images", "-o", tmp_path / "report.html"]):
        code, out, error = run(*command)
        assert code == 0, error
        assert command[0] == "report" or "each answer of the server counts as correct" in out


def test_a_restart_continues_the_run(call, tmp_path):
    first = make_service(recorder=Recorder(tmp_path / "run"))
    assert call(first).post("/v1/certify", json={"input": grey(0.9)}).json()["record"] == 0
    first.close()
    second = make_service(recorder=Recorder(tmp_path / "run"))
    assert call(second).post("/v1/certify", json={"input": grey(0.9)}).json()["record"] == 1
    assert [row["index"] for row in load_run(tmp_path / "run").rows()] == [0, 1]


def test_the_record_of_another_model_is_not_continued(call, tmp_path):
    first = make_service(recorder=Recorder(tmp_path / "run"))
    call(first).post("/v1/certify", json={"input": grey(0.9)})
    first.close()
    other = make_service(served(Columns(), name="bright"))
    with pytest.raises(RunError, match="another configuration"):
        Recorder(tmp_path / "run").open(other.served)
    other.close()


def test_two_servers_cannot_write_one_record(call, tmp_path):
    first, second = make_service(recorder=Recorder(tmp_path / "run")), make_service()
    with pytest.raises(RunError, match="another process"):
        Recorder(tmp_path / "run").open(second.served)
    for each in (first, second):
        each.close()


def test_an_answer_that_cannot_be_recorded_is_not_sent(call, tmp_path, monkeypatch):
    client = call(make_service(recorder=Recorder(tmp_path / "run")))
    assert client.post("/v1/certify", json={"input": grey(0.9)}).status_code == 200
    with monkeypatch.context() as full:

        def write(*_):
            raise OSError(28, "No space left on device")

        full.setattr(PendingFile, "append", write)
        response = client.post("/v1/certify", json={"input": grey(0.9)})
        assert response.status_code == 503
        assert "recorded" in response.json()["error"]
        assert "retry-after" in response.headers
        headers = {"accept": "text/event-stream"}
        assert "event: answer" not in client.post("/v1/certify", json={"input": grey(0.9)}, headers=headers).text
        answers = client.post("/v1/certify", json={"inputs": [grey(0.9)] * 2})
        assert answers.status_code == 503
    assert client.post("/v1/certify", json={"input": grey(0.9)}).status_code == 200
    assert len(load_run(tmp_path / "run").rows()) == 2


def test_each_of_several_models_has_a_record(call, tmp_path):
    service = make_service(served(), served(Columns(), name="columns"), recorder=Recorder(tmp_path / "runs"))
    client = call(service)
    for name in ("bright", "columns"):
        client.post("/v1/certify", json={"input": grey(0.9), "model": name})
        assert len(load_run(tmp_path / "runs" / name).rows()) == 1


SERVER = """
import sys
sys.path.append(sys.argv[1])
from serve.services import make_service, served
from smoothcert import Cohen
from smoothcert.serve.record import Recorder
from smoothcert.serve.run import run_service
service = make_service(served(procedure=Cohen(50, n0=10)), recorder=Recorder(sys.argv[2]))
run_service(service, port=0, announce=lambda text: print(text, flush=True))
"""


def start(tests, folder):
    import re

    command = [sys.executable, "-c", SERVER, str(tests), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    url = re.search(r"http://[0-9.:]+", process.stdout.readline())[0]
    import httpx

    until = time.monotonic() + 60
    while httpx.get(f"{url}/readyz").status_code != 200:
        assert time.monotonic() < until
        time.sleep(0.02)
    return process, url


def test_a_killed_server_has_every_row_of_an_answer_that_was_sent(tmp_path, request):
    import httpx

    tests, folder, sent, lock = request.path.parents[1], tmp_path / "run", {}, threading.Lock()
    for kill in range(3):
        process, url = start(tests, folder)

        def load(url=url):
            while True:
                try:
                    found = httpx.post(f"{url}/v1/certify", json={"input": grey(0.9)}, timeout=10).json()
                except (httpx.TransportError, json.JSONDecodeError):
                    return
                with lock:
                    assert found["record"] not in sent
                    sent[found["record"]] = found

        threads = [threading.Thread(target=load) for _ in range(4)]
        for each in threads:
            each.start()
        before, until = len(sent), time.monotonic() + 30
        while len(sent) < before + 10 * (kill + 1) and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for each in threads:
            each.join()
    rows = load_run(folder).rows()
    assert len({row["index"] for row in rows}) == len(rows)
    by_number = {row["index"]: row for row in rows}
    assert len(sent) >= 30
    for number, each in sent.items():
        assert str(by_number[number]["seed"]) == each["seed"]
        assert by_number[number]["counts"] == each["votes"]
    assert len({row["seed"] for row in rows}) == len(rows)


def test_a_server_that_is_told_to_end_ends_cleanly(tmp_path, request):
    import httpx

    process, url = start(request.path.parents[1], tmp_path / "run")
    found = httpx.post(f"{url}/v1/certify", json={"input": grey(0.9)}).json()
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(20) == 0 or process.returncode == -signal.SIGTERM
    (row,) = load_run(tmp_path / "run").rows()
    assert row["index"] == found["record"]
    assert (tmp_path / "run" / "part-000000.parquet").exists()
    assert Cohen(50, n0=10).name == found["procedure"]["name"]
