"""A run notices a change of any byte in any of its files, and its errors say how to continue."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smoothcert import Certificate, Guarantee, Norm
from smoothcert.store import load_run, open_run, run_json, write_run
from smoothcert.store import run as run_module
from smoothcert.store.parts import read_part
from smoothcert.store.pending import read_pending
from smoothcert.store.rows import SCHEMA, certificate_row
from smoothcert.types import Outcome, RunError

CONFIG = {"kind": "certification", "noise": {"name": "gaussian", "sigma": 0.5}, "seed": 0}


def row(index: int) -> dict:
    certificate = Certificate(
        label=1,
        radius=0.3,
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
    )
    return certificate_row(certificate, label=1, seconds=0.5)


def fill(path: Path, indices, config=CONFIG) -> None:
    with open_run(path, config, {"note": "test"}) as writer:
        for index in indices:
            if index not in writer.done:
                writer.append(row(index))


def indices(path: Path) -> list[int]:
    return [r["index"] for r in load_run(path).rows()]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A run with a part of four rows and two pending ones."""
    monkeypatch.setattr(run_module, "ROWS_PER_PART", 4)
    fill(tmp_path / "run", range(6))
    return tmp_path / "run"


def flip(file: Path, place: int, change: int = 1) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= change
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("run.json", lambda file: load_run(file.parent)),
        ("pending.jsonl", lambda file: read_pending(file.parent)),
        ("part-000000.parquet", read_part),
    ],
)
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soundness)])
def test_a_flipped_bit_anywhere_is_noticed(folder, name, read, step):
    file = folder / name
    whole = file.read_bytes()
    for place in range(0, len(whole), step):
        flip(file, place, 1 << place % 8)
        with pytest.raises(RunError, match=name):
            read(file)
        file.write_bytes(whole)
    assert indices(folder) == [*range(6)]


def test_every_byte_value_at_the_ends_of_pending_lines(folder):
    """A newline that appears or vanishes changes what a line is."""
    file = folder / "pending.jsonl"
    whole = file.read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]
    for place in [*ends, ends[0] + 1, ends[-1] - 1]:
        for change in range(1, 256):
            flip(file, place, change)
            with pytest.raises(RunError, match=r"pending.jsonl is damaged in line \d"):
                read_pending(folder)
            file.write_bytes(whole)


def test_a_part_can_be_read_by_others(folder):
    table = pq.read_table(folder / "part-000000.parquet", page_checksum_verification=True)
    assert table["index"].to_pylist() == [0, 1, 2, 3]
    assert load_run(folder).table().schema.metadata is None


def test_pages_have_checksums(folder):
    """Which a reader that knows nothing of the other checksum verifies."""
    part = folder / "part-000000.parquet"
    column = pq.ParquetFile(part).metadata.row_group(0).column(3)
    begin = column.dictionary_page_offset or column.data_page_offset
    flip(part, begin + column.total_compressed_size - 1)
    with pytest.raises(OSError, match="CRC checksum"):
        pq.ParquetFile(part, page_checksum_verification=True).read()


def test_a_damaged_part_is_deleted_and_computed_again(folder):
    part = folder / "part-000000.parquet"
    flip(part, 100)
    with pytest.raises(
        RunError, match=r"part-000000.parquet is damaged \(its checksum differs\); delete it and run the"
    ):
        fill(folder, range(6))
    part.unlink()
    fill(folder, range(6))
    assert indices(folder) == [*range(6)]


def test_a_damaged_line_is_deleted_and_computed_again(folder):
    file = folder / "pending.jsonl"
    place = file.read_bytes().index(b'"radius": 0.3') + 12
    flip(file, place)  # another digit: still JSON
    with pytest.raises(
        RunError, match="damaged in line 2; delete that line and line 1, which counts the rows, and run"
    ):
        fill(folder, range(6))
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[2:]))
    assert indices(folder) == [0, 1, 2, 3, 5]
    fill(folder, range(6))
    assert indices(folder) == [*range(6)]
    assert all(row["radius"] == 0.3 for row in load_run(folder).rows())


def test_rows_cut_off_are_noticed(folder):
    file = folder / "pending.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    for kept, lost in ((b"".join(lines[:2]), 1), (lines[0] + lines[1][:50], 2), (lines[0], 2)):
        file.write_bytes(kept)
        with pytest.raises(RunError, match=f"has lost {lost} of the 2 rows written to it; delete its line 1"):
            fill(folder, range(6))
    file.write_bytes(lines[1])  # its line 1 deleted
    fill(folder, range(6))
    assert indices(folder) == [*range(6)]


def test_a_cut_in_the_line_that_counts_is_noticed(folder):
    file = folder / "pending.jsonl"
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(RunError, match="damaged in line 1; delete that line and run"):
        fill(folder, range(6))
    file.write_bytes(b"")
    fill(folder, range(6))
    assert indices(folder) == [*range(6)]


def test_a_row_cut_short_by_a_kill_is_computed_again_with_a_warning(folder):
    file = folder / "pending.jsonl"
    with file.open("ab") as stream:
        stream.write(file.read_bytes().splitlines()[1][:70])
    assert indices(folder) == [*range(6)]
    with pytest.warns(UserWarning, match=r"pending.jsonl ends in the middle of a row, which is computed again"):
        fill(folder, range(7))
    assert indices(folder) == [*range(7)]


