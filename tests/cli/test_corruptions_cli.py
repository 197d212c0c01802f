"""``smoothcert corruptions``: a suite from start to table, continued, compared and refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from smoothcert import data, load_run, models
from smoothcert.models import CheckpointInfo, save_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "digits.safetensors"
    torch.manual_seed(0)
    save_checkpoint(path, models.build("digits-cnn"), CheckpointInfo.of("digits-cnn", sigma=0.25))
    return path


@pytest.fixture
def command(checkpoint, tmp_path):
    options = ["--every", 250, "--n", 100, "--threads", 1, "--run", tmp_path / "suite"]
    return ["corruptions", "run", checkpoint, "--data", "digits", *options]


def refusal(result: tuple[int, str, str], code: int = 2) -> str:
    assert result[0] == code, result
    assert result[1] == ""
    assert result[2].startswith("smoothcert: ")
    assert result[2].count("\n") == 1
    return result[2]


def test_a_suite_is_certified_continued_and_shown(run, command, tmp_path):
    some = ["--types", "fog, identity", "--severities", "1,5"]
    picture = tmp_path / "types.png"
    code, out, err = run(*command, *some, "--plot", picture, "--plot-severity", tmp_path / "severity.pdf")
    assert code == 0, err
    assert "identity (1 of 3)" in err
    assert "fog-5 (3 of 3)" in err
    assert out.splitlines()[0] == "1 corruption, 2 inputs each, ℓ2"
    assert [line.split(" | ")[1] for line in out.splitlines()[4:10]] == [
        *("fog", "mACR", "identity"),
        *("fog", "mAcc", "identity"),
    ]
    assert picture.exists()
    folder = tmp_path / "suite"
    assert sorted(entry.name for entry in folder.iterdir()) == ["fog-1", "fog-5", "identity"]
    config = load_run(folder / "fog-5").config
    assert config["data"]["name"] == "digits-fog-5"
    assert config["noise"] == {"name": "gaussian", "sigma": 0.25}
    assert load_run(folder / "fog-1").config["data"]["sha256"] != config["data"]["sha256"]
    before = {part: part.stat().st_mtime_ns for part in folder.rglob("*.parquet")}
    code, again, _ = run(*command, *some)
    assert (code, again) == (0, out)
    assert {part: part.stat().st_mtime_ns for part in folder.rglob("*.parquet")} == before
    code, more, _ = run(*command, "--types", "stripe", "--severities", 5, "--format", "csv", "--by", "set")
    assert code == 0
    assert [line.split(",")[1] for line in more.splitlines()[1:6]] == ["fog-1", "fog-5", "stripe-5", "mACR", "identity"]


def test_an_unfinished_suite_continues_to_the_same_rows(run, command, tmp_path):
    some = ["--types", "identity,fog", "--severities", 3]
    assert run(*command, *some)[0] == 0
    whole = [(row["index"], row["counts"]) for row in load_run(tmp_path / "suite" / "fog-3").rows()]
    for file in (tmp_path / "suite" / "fog-3").glob("part-*"):
        file.unlink()
    assert run(*command, *some)[0] == 0
    assert [(row["index"], row["counts"]) for row in load_run(tmp_path / "suite" / "fog-3").rows()] == whole


def test_another_seed_of_the_corruptions_is_another_suite(run, command, tmp_path):
    some = ["--types", "gaussian_noise", "--severities", 5]
    assert run(*command, *some)[0] == 0
    sentence = refusal_after_start(run(*command, *some, "--corruption-seed", 1))
    assert "gaussian_noise-5 holds a run with another configuration (data.sha256 is" in sentence


def refusal_after_start(result: tuple[int, str, str]) -> str:
    assert result[0] == 1, result
    return result[2].splitlines()[-1]


def test_runs_made_otherwise_are_refused_before_sampling(run, command, tmp_path):
    assert run(*command, "--types", "fog", "--severities", 1)[0] == 0
    sentence = refusal(run(*command, "--types", "stripe", "--severities", 1, "--sigma", 0.5))
    assert "noise.sigma is 0.25 in fog-1 and 0.5 in this command" in sentence
    assert not (tmp_path / "suite" / "stripe-1").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--types", "frog"], "unknown corruption 'frog'; did you mean 'fog'?"),
        (["--types", "saturate"], "saturate is for images of 3 channels, not of 1"),
        (["--severities", "0"], "a severity is a whole number from 1 to 5, not 0"),
        (["--severities", "1,high"], "each of --severities must be a whole number"),
        (["--types", "identity"], "identity is the clean set; name a corruption too"),
        (["--by", "method"], "unknown --by 'method'"),
        (["--style", "paper"], "unknown --style 'paper'"),
        (["--format", "xls"], "unknown table format 'xls'"),
        (["--plot", "types.gif"], "types.gif: a picture is saved as .png, .pdf, .svg"),
        (["--radii", "-1"], "radii '-1' must read like"),
        (["--start", "500"], "no input selected"),
        (["--procedure", "staged"], "--n is an option of cohen and aces, not of staged"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(run, command, tmp_path, options, said):
    assert said in refusal(run(*command, *options))
    assert not (tmp_path / "suite").exists()


def test_a_missing_suite_says_how_to_fetch_it(run, checkpoint, tmp_path):
    rest = ["--data-root", tmp_path, "--run", tmp_path / "suite"]
    sentence = refusal(run("corruptions", "run", checkpoint, "--data", "mnist-c", *rest), 1)
    assert "looked for identity/test_images.npy" in sentence
    assert "`smoothcert data fetch mnist-c`" in sentence
    code, _, err = run("corruptions", "run", checkpoint, "--data", "cifar10-c", *rest)
    assert code == 1
    assert "the clean set is left out, as cifar10 is not here" in err
    assert "looked for brightness.npy, labels.npy" in err


def test_a_published_suite(run, tmp_path, monkeypatch):
    info = data.DATASETS["mnist-c"]
    monkeypatch.setitem(data.DATASETS, "mnist-c", dataclasses.replace(info, test_size=3))
    for kind in ("identity", "fog", "zigzag"):
        (tmp_path / "mnist_c" / kind).mkdir(parents=True)
        np.save(tmp_path / "mnist_c" / kind / "test_images.npy", np.zeros((3, 28, 28, 1), dtype=np.uint8))
        np.save(tmp_path / "mnist_c" / kind / "test_labels.npy", np.arange(3))
    save_checkpoint(tmp_path / "lenet.safetensors", models.build("lenet"), CheckpointInfo.of("lenet", sigma=0.25))
    options = ["--types", "identity,fog,zigzag", "--n", 100, "--data-root", tmp_path, "--run", tmp_path / "suite"]
    code, out, err = run("corruptions", "run", tmp_path / "lenet.safetensors", "--data", "mnist-c", *options)
    assert code == 0, err
    assert sorted(entry.name for entry in (tmp_path / "suite").iterdir()) == ["fog", "identity", "zigzag"]
    assert "2 corruptions, 3 inputs each" in out
    again = ["corruptions", "run", tmp_path / "lenet.safetensors", "--data", "mnist-c", *options]
    assert "have a single severity" in refusal(run(*again, "--severities", 1))
    assert "have no severities; show types instead" in refusal(run(*again, "--by", "severity"))


def test_published_logs_are_shown_without_a_model(run, shared_data, tmp_path):
    logs = shared_data / "catrs-mnistc-025"
    code, out, err = run("corruptions", "table", logs, "--style", "catrs", "--format", "csv")
    assert code == 0
    assert "Note: Norm, guarantee and arithmetic unknown (not recorded)." in err
    lines = [line.split(",") for line in out.splitlines()]
    assert lines[1] == ["ACR", "Bright", "0.319"]
    assert ["ACR", "mACR", "0.693"] in lines
    assert lines[-1] == ["accuracy at 0 (%)", "mAcc", "85.7"]
    some = tmp_path / "some"
    some.mkdir()
    for kind in ("fog", "scale"):
        (some / f"{kind}.tsv").write_bytes((logs / f"{kind}.tsv").read_bytes())
    code, out, err = run(
        "corruptions", "table", logs, some, "--radii", "0,0.5", "-f", "latex", "-o", tmp_path / "t.tex"
    )
    assert (code, out) == (0, "")
    assert "Note: some lacks brightness, canny_edges, " in err
    assert r"& mACR & 0.413 & 0.413 \\" in (tmp_path / "t.tex").read_text(encoding="utf-8")


def test_tables_of_what_is_not_there(run, tmp_path):
    assert "nowhere does not exist" in refusal(run("corruptions", "table", tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "holds no result for any corruption" in refusal(run("corruptions", "table", tmp_path / "empty"))
