"""Mistakes that users make: each gets one sentence, a warning or a sensible result, and never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader

from smoothcert import Cohen, Gaussian, Smoothed, certify_dataset, load_run, models
from smoothcert.certify import Staged
from smoothcert.cli.show import fits
from smoothcert.models import CheckpointInfo, save_checkpoint
from smoothcert.report.tables.layout import Cell, Column, Line, Sheet, rich_sheet
from smoothcert.types import SmoothcertError, UsageError

DATA = ("--data", "digits")
RECIPE = "digits-gaussian-0.25-quick"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "sigma-0.25.safetensors"
    torch.manual_seed(0)
    save_checkpoint(path, models.build("digits-cnn"), CheckpointInfo.of("digits-cnn", sigma=0.25))
    return path


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def refusal(result, code=2):
    """The one sentence of a command that was refused."""
    assert result[0] == code, result
    assert result[1] == ""
    assert result[2].startswith("smoothcert: ")
    assert result[2].count("\n") == 1
    return result[2]


def start(*arguments, **options):
    command = [sys.executable, "-m", "smoothcert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=200, **options)


def test_train_into_a_folder_that_cannot_be_made(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run("train", RECIPE, "-o", tmp_path / "file" / "models")
    assert code == 1
    assert "cannot be created" in err
    assert "Traceback" not in err


def test_a_huge_batch_size_is_refused(run, checkpoint, tmp_path):
    where = tmp_path / "huge"
    code, _, err = run("certify", checkpoint, *DATA, "--n", 100, "--stop", 1, "--batch-size", "1e9", "--run", where)
    assert code == 2
    assert "batch_size must be at least 1 and at most 1,000,000, got 1000000000." in err
    assert not where.exists()


@pytest.mark.parametrize("seconds", [0.3, 0.8, 1.5])
def test_ctrl_c_while_modules_are_imported(checkpoint, seconds):
    process = subprocess.Popen(
        [sys.executable, "-m", "smoothcert", "certify", str(checkpoint), *DATA, "--run", "run"],
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    if b"Traceback" not in err or b"smoothcert/cli/app" in err:  # otherwise Python itself had not started yet
        # Python may end by the signal itself, if it arrived in code that a C module ran; a shell shows 130 for both.
        assert process.returncode in (130, -signal.SIGINT), err
        assert b"Traceback" not in err
        assert b"stopped; the same command continues" in err


@pytest.mark.parametrize("command", [("certify", "--help"), ("compare", "one", "two"), ("aces", "--help")])
def test_a_terminal_without_greek_letters(run, checkpoint, command):
    if command[0] == "compare":
        for seed, name in enumerate(("one", "two")):
            assert run("certify", checkpoint, *DATA, "--n", 100, "--stop", 3, "--seed", seed, "--run", name)[0] == 0
    done = start(*command, env={**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"})
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


class Items:
    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self.item


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (Items({"image": torch.zeros(2), "label": 0}), "is a dict, not an .input, label. pair"),
        (Items((torch.zeros(2), 0, "name")), "is a tuple of 3 parts, not an .input, label. pair"),
        (Items((object(), 0)), "an input is a object, not a tensor or an array"),
        (Items((torch.zeros(2), "cat")), "label of input 0 is 'cat', not the number of a class"),
        (DataLoader([(torch.zeros(2), 0)] * 3), "a DataLoader does not give .* by index; give its .dataset"),
    ],
)
def test_datasets_of_other_shapes(half_space, dataset, sentence, tmp_path):
    with pytest.raises(UsageError, match=sentence):
        certify_dataset(Smoothed(half_space, Gaussian(0.5)), dataset, Cohen(n=10), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_no_input_is_explained(half_space, tmp_path):
    with pytest.raises(UsageError, match="convert it"):
        certify_dataset(Smoothed(half_space, Gaussian(0.5)), Items(("text", 0)), Cohen(n=10), run=tmp_path / "run")


def test_default_folders_tell_procedures_and_settings_apart(run, checkpoint, tmp_path):
    base = ("certify", checkpoint, *DATA, "--stop", 2)
    assert run(*base, "--n", 100)[0] == 0
    assert run(*base, "--n", 200)[0] == 0
    assert run(*base, "--procedure", "anytime", "--radius", 0.05, "--n-max", 1000)[0] == 0
    names = {folder.name.split("grid-256-")[1] for folder in (tmp_path / "runs").iterdir()}
    assert names == {"cohen-n-100-stop-2", "cohen-n-200-stop-2", "anytime-radius-0.05-n-max-1000-stop-2"}


def test_fresh_starts_a_run_again_and_deletes_nothing_else(run, checkpoint, tmp_path):
    base = ("certify", checkpoint, *DATA, "--stop", 2, "--run", "run")
    assert run(*base, "--n", 100)[0] == 0
    assert run(*base, "--n", 200)[0] == 1
    assert run(*base, "--n", 200, "--fresh")[0] == 0
    assert load_run("run").config["procedure"]["n"] == 200
    assert run(*base, "--n", 300, "--norm", "l1", "--fresh")[0] == 2
    assert load_run("run").config["procedure"]["n"] == 200
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert "holds files that do not belong to a run" in refusal(run(*base, "--n", 300, "--fresh"), 1)
    assert load_run("run").config["procedure"]["n"] == 200


def test_a_sigma_far_from_the_training_is_warned_about(run, checkpoint):
    code, _, err = run("certify", checkpoint, *DATA, "--n", 100, "--stop", 2, "--sigma", 64, "--run", "far")
    assert code == 0
    assert "Warning: " in err
    assert "was trained with Gaussian(sigma=0.25)" in err
    assert "differs from it a lot" not in run("certify", checkpoint, *DATA, "--n", 100, "--stop", 1, "--sigma", 0.3)[2]


def test_numbers_and_norms_in_other_spellings(run, checkpoint):
    code, _, err = run("certify", checkpoint, *DATA, "--n", "1e3", "--norm", "L2", "--stop", "1e0", "--run", "run")
    assert code == 0, err
    assert load_run("run").config["procedure"]["n"] == 1000
    said = refusal(run("certify", checkpoint, *DATA, "--n", "1.5"))
    assert "--n must be a whole number such as 1000 or 1e5, got '1.5'" in said


def test_one_image_is_not_a_dataset(run, checkpoint, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8")
    said = refusal(run("certify", checkpoint, "--data", "photo.jpg"))
    assert "photo.jpg is a single image; put it into a folder with labels.csv" in said


def test_a_report_is_not_a_pdf(run, tmp_path):
    assert "must end with .html" in refusal(run("report", "runs", "-o", "x.pdf"))
    assert not (tmp_path / "x.pdf").exists()


def test_errors_name_the_alpha_that_was_given(half_space):
    with pytest.raises(UsageError, match=r"at alpha = 0\.001: "):
        Smoothed(half_space, Gaussian(0.5)).certify(torch.ones(1), Staged(radius=5, alpha=0.001))


def test_what_does_not_exist_is_wrong_use(run, checkpoint):
    for command in (
        ("certify", "nowhere.safetensors", *DATA),
        ("certify", checkpoint, "--data", "no/where"),
        ("certify", checkpoint, "--data", "nowhere.npz"),
        ("table", "nowhere"),
        ("info", "nowhere"),
        ("export", "nowhere", "-o", "log"),
        ("import", "nowhere", "-o", "run"),
        ("compare", "nowhere", "elsewhere"),
        ("report", "nowhere"),
        ("plot", "nowhere"),
    ):
        refusal(run(*command))


def test_help_shows_what_is_required_and_no_type_for_flags(run):
    _, out, _ = run("certify", "--help")
    assert "[MODEL]" not in out
    assert "<bool>" not in out
    for panel in ("Data", "Noise", "Procedure", "Classifier", "Hardware", "Cluster"):
        assert f"─ {panel} ─" in out
    assert "<bool>" not in run("--help")[1]
    assert "Missing argument" in refusal(run("certify", *DATA))


def test_training_without_a_terminal_reports_and_ends_with_the_last_epoch(run):
    short = ("--set", "epochs=2", "--set", "votes=20", "--set", "holdout=50")
    code, out, err = run("train", RECIPE, *short)
    assert code == 0, err
    first, *_, last = [line for line in err.splitlines() if line.startswith("train")]
    assert "1/2" in first
    assert "2/2" in last
    loss = out.split("loss ")[1].split()[0]
    assert f"loss {float(loss):.3f}" in last


def test_certifying_counts_only_right_answers_as_certified(run, checkpoint):
    _, _, err = run("certify", checkpoint, *DATA, "--n", 1000, "--every", 20, "--seed", 0, "--run", "run")
    rows = load_run("run").rows()
    right = sum(row["outcome"] == "certified" and row["correct"] for row in rows)
    wrong = sum(row["outcome"] == "certified" and not row["correct"] for row in rows)
    assert wrong
    last = err.split("certify")[-1]
    assert f"{wrong} certified but wrong" in last
    assert (f"{right} certified" in last) == (right > 0)


def test_recipes_show_dataset_method_and_noise(run):
    _, out, _ = run("recipes", "list", "mnist-catrs-0.50")
    head, *lines = out.splitlines()
    line = next(line for line in lines if line.startswith("mnist-catrs-0.50 "))
    assert head.split() == ["recipe", "dataset", "method", "noise", "model", "epochs"]
    assert line.split()[1:4] == ["mnist", "catrs", "Gaussian(sigma=0.5)"]


def test_errors_of_the_system_are_one_sentence(run, tmp_path):
    (tmp_path / "file").write_text("")
    _, _, err = run("table", tmp_path / "file" / "run")
    assert "Traceback" not in err
    assert issubclass(UsageError, SmoothcertError)


def test_a_narrow_terminal_loses_no_columns():
    sheet = Sheet("", tuple(Column(f"r = {number}") for number in range(9)), (Line((Cell("0.123"),) * 9),))
    assert fits(rich_sheet(sheet), Console(width=100))
    assert not fits(rich_sheet(sheet), Console(width=40))  # shown as Markdown instead


def test_several_runs_are_compared_with_the_first(run, checkpoint):
    for seed in range(3):
        base = ("certify", checkpoint, *DATA, "--n", 100, "--every", 100, "--seed", seed)
        assert run(*base, "--run", f"run-{seed}")[0] == 0
    code, out, err = run("compare", "run-0", "run-1", "run-2")
    assert code == 0, err
    assert "run-1" in out
    assert "run-2" in out
    assert "not corrected for the number of comparisons" in err
    assert "at least two runs" in refusal(run("compare", "run-0"))
