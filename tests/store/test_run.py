"""Run folders: rows survive kills, torn lines and full disks, and other configurations are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pyarrow as pa
import pytest

from smoothcert import Certificate, Guarantee, Norm
from smoothcert.store import load_run, open_run, run, write_run
from smoothcert.store.rows import certificate_row
from smoothcert.types import Outcome, RunError

CONFIG = {"kind": "certification", "noise": {"name": "gaussian", "sigma": 0.5}, "seed": 0}


def row(index: int, radius: float = 0.1 + 0.2) -> dict:
    certificate = Certificate(
        label=1,
        radius=radius,
        norm=Norm.L2,
        guarantee=Guarantee.GLOBAL,
        alpha=0.001,
        alpha_split={"top class": 0.001},
        n=100,
        counts=(1, 99),
        p_lower=0.9,
        n0=10,
        selection=(0, 10),
        noise="Gaussian(sigma=0.5)",
        seed=0,
        index=index,
        outcome=Outcome.CERTIFIED,
        checkpoints={10: (0, 10)},
        decisions={0.25: Outcome.CERTIFIED, 0.5: Outcome.REFUTED},
    )
    return certificate_row(certificate, label=1, seconds=0.5)


def fill(path: Path, indices, config=CONFIG, seal=True) -> None:
    with open_run(path, config, {"note": "test"}) as writer:
        for index in indices:
            if index not in writer.done:
                writer.append(row(index))
        if seal:
            writer.seal()


def indices(path: Path) -> list[int]:
    return [r["index"] for r in load_run(path).rows()]


def test_rows_come_back_in_order_and_full_precision(tmp_path):
    fill(tmp_path / "run", [4, 2, 0])
    loaded = load_run(tmp_path / "run")
    assert indices(tmp_path / "run") == [0, 2, 4]
    first = loaded.rows()[0]
    assert first["radius"] == 0.1 + 0.2
    assert (first["counts"], first["checkpoints"]) == ([1, 99], {10: [0, 10]})
    assert first["decisions"] == {0.25: "certified", 0.5: "refuted"}
    assert first["alpha_split"] == {"top class": 0.001}
    assert (first["predict"], first["correct"], first["norm"]) == (1, True, "l2")
    assert loaded.config == CONFIG
    assert loaded.name == "run"


def test_pending_rows_are_read_before_they_are_sealed(tmp_path):
    fill(tmp_path / "run", range(3), seal=False)
    assert not list((tmp_path / "run").glob("*.parquet"))
    assert indices(tmp_path / "run") == [0, 1, 2]


def test_continues_and_keeps_every_session(tmp_path):
    fill(tmp_path / "run", range(3), seal=False)
    fill(tmp_path / "run", range(5))
    assert indices(tmp_path / "run") == [0, 1, 2, 3, 4]
    assert len(load_run(tmp_path / "run").info["sessions"]) == 2


def test_parts_fill_up(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "ROWS_PER_PART", 4)
    fill(tmp_path / "run", range(10))
    assert len(list((tmp_path / "run").glob("part-*.parquet"))) == 3
    assert indices(tmp_path / "run") == list(range(10))


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_a_line_cut_by_a_kill_is_dropped_and_written_again(tmp_path, cut):
    fill(tmp_path / "run", range(3), seal=False)
    pending = tmp_path / "run" / "pending.jsonl"
    pending.write_bytes(pending.read_bytes()[:-cut])
    assert indices(tmp_path / "run") == [0, 1]
    with pytest.warns(UserWarning, match="ends in the middle of a row"):
        fill(tmp_path / "run", range(4))
    assert indices(tmp_path / "run") == [0, 1, 2, 3]


def test_a_kill_between_part_and_pending_doubles_nothing(tmp_path):
    fill(tmp_path / "run", range(3), seal=False)
    pending = (tmp_path / "run" / "pending.jsonl").read_bytes()
    fill(tmp_path / "run", range(3))
    (tmp_path / "run" / "pending.jsonl").write_bytes(pending)
    assert indices(tmp_path / "run") == [0, 1, 2]
    fill(tmp_path / "run", range(5))
    assert indices(tmp_path / "run") == [0, 1, 2, 3, 4]


def test_a_damaged_line_is_named(tmp_path):
    fill(tmp_path / "run", range(3), seal=False)
    pending = tmp_path / "run" / "pending.jsonl"
    lines = pending.read_bytes().splitlines()
    pending.write_bytes(b"\n".join([lines[0], b"{]", lines[2]]) + b"\n")
    with pytest.raises(RunError, match=r"pending.jsonl is damaged in line 2"):
        load_run(tmp_path / "run").rows()


@pytest.mark.parametrize("name", ["part-x.parquet", "part-.parquet", "part-000000 (copy).parquet"])
def test_a_part_with_another_name_is_read_but_not_continued(tmp_path, name):
    fill(tmp_path / "run", range(3))
    (tmp_path / "run" / "part-000000.parquet").rename(tmp_path / "run" / name)
    assert indices(tmp_path / "run") == [0, 1, 2]
    message = r"is not named like the parts of a run, such as part-000000.parquet; rename it, or move it out of the"
    with pytest.raises(RunError, match=message) as error:
        fill(tmp_path / "run", range(5))
    assert name in str(error.value)
    (tmp_path / "run" / name).rename(tmp_path / "run" / "part-000000.parquet")
    fill(tmp_path / "run", range(5))
    assert indices(tmp_path / "run") == [0, 1, 2, 3, 4]


def test_a_damaged_part_is_named(tmp_path):
    fill(tmp_path / "run", range(3))
    part = tmp_path / "run" / "part-000000.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(RunError, match=r"part-000000.parquet is damaged .*; delete it"):
        load_run(tmp_path / "run").rows()
    part.unlink()
    fill(tmp_path / "run", range(3))
    assert indices(tmp_path / "run") == [0, 1, 2]


def test_another_configuration_is_refused_and_named(tmp_path):
    fill(tmp_path / "run", range(2))
    before = (tmp_path / "run" / "run.json").read_bytes()
    other = {**CONFIG, "noise": {"name": "gaussian", "sigma": 0.25}, "extra": 1}
    with pytest.raises(RunError, match=r"extra is not set there and 1 here; noise.sigma is 0.5 there and 0.25 here"):
        fill(tmp_path / "run", range(2), config=other)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_a_second_writer_is_refused(tmp_path):
    with open_run(tmp_path / "run", CONFIG, {}):
        script = (
            f"from smoothcert.store import open_run\nwith open_run({str(tmp_path / 'run')!r}, {CONFIG!r}, {{}}): pass"
        )
        second = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert second.returncode != 0
    assert "being written by another process" in second.stderr
    fill(tmp_path / "run", range(2))
    assert indices(tmp_path / "run") == [0, 1]


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(RunError, match="not a run folder"):
        load_run(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="exists and is not a run folder"):
        fill(tmp_path, range(1))
    assert [f.name for f in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(RunError, match="exists and is not a run folder"):
        fill(tmp_path / "notes.txt", range(1))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": "x", "config": {"kind": "a"}}'])
def test_a_damaged_run_file_is_named(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"run.json is damaged"):
        load_run(tmp_path)


def test_a_newer_format_is_refused(tmp_path):
    fill(tmp_path / "run", range(1))
    file = tmp_path / "run" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))
    with pytest.raises(RunError, match="newer smoothcert"):
        load_run(tmp_path / "run")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a file system that refuses everybody")
def test_a_folder_that_cannot_be_made(tmp_path):
    with pytest.raises(RunError, match="cannot write to /proc/run"):
        fill(Path("/proc/run"), range(1))


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path):
    (tmp_path / "run").mkdir(mode=0o500)
    with pytest.raises(RunError, match="cannot write to"):
        fill(tmp_path / "run", range(1))


FULL_DISK = """
    import resource, signal, sys
    sys.path.insert(0, {here!r})
    from test_run import CONFIG, row
    from smoothcert.store import load_run, open_run
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with open_run({path!r}, CONFIG, {{}}) as writer:
            for index in range(50):
                if index == {after}:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
                writer.append(row(index))
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
            writer.seal()
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(type(error).__name__, error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files through the kernel")
@pytest.mark.parametrize(("after", "least"), [(0, 2), (50, 50)], ids=["in a row", "in a part"])
def test_a_disk_that_fills_up_leaves_whole_rows(tmp_path, after, least):
    """The kernel refuses to let files grow, in the middle of a row or of a Parquet part."""
    path = str(tmp_path / "run")
    script = textwrap.dedent(FULL_DISK.format(here=str(Path(__file__).parent), path=path, after=after))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.startswith("RunError cannot write to"), done.stderr
    kept = indices(Path(path))
    assert kept == list(range(len(kept)))
    assert len(kept) >= least
    assert {f.suffix for f in Path(path).iterdir()} <= {".json", ".jsonl", ".lock", ""}
    fill(Path(path), range(50))
    assert indices(Path(path)) == list(range(50))


def test_imported_tables_become_runs(tmp_path):
    table = pa.table({"index": [1, 0], "predict": [3, -1], "radius": [0.5, 0.0]})
    write_run(tmp_path / "log", table, {"kind": "imported selection"}, {})
    assert load_run(tmp_path / "log").rows()[0] == {"index": 0, "predict": -1, "radius": 0.0}
    with pytest.raises(RunError, match="exists already"):
        write_run(tmp_path / "log", table, {"kind": "imported selection"}, {})


def test_some_columns_are_read_alone(tmp_path):
    fill(tmp_path / "run", [4, 2])
    fill(tmp_path / "run", [3], seal=False)
    found = load_run(tmp_path / "run").table(["predict", "outcome"])
    assert found.column_names == ["predict", "outcome"]
    assert found.to_pylist() == [{"predict": 1, "outcome": "certified"}] * 3
    assert load_run(tmp_path / "run").table(["index"]).to_pydict() == {"index": [2, 3, 4]}