def test_a_row_that_is_not_counted_yet_is_kept(folder, recwarn):
    """Killed between the row and its count."""
    file = folder / "pending.jsonl"
    counted = file.read_bytes().splitlines(keepends=True)[0]
    with open_run(folder, CONFIG, {}) as writer:
        writer.append(row(6))
    file.write_bytes(counted + b"".join(file.read_bytes().splitlines(keepends=True)[1:]))
    fill(folder, range(6))
    assert indices(folder) == [*range(7)]
    assert not [w for w in recwarn if "pending" in str(w.message)]


@pytest.mark.parametrize("loss", ["flip", "delete"])
def test_without_run_json_the_same_command_keeps_the_rows(folder, loss):
    if loss == "flip":
        flip(folder / "run.json", 50)
        with pytest.raises(RunError, match=r"run.json is damaged .*; delete it and run the same command again"):
            fill(folder, range(8))
    parts = (folder / "part-000000.parquet").stat().st_mtime_ns
    (folder / "run.json").unlink()
    fill(folder, range(8))
    assert indices(folder) == [*range(8)]
    assert (folder / "part-000000.parquet").stat().st_mtime_ns == parts
    assert load_run(folder).info["sessions"][0] == {"note": "earlier sessions are unknown: run.json was lost"}


def test_without_run_json_rows_of_another_configuration_are_refused(folder):
    (folder / "run.json").unlink()
    with pytest.raises(RunError, match=r"has no run.json, and part-000000.parquet belongs to another configuration"):
        fill(folder, range(8), config={**CONFIG, "seed": 1})
    assert not (folder / "run.json").exists()
    (folder / "part-000000.parquet").unlink()
    with pytest.raises(RunError, match=r"pending.jsonl belongs to another configuration; choose another run folder"):
        fill(folder, range(8), config={**CONFIG, "seed": 1})


def old_run(folder: Path) -> Path:
    """A run as earlier versions wrote it: no checksum anywhere, no count."""
    folder.mkdir()
    table = pa.Table.from_pylist([row(0), row(1)], schema=SCHEMA)
    pq.write_table(table, folder / "part-000000.parquet", compression="zstd")
    (folder / "pending.jsonl").write_text("".join(json.dumps(row(index)) + "\n" for index in (2, 3)))
    (folder / "run.json").write_text(json.dumps({"format": 1, "config": CONFIG, "sessions": []}, indent=2) + "\n")
    return folder


def test_runs_of_earlier_versions_are_read_and_continued(tmp_path):
    folder = old_run(tmp_path / "run")
    assert indices(folder) == [0, 1, 2, 3]
    fill(folder, range(6))
    assert indices(folder) == [*range(6)]
    with (folder / "pending.jsonl").open("rb") as file:
        assert json.loads(next(file))["rows"] == 6 - 2


def test_damage_to_runs_of_earlier_versions_is_named_where_it_shows(tmp_path):
    folder = old_run(tmp_path / "run")
    flip(folder / "run.json", 0)
    with pytest.raises(RunError, match=r"run.json is damaged .*; restore it, or choose another run folder"):
        load_run(folder)
    part = folder / "part-000000.parquet"
    flip(folder / "run.json", 0)
    size = part.stat().st_size
    for place in range(size - 8, size):  # the length of the footer, and the mark of a Parquet file
        flip(part, place, 0x40)
        with pytest.raises(RunError, match=r"part-000000.parquet is damaged .*; delete it"):
            load_run(folder).table()
        flip(part, place, 0x40)
    assert indices(folder) == [0, 1, 2, 3]
    (folder / "run.json").unlink()
    with pytest.raises(RunError, match=r"part-000000.parquet does not record its configuration"):
        fill(folder, range(6))


def test_an_input_in_two_parts_is_refused(folder):
    part = folder / "part-000000.parquet"
    (folder / "part-000001.parquet").write_bytes(part.read_bytes())
    for use in (indices, lambda path: fill(path, range(6))):
        with pytest.raises(
            RunError, match=r"input 0 is in .*part-000000.parquet and in .*part-000001.parquet; delete one"
        ):
            use(folder)


def test_leftovers_of_a_killed_process_go_away(folder, tmp_path):
    (folder / ".part-000001.parquet.1.tmp").write_bytes(b"PAR1")
    fill(folder, range(6))
    assert not [file for file in folder.iterdir() if file.suffix == ".tmp"]
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".run.json.1.tmp").write_text("{")  # killed before run.json had its name
    fill(tmp_path / "new", range(2))
    assert indices(tmp_path / "new") == [0, 1]


def test_ctrl_c_while_opening_leaves_no_lock(tmp_path, monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_json, "write_info", stopped)
        with pytest.raises(KeyboardInterrupt):
            fill(tmp_path / "run", range(2))
    fill(tmp_path / "run", range(2))
    assert indices(tmp_path / "run") == [0, 1]


def test_a_table_is_stored_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    table = pa.table({"index": [0, 1]})
    with monkeypatch.context() as patch:
        patch.setattr(run_json, "write_info", full)
        with pytest.raises(RunError, match=r"cannot write to .*No space left"):
            write_run(tmp_path / "run", table, CONFIG, {})
    assert os.listdir(tmp_path) == []
    assert write_run(tmp_path / "run", table, CONFIG, {}).table().num_rows == 2
