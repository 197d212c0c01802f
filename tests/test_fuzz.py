"""A small share of ``make fuzz``, and that its harness notices what it is there to notice."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork, and limits on memory that are kept")

ROOT = Path(__file__).parents[1]
KEPT: list[object] = []


@pytest.fixture(scope="module")
def harness():
    """The harness of the benchmark, which is no package of ours."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from fuzzing import harness

        yield harness
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def test_no_file_does_harm():
    command = [sys.executable, "benchmarks/fuzz.py", "--cases", "40", "--limit", "30"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No case failed." in done.stdout


def raising(folder):
    raise KeyError("column")


def hanging(folder):
    while True:
        time.sleep(0.01)


def deaf(folder):
    while True:
        try:
            time.sleep(100)
        except BaseException:  # what no reader should do
            continue


def growing(folder):
    KEPT.append(bytearray(2 << 30))


def growing_with_a_sentence(folder):
    from smoothcert.types import DataError

    try:
        growing(folder)
    except MemoryError as error:
        raise DataError("it is damaged.") from error


def dying(folder):
    os.kill(os.getpid(), signal.SIGKILL)


def running(folder):
    os.system("true")


def evaluating(folder):
    eval("1 + 1")


def unpickling(folder):
    import pickle

    pickle.loads(b"cposixpath\njoin\n.")


def connecting(folder):
    with socket.socket() as line:
        line.settimeout(0.1)
        line.connect_ex(("127.0.0.1", 9))


def writing_elsewhere(folder):
    (folder.parent / "elsewhere").write_text("x")


def linking(folder):
    (folder / "link").symlink_to("/")


def refusing(folder):
    from smoothcert.types import DataError

    raise DataError("it is damaged.")


def reading(folder):
    assert (folder / "a").read_bytes() is not None
    (folder / "b").write_bytes(b"")


@pytest.mark.parametrize(
    ("read", "sort", "what"),
    [
        (raising, "crash", "KeyError"),
        (hanging, "hang", "over"),
        (deaf, "hang", "deaf"),
        (growing, "memory", "MemoryError"),
        (growing_with_a_sentence, "memory", "DataError"),
        (dying, "crash", "process ended with -9"),
        (running, "executed", "os.system"),
        (evaluating, "executed", "compile"),
        (unpickling, "executed", "pickle.find_class"),
        (connecting, "executed", "socket.connect"),
        (writing_elsewhere, "executed", "open for writing"),
        (linking, "executed", "os.symlink"),
        (refusing, "refused", "DataError"),
        (reading, "accepted", ""),
    ],
)
def test_the_harness_notices(harness, tmp_path, read, sort, what):
    seen = []

    def only_cases(folder):  # a worker reads the real files once before any case
        if (folder / "a").read_bytes() != b"real":
            read(folder)

    kind = harness.Kind("planted", lambda _: [], only_cases)
    hostile = [{"a": b"case"}] * 2
    stocks = {"planted": harness.Stock([{"a": b"real"}], hostile)}
    limit = 0.5 if sort == "hang" else 20.0
    tallies = harness.run_cases(
        [kind], stocks, {"planted": [range(2)]}, place=tmp_path, workers=1, limit=limit, done=seen.append
    )
    assert [(verdict.case, verdict.sort) for verdict in seen] == [(case, sort) for case in range(2)]
    assert all(what in verdict.what for verdict in seen)
    assert bool(tallies["planted"].failures) == (sort not in ("accepted", "refused"))
    assert not multiprocessing.active_children()


def test_a_case_depends_on_its_number_only(harness):
    from fuzzing.kinds import KINDS

    kind = next(kind for kind in KINDS if kind.name == "logs")
    stock = harness.Stock(kind.seeds(Path()), [])
    forwards = [harness.case_files(kind, stock, 0, case) for case in range(300)]
    backwards = [harness.case_files(kind, stock, 0, case) for case in reversed(range(300))]
    assert forwards == backwards[::-1]
    assert harness.case_files(kind, stock, 1, 7) != forwards[7]
