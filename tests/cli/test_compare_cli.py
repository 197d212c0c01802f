"""``smoothcert compare``, and the options of ``smoothcert table`` that read runs anew."""

from __future__ import annotations

import json

import pytest
import torch

from smoothcert import load_run, models
from smoothcert.cli.app import app
from smoothcert.models import CheckpointInfo, save_checkpoint
from smoothcert.report.recompute import recompute
from smoothcert.report.tables.accuracy import accuracy_table, render


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Two models of one recipe, trained from different seeds as far as they say."""
    folder = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        torch.manual_seed(seed)
        recipe = {"name": "digits-recipe", "source": "here", "method": {"name": "gaussian"}, "seed": seed, "epochs": 1}
        info = CheckpointInfo.of("digits-cnn", sigma=0.25, extra={"recipe": recipe})
        save_checkpoint(folder / f"{seed}.safetensors", models.build("digits-cnn"), info)
    return folder


@pytest.fixture(scope="module")
def runs(checkpoints, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed, name in ((0, "one"), (1, "two")):
        command = ["certify", checkpoints / f"{seed}.safetensors", "--data", "digits", "--n", 1000, "--every", 100]
        app([str(part) for part in (*command, "--seed", 0, "--run", folder / name)], standalone_mode=False)
    return folder


def refusal(result, code=2):
    assert (result[0], result[1]) == (code, ""), result
    assert result[2].startswith("smoothcert: ")
    assert result[2].count("\n") == 1
    return result[2]


def test_compare(run, runs, tmp_path):
    command = ["compare", runs / "one", runs / "two", "--radii", "0,0.1"]
    code, out, err = run(*command)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith(("one is better: ", "two is better: ", "No difference in ACR that 5 inputs"))
    assert "| over 5 inputs | one | two | difference | 95 % interval | p |" in out
    assert [line.split(" | ")[0] for line in out.splitlines() if line.startswith("| 0.")] == ["| 0.00", "| 0.10"]
    assert run(*command, "-f", "md", "-o", tmp_path / "compared.md") == (0, "", "")
    assert (tmp_path / "compared.md").read_text() == out
    assert run(*command, "--format", "html")[1].startswith("<p>")


def test_compare_with_a_log(run, runs, tmp_path):
    assert run("export", runs / "one", "-o", tmp_path / "log")[0] == 0
    code, out, _ = run("compare", runs / "one", tmp_path / "log")
    assert code == 0
    assert "No difference in ACR that 5 inputs could show: one minus log is 0.000" in out


def test_runs_of_the_same_name_are_told_apart(run, runs, tmp_path):
    (tmp_path / "other").mkdir()
    assert run("export", runs / "two", "-o", tmp_path / "other" / "one")[0] == 0
    out = run("compare", runs / "one", tmp_path / "other" / "one", "-f", "html")[1]
    assert f"{tmp_path}/other/one" in out
    assert f"{runs}/one" in out


def test_table_and_compare_at_fewer_samples(run, runs):
    out = run("table", runs / "one", "--at-n", 100, "--at-alpha", 0.01, "-f", "csv", "--radii", "0,0.1")[1]
    wanted = accuracy_table([recompute(load_run(runs / "one"), n=100, alpha=0.01)], [0, 0.1])
    assert out == render(wanted, "csv")
    assert out != run("table", runs / "one", "-f", "csv", "--radii", "0,0.1")[1]
    assert run("compare", runs / "one", runs / "two", "--at-n", 100)[0] == 0
    out, err = run("table", runs / "one", "--bound", "runner-up")[1:]
    assert "Radii use the runner-up bound where the selection votes favour it." in out
    assert "the runner-up bound chosen from stored votes: such a bound is valid only if" in err
    assert run("compare", runs / "one", runs / "two", "--bound", "runner-up")[0] == 0
    assert "bound 'best'" in refusal(run("table", runs / "one", "--bound", "best"))
    said = refusal(run("table", runs / "one", "--at-n", 300))
    assert "keeps no votes at n = 300; give --at-n 10 or 100 or 1,000" in said
    assert "alpha must lie strictly between 0 and 1" in refusal(
        run("compare", runs / "one", runs / "two", "--at-alpha", 2)
    )


def test_a_run_knows_the_training_of_its_checkpoint(run, runs):
    info = json.loads((runs / "two" / "run.json").read_text())
    (training,) = info["sessions"][0]["source"]["training"]
    assert (training["recipe"], training["method"], training["seed"]) == ("digits-recipe", {"name": "gaussian"}, 1)
    assert "digits-recipe" not in json.dumps(info["config"])  # it decides nothing, so it does not hinder resuming


def test_seeds_are_one_line_unless_each_is_wanted(run, runs):
    out = run("table", runs, "--radii", "0")[1]
    assert "| digits-recipe (2 seeds) | " in out
    assert " ± " in out
    each = run("table", runs, "--radii", "0", "--each", "--no-marks")[1]
    assert [line.split(" | ")[0] for line in each.splitlines()[2:4]] == ["| one", "| two"]
    assert "±" not in each
    assert "**" not in each


def test_styles_and_formats_of_tables(run, runs):
    out = run("table", runs, "--each", "--style", "catrs", "-f", "html")[1]
    assert out.startswith("<table>")
    assert ">Methods</th>" in out
    assert "unknown table style 'cat'" in refusal(run("table", runs, "--style", "cat"))
    assert "ACR" in run("table", runs, "--intervals")[1]


def test_info_tells_the_spread_of_probabilities(run, runs):
    out = run("info", runs / "one")[1]
    assert "Lower bound on p_A, quantiles over inputs: 5%: 0." in out


def test_refusals(run, runs, tmp_path):
    assert "holds 2 runs or logs; name the one" in refusal(run("compare", runs, runs / "one"))
    assert "does not exist" in refusal(run("compare", runs / "one", tmp_path / "none"))
    assert "radii '0:x' must read like" in refusal(run("compare", runs / "one", runs / "two", "--radii", "0:x"))
    assert "radii '0;1' must read like" in refusal(run("table", runs / "one", "--radii", "0;1"))
    header = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"
    for name, line in (("elsewhere", "7\t1\t1\t0.5\t1\t0:00:01\n"), ("other", "0\t99\t99\t0.5\t1\t0:00:01\n")):
        (tmp_path / name).write_text(header + line)
    assert "one and elsewhere have no input in common" in refusal(run("compare", runs / "one", tmp_path / "elsewhere"))
    assert "the label of input 0 is" in refusal(run("compare", runs / "one", tmp_path / "other"))
    assert "unknown table format" in refusal(run("compare", runs / "one", runs / "two", "-f", "xml"))
