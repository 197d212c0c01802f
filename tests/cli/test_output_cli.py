"""``-o -`` is standard output for every command that writes one file, and commands end with their own exit code."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from smoothcert import models
from smoothcert.models import CheckpointInfo, save_checkpoint
from smoothcert.store.parts import parts_of

FREE = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}  # which limits Arrow's threads too


def start(*command, **options) -> subprocess.CompletedProcess[bytes]:
    """Run a command in a process, with as many threads as libraries choose."""
    whole = [sys.executable, "-m", "smoothcert", *map(str, command)]
    return subprocess.run(whole, env=FREE, check=False, timeout=200, **{"capture_output": True, **options})


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "sigma-0.25.safetensors"
    torch.manual_seed(0)
    save_checkpoint(path, models.build("digits-cnn"), CheckpointInfo.of("digits-cnn", sigma=0.25))
    return path


@pytest.fixture(scope="module")
def finished(checkpoint, tmp_path_factory):
    """A run, certified by a process of its own, whose exit code is a test too."""
    path = tmp_path_factory.mktemp("runs") / "digits"
    done = start("certify", checkpoint, "--data", "digits", "--n", 500, "--every", 100, "--run", path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize(
    ("command", "begin"),
    [
        (("table", "{run}", "--format", "csv"), "name,acr,"),
        (("compare", "{run}", "{run}"), "No difference in ACR"),
        (("export", "{run}"), "idx\tlabel\tpredict\tradius\tcorrect\ttime\t"),
        (("report", "{run}", "--no-images"), "<!DOCTYPE html>"),
    ],
)
def test_a_minus_is_standard_output(run, finished, tmp_path, monkeypatch, command, begin):
    monkeypatch.chdir(tmp_path)
    command = [part.format(run=finished) for part in command]
    assert run(*command, "-o", "file")[:2] == (0, "")
    code, out, err = run(*command, "-o", "-")
    assert code == 0, err
    assert out.startswith(begin)
    assert out == (tmp_path / "file").read_text()
    assert os.listdir() == ["file"]


def test_a_picture_on_standard_output_is_a_png(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = start("plot", finished, "-o", "-")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"\x89PNG")
    assert os.listdir() == []


def test_attacked_inputs_on_standard_output_stand_alone(run, checkpoint, finished):
    command = ["attack", checkpoint, "--data", "digits", "--radii", 0.25, "--max", 2, "--steps", 2, "--run", finished]
    code, out, err = run(*command, "-o", "-")
    assert code == 0
    assert [line.split(",")[0] for line in out.splitlines()] == ["index", "0", "100"]
    assert "| radius |" in err


@pytest.mark.parametrize("command", [["import", "log"], ["merge", "a", "b"], ["demo"], ["train", "recipe"]])
def test_a_folder_cannot_go_to_standard_output(run, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    assert run(*command, "-o", "-") == (
        2,
        "",
        "smoothcert: this command writes a folder, not standard output; name a folder after -o.\n",
    )
    assert os.listdir() == []


@pytest.mark.parametrize("command", ["table", "export", "report"])
def test_a_file_in_a_missing_folder_is_refused_before_anything_is_read(run, tmp_path, command):
    code, out, err = run(command, "nowhere", "-o", tmp_path / "missing" / "file.html")
    assert (code, out) == (2, "")
    assert err == f"smoothcert: the folder {tmp_path / 'missing'} does not exist; create it first.\n"


def test_a_device_is_written_into(run, finished, tmp_path):
    link = tmp_path / "null"
    link.symlink_to(os.devnull)
    assert run("table", finished, "-o", link)[0] == 0
    assert link.is_symlink()
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_a_reader_that_leaves_ends_a_command_quietly(finished):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as gone:
        done = start("table", finished, "-o", "-", capture_output=False, stdout=gone, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"")


def test_reading_a_run_starts_no_threads(finished):
    """Threads of Arrow can abort a process while the interpreter ends, after everything was printed."""
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("threads are counted in /proc")
    code = (
        "import os, sys; from smoothcert import load_run\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "assert load_run(sys.argv[1]).rows()\n"
        "print(len(os.listdir('/proc/self/task')) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, finished], env=FREE, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_processes_end_with_their_exit_code(checkpoint, finished, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in finished.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    os.truncate(parts_of(damaged)[0], 1000)
    again = ["certify", checkpoint, "--data", "digits", "--every", 100, "--run", finished]
    expected = {
        ("table", damaged): 1,
        ("info", finished): 0,
        ("export", finished, "-o", tmp_path / "log"): 0,
        (*again, "--n", 500): 0,
        (*again, "--n", 600): 1,
        ("table", finished, "--radii", "nonsense"): 2,
    }
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda command: start(*command), expected))
    assert {command: each.returncode for command, each in zip(expected, done, strict=True)} == expected
