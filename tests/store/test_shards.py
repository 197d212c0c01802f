"""Shards: disjoint runs over the same inputs that are united into what one process would have written."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from smoothcert import Cohen, Gaussian, Smoothed, certify_dataset, load_run
from smoothcert.certify import Memory
from smoothcert.sampling.sigma import GridSigma
from smoothcert.store import merge_runs
from smoothcert.store.noisy_copies import check_data
from smoothcert.store.run import write_run
from smoothcert.store.selection import take_shard
from smoothcert.types import RunError, UsageError

DATA = [(torch.full((2, 4), i / 20), i % 4) for i in range(20)]
QUICK = Cohen(n=200)


def make(sigma: float = 0.5) -> Smoothed:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 4))
    return Smoothed(model, Gaussian(sigma), batch_size=100)


def certify(path, smoothed=None, dataset=DATA, seed=0, **options):
    return certify_dataset(smoothed or make(), dataset, QUICK, run=path, progress=False, seed=seed, **options)


def without_time(path) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in load_run(path).rows()]


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> list[Path]:
    """Three shards of seventeen inputs."""
    folder = tmp_path_factory.mktemp("shards")
    return [certify(folder / f"{i}", start=3, shard=(i, 3)).path for i in (1, 2, 3)]


def test_shards_are_disjoint_alike_and_complete():
    indices = range(3, 40, 4)
    taken = [take_shard(indices, number, 4) for number in (1, 2, 3, 4)]
    assert sorted(index for shard in taken for index in shard) == list(indices)
    assert max(map(len, taken)) - min(map(len, taken)) <= 1
    assert list(take_shard(indices, 2, 4)) == [7, 23, 39]
    assert take_shard(indices, 1, 1) == indices


@pytest.mark.parametrize(
    ("shard", "match"),
    [
        ((0, 3), "there is no shard 0/3; shards are numbered from 1/3 to 3/3"),
        ((4, 3), "there is no shard 4/3"),
        ((1, 0), "there is no shard 1/0"),
        ((1, 21), "20 inputs cannot fill 21 shards; use at most 20"),
    ],
)
def test_shards_that_do_not_exist(tmp_path, shard, match):
    with pytest.raises(UsageError, match=match):
        certify(tmp_path / "run", shard=shard)
    assert not (tmp_path / "run").exists()


def test_the_united_run_is_that_of_one_process(shards, tmp_path):
    whole = certify(tmp_path / "whole", start=3)
    united = merge_runs(shards[::-1], tmp_path / "united")
    assert without_time(united.path) == without_time(whole.path)
    assert united.config == whole.config
    assert [session["shard"] for session in united.info["sessions"]] == [[1, 3], [2, 3], [3, 3]]
    assert united.table().schema == whole.table().schema
    before = {part: part.stat().st_mtime_ns for part in united.path.glob("*.parquet")}
    assert len(before) == 3
    certify(tmp_path / "united", start=3)  # finds it finished
    assert {part: part.stat().st_mtime_ns for part in united.path.glob("*.parquet")} == before


def test_a_run_is_put_together_a_part_at_a_time(shards, tmp_path):
    written = []

    def pieces():
        for shard in shards:
            yield from load_run(shard).pieces()
            written.append(len(list(tmp_path.glob("*/part-*.parquet"))))

    united = write_run(tmp_path / "united", pieces(), load_run(shards[0]).config, {})
    assert written == [1, 2, 3]
    assert united.table()["index"].to_pylist() == list(range(3, 20))


def test_a_run_without_shards_says_nothing_of_them(tmp_path):
    assert certify(tmp_path / "run").config["inputs"] == {"every": 1, "start": 0, "stop": None}


def test_a_shard_is_continued_and_other_shards_are_refused(shards, tmp_path):
    assert [row["index"] for row in load_run(shards[1]).rows()] == [4, 7, 10, 13, 16, 19]
    certify(shards[1], start=3, shard=(2, 3))
    with pytest.raises(RunError, match=r"inputs.shard is \[2, 3\] there and \[1, 3\] here"):
        certify(shards[1], start=3, shard=(1, 3))
    with pytest.raises(RunError, match=r"inputs.shard is \[2, 3\] there and not set here"):
        certify(shards[1], start=3)


def test_the_data_of_a_shard_are_recognized(shards):
    check_data(load_run(shards[2]), DATA)
    with pytest.raises(UsageError, match="another dataset"):
        check_data(load_run(shards[2]), [*DATA[:19], (torch.zeros(2, 4), 0)])


def test_missing_and_doubled_shards_are_refused(shards, tmp_path):
    with pytest.raises(RunError, match=r"^missing shards: 2/3; certify with --shard 2/3, or name its run too"):
        merge_runs([shards[0], shards[2]], tmp_path / "out")
    with pytest.raises(RunError, match="missing shards: 1/3, 2/3;"):
        merge_runs([shards[2]], tmp_path / "out")
    with pytest.raises(UsageError, match="are both shard 1; give each shard once"):
        merge_runs([shards[0], *shards], tmp_path / "out")
    with pytest.raises(UsageError, match="name the run folders"):
        merge_runs([], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_that_are_no_shards_are_refused(shards, tmp_path):
    certify(tmp_path / "whole", start=3)
    with pytest.raises(UsageError, match="whole is not a shard; merge unites runs certified with --shard"):
        merge_runs([*shards[:2], tmp_path / "whole"], tmp_path / "out")
    with pytest.raises(RunError, match="is not a run folder"):
        merge_runs([*shards[:2], tmp_path], tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"smoothed": make(0.25), "start": 3, "shard": (3, 3)}, r"noise.sigma is 0.5 there and 0.25 here"),
        ({"start": 3, "shard": (3, 4)}, "inputs.shard is 3 there and 4 here"),
        ({"start": 2, "shard": (3, 3)}, "inputs.start is 3 there and 2 here"),
    ],
)
def test_shards_of_another_configuration_are_refused(shards, tmp_path, options, match):
    certify(tmp_path / "other", **options)
    with pytest.raises(RunError, match=f"are not shards of one run .*{match}"):
        merge_runs([*shards[:2], tmp_path / "other"], tmp_path / "out")


def test_an_unfinished_shard_is_refused_and_what_it_lacks_is_named(shards, tmp_path):
    third = load_run(shards[2])
    unfinished = write_run(tmp_path / "third", third.table()[:2], third.config, {})
    with pytest.raises(RunError, match=r"third is unfinished: 3 of its 5 inputs are missing \(11, 14, 17\); run its"):
        merge_runs([*shards[:2], unfinished.path], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    certify(unfinished.path, start=3, shard=(3, 3))
    assert merge_runs([*shards[:2], unfinished.path], tmp_path / "out").table().num_rows == 17


def test_overlapping_rows_are_refused(shards, tmp_path):
    second, third = load_run(shards[1]), load_run(shards[2])
    wrong = write_run(tmp_path / "third", second.table(), third.config, {})
    with pytest.raises(RunError, match=r"third holds input 4, which is not in shard 3/3; certify it again"):
        merge_runs([*shards[:2], wrong.path], tmp_path / "out")
    strange = write_run(tmp_path / "first", third.table(), load_run(shards[0]).config, {})
    with pytest.raises(RunError, match=r"first holds input 5, which is not in shard 1/3"):
        merge_runs([strange.path, *shards[1:]], tmp_path / "out")


def test_a_damaged_shard_is_refused(shards, tmp_path):
    copy = tmp_path / "second"
    copy.mkdir()
    for file in shards[1].glob("*.*"):
        (copy / file.name).write_bytes(file.read_bytes())
    part = copy / "part-000000.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"2")
    with pytest.raises(RunError, match=r"second/part-000000.parquet is damaged .*; delete it"):
        merge_runs([shards[0], copy, shards[2]], tmp_path / "out")


def test_an_output_that_exists_is_left_alone(shards, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="exists already; choose a new or empty folder"):
        merge_runs(shards, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_memory_cannot_be_shared_by_shards(tmp_path):
    smoothed = Smoothed(make().model, Gaussian(0.5), sigma=GridSigma(grid=(0.25, 0.5)), memory=Memory())
    with pytest.raises(UsageError, match="a memory needs all inputs in one run"):
        certify(tmp_path / "run", smoothed=smoothed, shard=(1, 2))
    assert not (tmp_path / "run").exists()


SECOND = """
    import sys
    sys.path.insert(0, {here!r})
    from test_shards import certify
    from smoothcert.types import RunError
    try:
        certify({path!r})
    except RunError as error:
        print(error)
"""


def test_two_processes_cannot_write_the_same_run(tmp_path):
    """While this process is at its third input, another one is started on the same folder."""
    script = textwrap.dedent(SECOND.format(here=str(Path(__file__).parent), path=str(tmp_path / "run")))
    said = []

    class Disturbed(list):
        name = "list"
        asked = 0

        def __getitem__(self, index):
            self.asked += 1
            if self.asked == 10 and not said:
                done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
                said.append(done.stdout + done.stderr)
            return super().__getitem__(index)

    certify(tmp_path / "run", dataset=Disturbed(DATA))
    assert "run is being written by another process; wait for it or choose another folder." in said[0]
    assert said[0].count("\n") == 1
    certify(tmp_path / "alone")
    assert without_time(tmp_path / "run") == without_time(tmp_path / "alone")
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["sessions"]) == 1
