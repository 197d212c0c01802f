"""``smoothcert attack``: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F

from smoothcert import Cohen, Gaussian, Smoothed, certify_dataset, data, load_run, models
from smoothcert.models import CheckpointInfo, save_checkpoint
from smoothcert.store import write_run

SIGMA = 0.25
HASTE = ["--steps", 5, "--copies", 8, "--votes", 200, "--runtime", "eager"]
HEADINGS = ["radius", "empirical %", "certified %", "broken", "abstained", "inputs"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "digits.safetensors"
    torch.manual_seed(0)
    x, y = data.load("digits", split="train").arrays()
    model = models.build("digits-cnn")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(4):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch] + SIGMA * torch.randn_like(x[batch])), y[batch]).backward()
            optimizer.step()
    save_checkpoint(path, model, CheckpointInfo.of("digits-cnn", sigma=SIGMA))
    return path


@pytest.fixture(scope="module")
def stored(checkpoint, tmp_path_factory):
    """A run over ten of the digits."""
    smoothed = Smoothed(models.load_model(checkpoint), Gaussian(SIGMA), runtime="eager")
    path = tmp_path_factory.mktemp("runs") / "digits"
    certify_dataset(smoothed, data.load("digits"), Cohen(n=500), run=path, every=50, progress=False, seed=0)
    return path


def table(out: str) -> list[list[float]]:
    headings, *rows = csv.reader(out.splitlines())
    assert headings == HEADINGS
    return [[float(cell) for cell in row] for row in rows]


def refusal(result: tuple[int, str, str], code: int = 2) -> str:
    """The one sentence on stderr of a command that was refused."""
    assert result[0] == code, result
    assert result[1] == ""
    assert result[2].startswith("smoothcert: ")
    assert result[2].count("\n") == 1
    return result[2]


def changed(stored, path, **columns):
    """A copy of a run with other rows."""
    table = load_run(stored).table()
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(values))
    write_run(path, table, load_run(stored).config, {})
    return path


def test_help_teaches_by_example(run):
    code, out, _ = run("attack", "--help")
    assert code == 0
    assert "smoothcert attack" in out.split("Examples", 1)[1]
    assert "FIRST:LAST:STEP" in out


def test_certificates_of_a_run_stand_beside_the_attack(run, checkpoint, stored, tmp_path):
    command = ["attack", checkpoint, "--data", "digits", "--radii", "1,0.25,0.5", "--run", stored, *HASTE]
    code, out, err = run(*command, "--format", "csv", "-o", tmp_path / "rows.csv")
    assert code == 0, err
    assert "attack" in err
    assert "certify" not in err
    rows = table(out)
    assert [row[0] for row in rows] == [0.25, 0.5, 1.0]
    runs = load_run(stored).rows()
    for radius, empirical, certified, broken, abstained, inputs in rows:
        assert inputs == 10  # the run's own selection
        assert empirical == 100 - 10 * broken
        assert certified == 10 * sum(row["correct"] and row["radius"] >= radius for row in runs)
        assert empirical >= certified
        assert broken + abstained <= inputs
    assert rows[0][3] < rows[2][3]
    assert rows[0][2] > 0
    with (tmp_path / "rows.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [(int(row["index"]), float(row["radius"])) for row in written] == [
        (index, radius) for index in range(0, 500, 50) for radius in (0.25, 0.5, 1.0)
    ]
    for row in written:
        assert row["contradiction"] == "0"
        assert float(row["certified_radius"]) <= runs[int(row["index"]) // 50]["radius"]
        assert (row["outcome"] == "broken") == (row["predict"] not in ("-1", row["label"]))
    broken = [sum(row["outcome"] == "broken" and float(row["radius"]) == r[0] for row in written) for r in rows]
    assert broken == [r[3] for r in rows]


def test_without_a_run_the_inputs_are_certified_here(run, checkpoint):
    command = ["attack", checkpoint, "--data", "digits", "--radii", "0.2", "--n", 500, *HASTE]
    code, out, err = run(*command, "--every", 7, "--start", 3, "--max", 6, "--format", "csv")
    assert code == 0, err
    assert "certify" in err
    ((_, empirical, certified, *_, inputs),) = table(out)
    assert inputs == 6
    assert empirical >= certified > 0


@pytest.mark.parametrize(
    ("format", "sign"), [("md", "| ---: |"), ("latex", r"empirical \% &"), ("html", '<td class="number">0.3')]
)
def test_formats(run, checkpoint, stored, format, sign):
    command = ["attack", checkpoint, "--data", "digits", "--radii", "0.3", "--run", stored, "--max", 1, *HASTE]
    command += ["--seed", 0]
    code, out, err = run(*command, "--format", format)
    assert code == 0, err
    assert sign in out
    if format == "md":
        assert out == run(*command)[1]  # into a pipe


def test_a_contradiction_is_told_after_the_results(run, checkpoint, stored, tmp_path):
    false = changed(stored, tmp_path / "false", radius=np.full(10, 5.0))
    command = ["attack", checkpoint, "--data", "digits", "--radii", "0.5,1.5", *HASTE]
    code, out, err = run(*command, "--run", false, "--format", "csv", "-o", tmp_path / "rows.csv")
    assert code == 1
    assert len(table(out)) == 2
    with (tmp_path / "rows.csv").open() as file:
        wrong = {row["index"] for row in csv.DictReader(file) if row["contradiction"] == "1"}
    assert wrong
    sentence = err.splitlines()[-1]
    assert sentence.startswith("smoothcert: CONTRADICTION of certificate and attack at input ")
    for index in wrong:
        assert f"input {index} (class " in sentence
    assert f"{len(wrong)} of 10 inputs" in sentence
    assert "with probability 0.001" in sentence


def test_a_run_of_something_else_is_refused(run, checkpoint, stored, tmp_path):
    command = ["attack", checkpoint, "--data", "digits", "--radii", "0.5", *HASTE]
    assert "another noise (gaussian 0.25 there, gaussian 0.5 here)" in refusal(
        run(*command, "--run", stored, "--sigma", 0.5)
    )
    assert "another dataset (digits test 500 there, digits train" in refusal(
        run(*command, "--run", stored, "--split", "train")
    )
    assert "no row for 90 of the 100 inputs chosen, such as 5" in refusal(run(*command, "--run", stored, "--every", 5))
    torch.manual_seed(1)
    save_checkpoint(tmp_path / "other.safetensors", models.build("digits-cnn"), CheckpointInfo.of("digits-cnn"))
    other = ["attack", tmp_path / "other.safetensors", *command[2:], "--sigma", SIGMA]
    assert "another model (DigitsCNN" in refusal(run(*other, "--run", stored))
    l1 = changed(stored, tmp_path / "l1", norm=["l1"] * 10)
    assert "another norm than ℓ2" in refusal(run(*command, "--run", l1))
    info = json.loads((l1 / "run.json").read_text())
    del info["sha256"]  # written by hand
    info["config"]["data"]["sha256"] = "0" * 64
    (l1 / "run.json").write_text(json.dumps(info))
    assert "other inputs under the name digits" in refusal(run(*command, "--run", l1))
    info["config"] = {"kind": "imported certification"}
    (l1 / "run.json").write_text(json.dumps(info))
    assert "does not record its model" in refusal(run(*command, "--run", l1))
    assert "is not a run folder" in refusal(run(*command, "--run", tmp_path / "none"))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--radii", "0,0.5"], "radii above 0, got 0."),
        (["--radii", "-1"], "0 or larger"),
        (["--radii", "0.5,0.5"], "each given once"),
        (["--radii", "far"], "must read like"),
        (["--start", "1000"], "no input selected"),
        (["--every", "0"], "every must be at least 1"),
        (["--max", "0"], "--max must be at least 1"),
        (["--steps", "0"], "steps must be a whole number"),
        (["--votes", "5"], "always abstain"),
        (["--n", "0"], "n must be a whole number of samples"),
        (["--alpha", "0"], "alpha must lie strictly"),
        (["--seed", "-1"], "seed must be between"),
        (["--format", "htm"], "did you mean 'html'"),
        (["-o", "nowhere/rows.csv"], "the folder nowhere does not exist"),
        (["--data", "digit"], "did you mean 'digits'"),
    ],
)
def test_wrong_use_is_refused_in_one_sentence(run, checkpoint, arguments, match):
    assert match in refusal(run("attack", checkpoint, "--data", "digits", "--radii", "0.5", *arguments))


def test_a_vanished_gradient_is_told(run, tmp_path):
    model = models.build("digits-cnn")
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1e6)  # so steep that all gradients of the loss are 0
    save_checkpoint(tmp_path / "steep.safetensors", model, CheckpointInfo.of("digits-cnn", sigma=1e-3))
    pixels, _ = data.load("digits").arrays()
    labels = model(pixels[:3]).argmax(1)
    np.savez(tmp_path / "mine.npz", x=pixels[:3].numpy(), y=labels.numpy())
    command = ["attack", tmp_path / "steep.safetensors", "--data", tmp_path / "mine.npz", "--radii", "0.01"]
    code, _, err = run(*command, "--n", 200, *HASTE)
    assert code == 0, err
    assert "The gradient vanished at 3 inputs" in err
