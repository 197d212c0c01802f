"""The command line: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from smoothcert import data, load_run, models
from smoothcert.models import CheckpointInfo, save_checkpoint
from smoothcert.report.tables.savings import savings
from smoothcert.store import read_log
from smoothcert.types import UsageError

COMMANDS = [
    "demo",
    "plan",
    "doctor",
    "certify",
    "predict",
    "ensemble",
    "aces",
    "selection",
    "train",
    "attack",
    "corruptions run",
    "corruptions table",
    "recipes list",
    "recipes show",
    "table",
    "compare",
    "plot",
    "report",
    "import",
    "export",
    "info",
    "data list",
    "data fetch",
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "sigma-0.25.safetensors"
    torch.manual_seed(0)
    save_checkpoint(path, models.build("digits-cnn"), CheckpointInfo.of("digits-cnn", sigma=0.25))
    return path


@pytest.fixture(scope="module")
def finished(checkpoint, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "digits"
    command = ["certify", checkpoint, "--data", "digits", "--n", 500, "--every", 100, "--seed", 0, "--run", path]
    done = subprocess.run([sys.executable, "-m", "smoothcert", *map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def test_ctrl_c_says_how_to_continue(checkpoint, tmp_path):
    command = ["certify", checkpoint, "--data", "digits", "--n", 100_000, "--run", tmp_path / "run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "smoothcert", *map(str, command)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # background jobs ignore it
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "run" / "pending.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert out == b""
    assert err.decode().endswith("smoothcert: stopped; the same command continues where this one ended.\n")


def refusal(result: tuple[int, str, str], code: int = 2) -> str:
    """The one sentence on stderr of a command that was refused."""
    assert result[0] == code, result
    assert result[1] == ""
    assert result[2].startswith("smoothcert: ")
    assert result[2].count("\n") == 1
    assert "Traceback" not in result[2]
    return result[2]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(run, command):
    code, out, _ = run(*command.split(), "--help")
    assert code == 0
    assert f"smoothcert {command}" in out.split("Example", 1)[1]


def test_help_version_and_no_arguments(run):
    assert "smoothcert demo" in run("--help")[1]
    assert run("--version")[1].startswith("smoothcert 0.")
    code, out, _ = run()
    assert (code, "Usage" in out) == (2, True)


def test_certify_writes_a_run_and_prints_a_table(run, checkpoint, finished, tmp_path):
    common = ["--data", "digits", "--n", 500, "--every", 100, "--seed", 0]
    command = ["certify", checkpoint, *common, "--run", tmp_path / "run"]
    code, out, err = run(*command)
    assert code == 0
    assert "| run | ACR |" in out.splitlines()[0] + out
    assert "certify" in err
    again = [(row["index"], row["counts"]) for row in load_run(tmp_path / "run").rows()]
    assert again == [(row["index"], row["counts"]) for row in load_run(finished).rows()]
    config = load_run(tmp_path / "run").config
    assert config["noise"] == {"name": "gaussian", "sigma": 0.25, "grid": 256}  # the checkpoint's, on the digits' grid
    other = refusal(run(*command, "--sigma", 0.5), 1)
    assert "noise.sigma is 0.25 there and 0.5 here" in other
    other = refusal(run(*command, "--float"), 1)
    assert "noise.grid is 256 there and not set here" in other


def test_certify_names_its_run_by_default(run, checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("certify", checkpoint, "--data", "digits", "--n", 100, "--stop", 1, "--threads", 1)
    assert code == 0
    assert "Run: runs/sigma-0.25-digits-gaussian-0.25-grid-256-cohen-n-100-stop-1" in err
    assert len(load_run("runs/sigma-0.25-digits-gaussian-0.25-grid-256-cohen-n-100-stop-1").rows()) == 1


def test_predict(run, checkpoint):
    code, out, err = run("predict", checkpoint, "--data", "digits", "--every", 100, "--votes", 200)
    assert code == 0
    header, *rows = out.splitlines()
    assert header.split("\t") == ["idx", "label", "predict", "p_value"]
    assert [int(row.split("\t")[0]) for row in rows] == [0, 100, 200, 300, 400]
    assert "of 5 correct" in err


def test_table_prints_the_published_digits(run, shared_data):
    code, out, _ = run("table", shared_data / "cohen-cifar10-050", "--radii", "0:1.75:0.25", "--format", "csv")
    assert code == 0
    row = out.splitlines()[1].split(",")
    assert row[1:10] == ["0.538", "65.2", "54.6", "41.4", "32.0", "23.4", "15.2", "9.4", "5.2"]
    logs = [shared_data / "catrs-fmnist-050" / f"{name}.tsv" for name in ("cohen", "consistency", "cat-rs")]
    code, out, _ = run("table", *logs, "--radii", "0:2.5:0.25", "--format", "csv")
    zeros = ["0.0", "0.0", "0.0"]
    assert [line.split(",")[1:13] for line in out.splitlines()[1:]] == [
        ["1.056", "86.2", "80.7", "73.2", "64.8", "55.5", "45.6", "35.0", "24.1", *zeros],
        ["1.212", "84.9", "81.1", "76.4", "71.2", "65.2", "57.8", "49.3", "39.2", *zeros],
        ["1.274", "82.5", "79.6", "76.2", "72.4", "67.8", "62.5", "56.7", "49.0", *zeros],
    ]


@pytest.mark.parametrize(("format", "sign"), [("md", "| ---"), ("latex", r"\toprule"), ("csv", "name,acr")])
def test_table_formats_and_files(run, finished, tmp_path, format, sign):
    code, out, _ = run("table", finished, "--format", format)
    assert code == 0
    assert sign in out
    code, shown, err = run("table", finished, "--format", format, "-o", tmp_path / "table")
    assert (code, shown) == (0, "")
    expected = "Of the 5 statements at most 0.005 are expected to be false"
    assert expected in (err if format == "csv" else (tmp_path / "table").read_text())
    assert (err == "") == (format != "csv")
    assert (tmp_path / "table").read_text() == out


def test_plot(run, finished, tmp_path):
    assert run("plot", finished, "-o", tmp_path / "curve.png")[0] == 0
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_export_then_import_never_lengthens_a_radius(run, finished, tmp_path):
    assert run("export", finished, "-o", tmp_path / "log.tsv")[0] == 0
    assert run("import", tmp_path / "log.tsv", "-o", tmp_path / "back")[0] == 0
    stored, back = load_run(finished).rows(), load_run(tmp_path / "back").rows()
    for a, b in zip(stored, back, strict=True):
        assert (a["index"], a["label"], a["predict"], a["correct"]) == (
            b["index"],
            b["label"],
            b["predict"],
            b["correct"],
        )
        assert a["radius"] - 1e-6 <= b["radius"] <= a["radius"]


def test_import_reads_every_published_log(run, shared_data, tmp_path):
    logs = [f for folder in shared_data.iterdir() if folder.is_dir() for f in sorted(folder.iterdir())]
    for number, log in enumerate(logs[::7] + logs[-3:]):
        code, _, err = run("import", log, "-o", tmp_path / str(number))
        assert code == 0, err
        assert len(load_run(tmp_path / str(number)).rows()) == len(read_log(log).table)


def test_import_of_several_makes_a_folder_of_runs(run, shared_data, tmp_path):
    logs = sorted((shared_data / "catrs-fmnist-050").glob("*.tsv"))
    assert run("import", *logs, "-o", tmp_path / "runs")[0] == 0
    _, out, _ = run("table", tmp_path / "runs", "--format", "csv", "--radii", "0")
    assert [line.split(",")[0] for line in out.splitlines()[1:]] == ["cat-rs", "cohen", "consistency"]


def test_savings_against_a_reference(finished, checkpoint, run, tmp_path):
    command = ["certify", checkpoint, "--data", "digits", "--every", 100, "--procedure", "staged", "--radius", 0.05]
    assert run(*command, "--stages", "50,100", "--run", tmp_path / "staged")[0] == 0
    found = savings(load_run(tmp_path / "staged"), reference=load_run(finished))
    assert found.sample_factor == pytest.approx(600 / found.mean_samples)
    assert sum(found.certified_in_stage) + sum(found.abstained_in_stage) == pytest.approx(1)
    run("certify", *command[1:4], "--n", 100, "--stop", 2, "--run", tmp_path / "two")
    other = load_run(tmp_path / "two")
    with pytest.raises(UsageError, match="other inputs"):
        savings(load_run(finished), reference=other)


def test_info(run, finished, checkpoint):
    code, out, _ = run("info", finished)
    assert code == 0
    assert "sigma: 0.25" in out
    assert "rows: 5" in out
    code, out, _ = run("info", checkpoint)
    assert code == 0
    assert "digits-cnn" in out
    assert "38282" in out


def test_data_list_and_fetch(run, tmp_path):
    code, out, _ = run("data", "list", "--data-root", tmp_path)
    assert code == 0
    lines = {line.split()[0]: line.split()[-1] for line in out.splitlines() if line}
    assert lines["digits"] == "bundled"
    assert lines["cifar10"] == "no"
    assert run("data", "fetch", "digits", "--data-root", tmp_path)[0] == 0
    assert "did you mean 'mnist'" in refusal(run("data", "fetch", "mnits"))


def test_demo(run, tmp_path):
    code, out, _ = run("demo", "-o", tmp_path / "demo", "--n", 100, "--every", 100)
    assert code == 0
    assert "sigma-0.50-aces" in out
    assert "NAC" in out
    assert (tmp_path / "demo" / "tradeoff.png").stat().st_size > 10_000
    assert (tmp_path / "demo" / "certified-accuracy.png").stat().st_size > 10_000
    assert f"Report: {tmp_path / 'demo' / 'report.html'}\n" in out
    model = tmp_path / "demo" / "models" / "sigma-0.50.safetensors"
    assert f"serve {model} --radius 0.1,0.25,0.5\nand open http://127.0.0.1:8000/" in out
    assert model.is_file()
    assert (tmp_path / "demo" / "report.html").stat().st_size > 1_000_000
    before = load_run(tmp_path / "demo" / "runs" / "sigma-0.50").rows()
    assert run("demo", "-o", tmp_path / "demo", "--n", 100, "--every", 100)[0] == 0
    assert load_run(tmp_path / "demo" / "runs" / "sigma-0.50").rows() == before


def test_certify_at_target_radii(run, checkpoint, tmp_path):
    base = ["certify", checkpoint, "--data", "digits", "--every", 100]
    code, out, err = run(
        *base, "--procedure", "anytime", "--radius", "0.05,0.1", "--n-max", 1000, "--run", tmp_path / "a"
    )
    assert code == 0, err
    assert "samples per input" in out
    row = load_run(tmp_path / "a").rows()[0]
    assert list(row["decisions"]) == [0.05, 0.1]
    assert load_run(tmp_path / "a").info["sessions"][0]["runtime"]["name"] == "eager"
    both = ["--procedure", "anytime", "--radius", "0.05,0.1", "--bound", "runner-up", "--n-max", 1000]
    code, _, err = run(*base, *both, "--run", tmp_path / "b")
    assert code == 0, err
    assert load_run(tmp_path / "b").info["config"]["procedure"]["bound"] == "runner-up"
    assert {row["n0"] for row in load_run(tmp_path / "b").rows()} <= {20, 100}
    assert "samples" in run("table", tmp_path / "b")[1] + run("info", tmp_path / "b")[1]
    assert "only runs of cohen can be recomputed" in refusal(run("table", tmp_path / "a", "--bound", "runner-up"))
    staged = ["--procedure", "staged", "--radius", 0.05, "--stages", "100,1000", "--beta", 0.01]
    code, out, err = run(*base, *staged, "--run", tmp_path / "s")
    assert code == 0, err
    assert "stage 1:" in out
    assert sum(stage["n"] for stage in load_run(tmp_path / "s").rows()[0]["stages"]) in (100, 1100)
    assert "ASC" in run("info", tmp_path / "s")[1]


def test_plan(run):
    code, out, _ = run(
        "plan",
        "--sigma",
        0.25,
        "--procedure",
        "staged",
        "--radius",
        0.25,
        "--stages",
        "1000,10000,125000",
        "--beta",
        0.0001,
    )
    assert code == 0
    assert [
        line.split()[:2] for line in out.splitlines() if line.split()[:1] in (["1,000"], ["10,000"], ["125,000"])
    ] == [
        ["1,000", "880"],
        ["10,000", "8,538"],
        ["125,000", "105,607"],
    ]
    code, out, _ = run("plan", "--sigma", 0.5, "--procedure", "anytime", "--radius", 0.5, "--p", "0.95")
    assert code == 0
    assert "0.9500" in out
    anytime = ["--procedure", "anytime", "--radius", 0.5, "--p", "0.95", "--bound", "runner-up"]
    code, again, err = run("plan", "--sigma", 0.5, *anytime)
    assert (code, again) == (0, out)
    assert "this plan is for the plain bound" in err
    code, out, _ = run("plan", "--sigma", 0.5)
    assert "1.9057" in out
    assert "one target radius" in refusal(run("plan", "--sigma", 0.5, "--radius", "0.5,1"))
    assert "between 0 and 1" in refusal(run("plan", "--sigma", 0.5, "--radius", "0.5", "--p", "2"))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--procedure", "staged"], "staged needs --radius"),
        (["--radius", "0.5"], "--radius is an option of staged and anytime, not of cohen"),
        (["--procedure", "anytime", "--radius", "0"], "target radius must be a positive number"),
        (["--procedure", "anytime", "--radius", "5"], "cannot be certified with a budget of 100,000"),
        (["--procedure", "anytime", "--radius", "0.5", "--deadline", "0"], "deadline must be a positive"),
        (["--procedure", "anytime", "--radius", "0.5", "--beta", "1"], "beta must lie"),
        (["--procedure", "staged", "--radius", "0.1", "--stages", "100,100"], "stages must increase"),
        (["--procedure", "staged", "--radius", "0.1", "--stages", "few"], "each of --stages must be a whole number"),
        (["--procedure", "staged", "--radius", "0.1,0.2"], "--radius accepts one number"),
        (["--runtime", "eagre"], "did you mean 'eager'"),
        (["--sigma", "0"], "sigma must be a positive number"),
        (["--sigma", "nan"], "sigma must be a positive number"),
        (["--alpha", "1"], "alpha must lie strictly between 0 and 1"),
        (["--n", "0"], "n must be a whole number"),
        (["--n", "many"], "--n"),
        (["--procedure", "cohn"], "did you mean 'cohen'"),
        (["--data", "digit"], "did you mean 'digits'"),
        (["--data", "mnist", "--data-root", "nowhere"], "smoothcert data fetch mnist"),
        (["--start", "1000"], "no input selected"),
        (["--device", "gpu"], "device 'gpu' cannot be used"),
        (["--threads", "0"], "threads must be at least 1"),
        (["--sgima", "1"], "--sgima"),
        (["--arch", "lenett"], "did you mean 'lenet'"),
    ],
)
def test_certify_refuses_in_one_sentence(run, checkpoint, tmp_path, arguments, match):
    result = run("certify", checkpoint, "--data", "digits", "--run", tmp_path / "run", *arguments)
    assert match in refusal(result, 1 if "mnist" in arguments else 2)
    assert not (tmp_path / "run").exists()


def test_wrong_files_are_refused_in_one_sentence(run, tmp_path, checkpoint, finished):
    (tmp_path / "half.safetensors").write_bytes(checkpoint.read_bytes()[:1000])
    refusal(run("certify", tmp_path / "half.safetensors", "--data", "digits"), 1)
    refusal(run("info", tmp_path / "half.safetensors"), 1)
    assert "there is no" in refusal(run("certify", tmp_path / "none", "--data", "digits"), 2)
    assert "does not exist" in refusal(run("table", tmp_path / "none"))
    assert "there is no" in refusal(run("info", tmp_path / "none"))
    (tmp_path / "log").write_text("idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t1\t1\tx\t1\t1.0\n")
    assert "line 2, column 4 (radius)" in refusal(run("table", tmp_path / "log"), 1)
    assert "line 2, column 4 (radius)" in refusal(run("import", tmp_path / "log", "-o", tmp_path / "new"), 1)
    assert not (tmp_path / "new").exists()
    assert "radii" in refusal(run("table", finished, "--radii", "0:x:1"))
    refusal(run("table", finished, "--format", "html5"))
    (tmp_path / "empty").mkdir()
    assert "neither runs nor" in refusal(run("table", tmp_path / "empty"))


def test_a_checkpoint_without_sigma_asks_for_it(run, tmp_path):
    save_checkpoint(tmp_path / "m.safetensors", models.build("digits-cnn"), CheckpointInfo.of("digits-cnn"))
    assert "give --sigma" in refusal(run("certify", tmp_path / "m.safetensors", "--data", "digits"))


def test_a_model_of_another_shape_is_refused_before_a_run_is_made(run, tmp_path):
    save_checkpoint(tmp_path / "m.safetensors", models.build("lenet"), CheckpointInfo.of("lenet", sigma=0.5))
    result = run("certify", tmp_path / "m.safetensors", "--data", "digits", "--run", tmp_path / "run")
    assert "cannot classify a batch of shape (1, 1, 8, 8)" in refusal(result)
    assert not (tmp_path / "run").exists()


def test_arrays_of_ones_own(run, checkpoint, tmp_path):
    x, y = data.load("digits").arrays()
    np.savez(tmp_path / "mine.npz", x=x[:3].numpy(), y=y[:3].numpy())
    code, out, _ = run("predict", checkpoint, "--data", tmp_path / "mine.npz", "--votes", 100)
    assert code == 0
    assert len(out.splitlines()) == 4
    np.savez(tmp_path / "more.npz", x=x[:3].numpy(), y=np.array([0, 1, 10]))
    assert "has 10 classes" in refusal(run("predict", checkpoint, "--data", tmp_path / "more.npz"))


def test_run_json_is_readable_json(finished):
    info = json.loads((finished / "run.json").read_text())
    assert info["format"] == 1
