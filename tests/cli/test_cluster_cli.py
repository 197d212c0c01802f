"""``smoothcert certify --ray``: a cluster on this machine, processes killed in the middle, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from smoothcert import load_run, models
from smoothcert.cli.app import with_address
from smoothcert.models import CheckpointInfo, save_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "sigma-0.25.safetensors"
    torch.manual_seed(0)
    save_checkpoint(path, models.build("digits-cnn"), CheckpointInfo.of("digits-cnn", sigma=0.25))
    return path


def command(checkpoint, run, *more) -> list[str]:
    given = ["certify", checkpoint, "--data", "digits", "--n", 2000, "--stop", 120, "--seed", 0, "--run", run]
    how = ["--runtime", "eager", "--batch-size", 200]
    return [sys.executable, "-m", "smoothcert", *map(str, [*given, *how, *more])]


def without_time(path) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in load_run(path).rows()]


@pytest.fixture(scope="module")
def unbroken(checkpoint, tmp_path_factory):
    """The rows of one process without Ray."""
    path = tmp_path_factory.mktemp("runs") / "local"
    done = subprocess.run(command(checkpoint, path, "--threads", 1), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return without_time(path)


def written(run: Path) -> int:
    try:
        return max((run / "pending.jsonl").read_bytes().count(b"\n") - 1, 0)
    except FileNotFoundError:
        return 0


def wait_until(condition, process, seconds=150):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def workers_of(session: int) -> list[int]:
    """Processes of a session that are Ray workers of ours at work."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (entry / "cmdline").read_bytes().startswith(b"ray::Worker.step") and os.getsid(
                int(entry.name)
            ) == session:
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("victim", ["worker", "driver"])
def test_killing_a_process_in_the_middle_changes_nothing(checkpoint, unbroken, tmp_path, victim):
    pytest.importorskip("ray")
    run = tmp_path / "run"
    given = command(checkpoint, run, "--ray", "--ray-workers", 2)
    process = subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: written(run) >= 10, process)
    if victim == "worker":
        wait_until(lambda: workers_of(process.pid), process)
        os.kill(workers_of(process.pid)[0], signal.SIGKILL)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
        assert "a worker was lost" in err
        assert "died" not in out
        assert out.startswith("| run |")
    else:
        process.kill()
        process.communicate()
        kept = written(run)
        assert 10 <= kept < 120
        again = subprocess.run(given, capture_output=True, text=True, timeout=200)
        assert again.returncode == 0, again.stderr
        assert len(load_run(run).info["sessions"]) == 2
    assert without_time(run) == unbroken


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ray-workers", "2"], "--ray-workers is for a Ray cluster; give --ray too."),
        (["--ray", "--ray-workers", "0"], "a cluster needs at least one worker, got 0."),
        (["--ray", "--ray-gpus", "1.5"], "GPUs of a worker must be a fraction of one"),
        (["--ray=nowhere"], "--ray accepts auto, HOST:PORT, ray://HOST:PORT or nothing; got 'nowhere'."),
        (["--ray", "--ray-spread"], "only the members of an ensemble can be spread over workers"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(run, checkpoint, tmp_path, options, message):
    code, out, err = run("certify", checkpoint, "--data", "digits", "--run", tmp_path / "run", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert not (tmp_path / "run").exists()


def test_an_address_where_no_cluster_is(run, checkpoint, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")

    def init(*_, **__):
        raise ConnectionError("Could not find any running Ray instance.\nmore")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    code, _, err = run(
        "certify", checkpoint, "--data", "digits", "--stop", 2, "--run", tmp_path / "run", "--ray", "auto"
    )
    assert code == 1
    assert "there is no Ray cluster at 'auto' (Could not find any running Ray instance.); start one with" in err
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        code, _, err = run("certify", checkpoint, "--data", "digits", "--run", tmp_path / "run", "--ray", address)
        assert code == 1
        assert f"there is no Ray cluster at '{address}'" in err
        assert "Connection refused" in err
    assert not (tmp_path / "run").exists()


def test_without_ray_it_says_what_to_install(run, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = run("certify", checkpoint, "--data", "digits", "--stop", 2, "--run", tmp_path / "run", "--ray")
    assert code == 2
    assert 'Ray is not installed; pip install "smoothcert[ray]".' in err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["certify", "--ray"], ["certify", "--ray=local"]),
        (["certify", "--ray", "--n", "5"], ["certify", "--ray=local", "--n", "5"]),
        (["certify", "--ray", "models/lenet"], ["certify", "--ray=local", "models/lenet"]),
        (["certify", "--ray", "auto"], ["certify", "--ray", "auto"]),
        (["certify", "--ray", "ray://head:10001"], ["certify", "--ray", "ray://head:10001"]),
        (["certify", "--ray=head:6379", "m"], ["certify", "--ray=head:6379", "m"]),
    ],
)
def test_the_address_may_be_left_out(given, meant):
    assert with_address(given) == meant
