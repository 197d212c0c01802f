"""``smoothcert certify --shard`` and ``smoothcert merge``."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from smoothcert import load_run, models
from smoothcert.models import CheckpointInfo, save_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("models") / "tiny.safetensors"
    save_checkpoint(path, models.build("digits-cnn"), CheckpointInfo.of("digits-cnn", sigma=0.25))
    return path


@pytest.fixture
def certify(run, checkpoint):
    def call(*options):
        return run("certify", checkpoint, "--data", "digits", "--n", 200, "--every", 60, "--seed", 0, *options)

    return call


def refusal(result, code):
    assert (result[0], result[1]) == (code, ""), result
    assert result[2].startswith("smoothcert: ")
    assert result[2].count("\n") == 1
    return result[2]


def without_time(path) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in load_run(path).rows()]


def test_shards_become_the_run_without_shards(run, certify, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        code, _, err = certify("--shard", f"{number}/2")
        assert (code, f"-shard-{number}-of-2\n" in err) == (0, True)
    folders = sorted((tmp_path / "runs").iterdir())
    code, out, err = run("merge", *folders, "-o", "united")
    assert (code, err) == (0, "Run: united\n")
    assert out.startswith("| run")
    assert certify("--run", "whole")[0] == 0
    assert without_time("united") == without_time("whole")
    assert load_run("united").config == load_run("whole").config
    assert certify("--run", "united")[0] == 0
    message = refusal(run("merge", *folders, "-o", "united"), 1)
    assert "united exists already; choose a new or empty folder" in message
    assert "missing shards: 2/2" in refusal(run("merge", folders[0], "-o", "other"), 1)
    assert "is not a shard" in refusal(run("merge", folders[0], "whole", "-o", "other"), 2)


@pytest.mark.parametrize(
    ("shard", "match"),
    [
        ("0/3", "there is no shard 0/3; shards are numbered from 1/3 to 3/3"),
        ("4/3", "there is no shard 4/3"),
        ("1/9999", "inputs cannot fill 9999 shards"),
        ("1", "--shard must be I/K, such as 2/5"),
        ("1/2/3", "--shard must be I/K"),
        ("-1/2", "--shard must be I/K"),
        ("a/b", "--shard must be I/K"),
        ("", "--shard must be I/K"),
    ],
)
def test_bad_shards_are_refused_in_one_sentence(certify, tmp_path, shard, match):
    message = refusal(certify(f"--shard={shard}", "--run", tmp_path / "run"), 2)
    assert match in message
    assert not (tmp_path / "run").exists()


def test_a_memory_cannot_be_shared(certify, tmp_path):
    options = ("--sigma-grid", "0.25,0.5", "--memory", tmp_path / "balls.safetensors", "--run", tmp_path / "run")
    assert "a memory needs all inputs in one run" in refusal(certify("--shard", "1/2", *options), 2)


def test_attack_asks_for_the_whole_run(run, certify, checkpoint, tmp_path):
    assert certify("--shard", "1/2", "--run", tmp_path / "shard")[0] == 0
    result = run("attack", checkpoint, "--data", "digits", "--radii", "0.1", "--run", tmp_path / "shard")
    assert "is one shard of a run; merge all shards with `smoothcert merge` first" in refusal(result, 2)


def test_a_row_cut_short_is_said_in_one_sentence(checkpoint, certify, tmp_path):
    """Of another process, whose warnings are not those of the tests."""
    assert certify("--run", tmp_path / "run")[0] == 0
    with (tmp_path / "run" / "pending.jsonl").open("ab") as file:
        file.write(b'{"index": 7, "lab')
    command = ["certify", checkpoint, "--data", "digits", "--n", 200, "--every", 60, "--run", tmp_path / "run"]
    done = subprocess.run([sys.executable, "-m", "smoothcert", *map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (
        f"smoothcert: {tmp_path}/run/pending.jsonl ends in the middle of a row, which is computed again.\n"
        in done.stderr
    )
    assert "UserWarning" not in done.stderr
