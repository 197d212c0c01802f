"""Metadata and honest statements on the command line: export, import, tables, and statements that hold together."""

from __future__ import annotations

import csv
import io
import re
import shutil

import pytest
import torch

from smoothcert import load_run, models
from smoothcert.models import CheckpointInfo, save_checkpoint
from smoothcert.report.recompute import outcomes_of
from smoothcert.store import read_log, write_run
from smoothcert.types import Norm

CHOSEN = "valid only if the choice was made before looking at the results"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("models") / "tiny.safetensors"
    save_checkpoint(path, models.build("digits-cnn"), CheckpointInfo.of("digits-cnn", sigma=0.25))
    return path


@pytest.fixture
def certify(run, checkpoint, tmp_path):
    def call(name, *options):
        common = ["--data", "digits", "--n", 100, "--every", 100, "--run", tmp_path / name]
        code, out, err = run("certify", checkpoint, *common, *options)
        assert code == 0, err
        return out

    return call


def refusal(result):
    assert result[:2] == (2, ""), result
    assert result[2].count("\n") == 1
    return result[2]


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_an_l1_run_exported_imported_and_tabled_is_l1(run, certify, tmp_path):
    certify("one", "--noise", "uniform", "--lam", 0.5)
    assert run("export", tmp_path / "one", "-o", tmp_path / "log")[0] == 0
    assert run("import", tmp_path / "log", "-o", tmp_path / "back")[0] == 0
    stored, back = load_run(tmp_path / "one").rows(), load_run(tmp_path / "back").rows()
    for name in ("norm", "guarantee", "arithmetic", "runtime", "model", "seed", "alpha", "n"):
        assert [row[name] for row in stored] == [row[name] for row in back], name
    for place in ("one", "log", "back"):
        code, out, _ = run("table", tmp_path / place, "--radii", "0,0.1")
        assert (code, "ℓ1 radius 0.10" in out, "Norm ℓ1" in out) == (0, True, True)
    certify("two")
    sentence = refusal(run("table", tmp_path / "log", tmp_path / "two"))
    assert "log (ℓ1) and two (ℓ2) have radii in different norms" in sentence
    for command in (["compare", tmp_path / "back", tmp_path / "two"], ["plot", tmp_path / "log", tmp_path / "two"]):
        assert "different norms" in refusal(run(*command))
    code, _, err = run("report", tmp_path / "log", tmp_path / "two", "--no-images", "-o", tmp_path / "page.html")
    assert code == 0, err


def test_classic_logs_lose_what_they_have_no_column_for(run, certify, tmp_path):
    certify("mine")
    assert run("export", tmp_path / "mine", "--classic", "-o", tmp_path / "log")[0] == 0
    assert read_log(tmp_path / "log").columns == ("idx", "label", "predict", "radius", "correct", "time")
    out = run("table", tmp_path / "log", tmp_path / "mine")[1]
    assert r"| log \[unknown\] |" in out
    assert "Norm, guarantee and arithmetic of log unknown (not recorded); shown as if in ℓ2." in out
    assert "**" not in out
    _, out, err = run("table", tmp_path / "log", tmp_path / "mine", "--format", "csv")
    log, mine = rows(out)
    assert (log["norm"], log["guarantee"], log["alpha"]) == ("", "", "")
    assert (mine["norm"], mine["guarantee"], mine["alpha"], mine["expected false"]) == (
        "l2",
        "global",
        "0.001",
        "0.005",
    )
    assert "Note: Norm, guarantee and arithmetic of log unknown" in err


def test_a_user_can_state_what_a_log_does_not_tell(run, certify, tmp_path):
    certify("mine")
    run("export", tmp_path / "mine", "--classic", "-o", tmp_path / "log")
    stated = ["--norm", "l2", "--guarantee", "global"]
    assert run("import", tmp_path / "log", "-o", tmp_path / "back", *stated)[0] == 0
    back = load_run(tmp_path / "back")
    assert back.config["stated"] == {"norm": "l2", "guarantee": "global"}
    assert outcomes_of(back).norm is Norm.L2
    assert outcomes_of(back).metadata.guarantee == ("global",)
    run("export", tmp_path / "mine", "-o", tmp_path / "new")
    assert "has a column norm; leave out --norm" in refusal(
        run("import", tmp_path / "new", "-o", tmp_path / "other", *stated)
    )
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["cohen-cifar10-050/sigma_0.50", "catrs-mnistc-025/fog.tsv"])
def test_published_radii_survive_import_and_export(run, shared_data, tmp_path, name):
    log = shared_data / name
    assert run("import", log, "-o", tmp_path / "runs" / log.name)[0] == 0
    assert run("export", tmp_path / "runs" / log.name, "-o", tmp_path / log.name, "--classic")[0] == 0
    columns = [[line.split("\t")[:5] for line in file.read_text().splitlines()] for file in (log, tmp_path / log.name)]
    assert columns[0] == columns[1]
    radii = ",".join(sorted({line[3] for line in columns[0][1:] if line[2] != "-1"}, key=float)[-12:])
    # A folder named as the log, so that names are equal too.
    tables = [
        run("table", path, "--radii", radii, "--format", "csv")[1].replace(".tsv", "")
        for path in (log, tmp_path / "runs" / log.name, tmp_path / log.name)
    ]
    assert tables[0] == tables[1] == tables[2]


def test_name_noise_and_seed_of_a_log_can_be_stated(run, certify, tmp_path):
    certify("mine")
    log = tmp_path / "log"
    run("export", tmp_path / "mine", "--classic", "-o", log)
    for seed in (3, 4):
        stated = ["--name", "CAT-RS", "--sigma", 0.5, "--seed", seed]
        assert run("import", log, "-o", tmp_path / f"back-{seed}", *stated)[0] == 0
    back = load_run(tmp_path / "back-3")
    assert (back.name, back.settings.seed, back.config["noise"]["sigma"]) == ("CAT-RS", 3, 0.5)
    assert outcomes_of(back).metadata.seed == (3,)
    assert "| σ = 0.50" in run("table", tmp_path / "back-3", "--style", "cohen")[1]
    assert "| CAT-RS (2 seeds) |" in run("table", *(tmp_path / f"back-{i}" for i in (3, 4)))[1]
    out = run("table", *(tmp_path / f"back-{i}" for i in (3, 4)), "--each")[1]
    assert "| back-3 |" in out
    assert "| back-4 |" in out
    run("export", tmp_path / "back-3", "-o", tmp_path / "again")
    assert set(read_log(tmp_path / "again").table["seed"].to_pylist()) == {3}
    assert "has a column seed; leave out --seed" in refusal(
        run("import", tmp_path / "again", "-o", tmp_path / "other", "--seed", 3)
    )
    assert "2 logs are given" in refusal(run("import", log, log, "-o", tmp_path / "other", "--name", "x"))
    assert "--name must be printable" in refusal(run("import", log, "-o", tmp_path / "other", "--name", "a\nb"))
    assert not (tmp_path / "other").exists()


def test_files_that_are_not_results_do_not_stop_a_table(run, certify, tmp_path):
    certify("runs/mine")
    folder = tmp_path / "runs"
    whole = run("table", folder)
    assert whole[0] == 0
    files = {
        "empty": "",
        "notes.txt": "no log\n",
        "foreign.tsv": "idx\tname\n1\tx\n",
        "header.tsv": "idx\tlabel\tpredict\tradius\tcorrect\ttime\n",
        "cut.tsv": "idx\tlabel\tpredict\tradius\tcorrect\ttime\n0\t1",
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "started").mkdir()
    (folder / "started" / "run.json").write_text("{}")
    (folder / ".hidden").write_text("")
    with pytest.warns(UserWarning, match="is skipped") as found:
        assert run("table", folder)[:2] == whole[:2]
    skipped = sorted(str(warning.message).partition(" is skipped: ")[0] for warning in found)
    assert skipped == sorted(str(folder / name) for name in (*files, "started"))
    assert not any("\n" in str(warning.message) for warning in found)
    for name in files:  # a file that is named must be a result
        code, out, _ = run("table", folder / name)
        assert code
        assert out == ""
    shutil.rmtree(folder / "mine")
    with pytest.warns(UserWarning, match="is skipped"):
        assert "holds neither runs nor certification logs" in refusal(run("table", folder))


def test_invalid_logits_are_counted(run, tmp_path):
    (tmp_path / "nets.py").write_text(
        "import torch\n\n\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        s = x.flatten(1)[:, :10]\n"
        "        return torch.where(s[:, :1] > 0.5, torch.nan, s)\n"
    )
    common = [f"{tmp_path}/nets.py:Net", "--data", "digits", "--sigma", 0.5, "--every", 150]
    with pytest.warns(UserWarning, match=r"[0-9]+ of 800 samples had invalid logits \(NaN or infinite\)"):
        assert run("certify", *common, "--n", 100, "--run", tmp_path / "run")[0] == 0
    code, _, err = run("predict", *common, "--votes", 200, "--fixed")
    assert code == 0
    assert re.search(r"Warning: [0-9]+ of 800 samples had invalid logits", err)


def test_runs_of_earlier_versions_export_what_they_know(run, certify, tmp_path):
    certify("mine", "--seed", 3)
    stored = load_run(tmp_path / "mine")
    later = ["seed", "arithmetic", "offset", "runtime", "model", "input"]
    write_run(tmp_path / "old", stored.table().drop(later), stored.config, {})
    assert run("export", tmp_path / "old", "-o", tmp_path / "log")[0] == 0
    first = read_log(tmp_path / "log").table.to_pylist()[0]
    assert (first["norm"], first["guarantee"], first["seed"], first["alpha"]) == ("l2", "global", 3, 0.001)
    assert first["arithmetic"] is first["runtime"] is first["model"] is None
    assert "Arithmetic unknown (not recorded)." in run("table", tmp_path / "old")[1]


def test_choosing_n_or_alpha_afterwards_is_warned_about(run, certify, tmp_path):
    certify("mine")
    for format in ("md", "latex", "html", "csv"):
        code, out, err = run("table", tmp_path / "mine", "--at-n", 10, "--format", format)
        assert (code, err.count(CHOSEN)) == (0, 1), format
        assert (CHOSEN in out) == (format != "csv")
    assert "n = 10 and alpha = 0.05 chosen" in run("table", tmp_path / "mine", "--at-n", 10, "--at-alpha", 0.05)[2]
    assert CHOSEN not in "".join(run("table", tmp_path / "mine", "--at-n", 100)[1:])
    code, out, err = run("compare", tmp_path / "mine", tmp_path / "mine", "--at-alpha", 0.05)
    assert (code, CHOSEN in out, CHOSEN in err) == (0, True, True)


class TestSimultaneous:
    def test_all_statements_hold_together(self, run, certify, tmp_path):
        out = certify("together", "--simultaneous", "--alpha", 0.01)
        stored = load_run(tmp_path / "together")
        assert {row["alpha"] for row in stored.rows()} == {0.002}
        assert stored.config["procedure"]["alpha"] == 0.002
        assert stored.info["sessions"][-1]["source"]["simultaneous"] == {"alpha": 0.01, "inputs": 5}
        said = "Of the 5 statements at most 0.01 are expected to be false (alpha = 0.002 per input); all hold "
        assert said + "with probability at least 0.99." in out
        certify("together", "--simultaneous", "--alpha", 0.01)  # the same command continues
        assert len(load_run(tmp_path / "together").info["sessions"]) == 2
        certify("single", "--alpha", 0.01)
        assert {row["alpha"] for row in load_run(tmp_path / "single").rows()} == {0.01}

    def test_shards_share_alpha_among_the_inputs_of_all(self, run, certify, tmp_path):
        for number in (1, 2):
            certify(str(number), "--simultaneous", "--seed", 3, "--shard", f"{number}/2")
        code, out, err = run("merge", tmp_path / "1", tmp_path / "2", "-o", tmp_path / "united")
        assert code == 0, err
        assert "all hold with probability at least 0.999" in out
        certify("whole", "--simultaneous", "--seed", 3)
        assert load_run(tmp_path / "united").config == load_run(tmp_path / "whole").config

    def test_the_default_folder_has_another_name(self, run, checkpoint, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for options in ([], ["--simultaneous"]):
            code, _, err = run("certify", checkpoint, "--data", "digits", "--n", 50, "--every", 250, *options)
            assert code == 0, err
        plain, shared = sorted(path.name for path in (tmp_path / "runs").iterdir())
        assert shared == f"{plain}-simultaneous"

    def test_a_suite_shares_alpha_among_all_its_sets(self, run, checkpoint, tmp_path):
        options = ["--types", "identity,fog", "--severities", 1, "--every", 250, "--n", 50, "--run", tmp_path / "suite"]
        code, out, err = run("corruptions", "run", checkpoint, "--data", "digits", *options, "--simultaneous")
        assert code == 0, err
        sets = [load_run(path.parent) for path in sorted((tmp_path / "suite").glob("*/run.json"))]
        alphas = [row["alpha"] for stored in sets for row in stored.rows()]
        assert len(sets) == 2
        assert set(alphas) == {0.001 / len(alphas)}
        assert f"Of the {len(alphas)} statements at most 0.001 are expected to be false" in out

    def test_plan_shows_the_cost(self, run, tmp_path):
        code, out, _ = run("plan", "--sigma", 0.5, "--simultaneous", "--inputs", 500)
        assert code == 0
        assert "All 500 statements together at alpha = 0.001: alpha = 2e-06 for each input." in out
        assert "The largest l2 radius falls from 1.9057 to 1.8249; 1.90 times as many samples would keep it." in out
        assert "Largest l2 radius, if every vote agrees: 1.8249" in out
        alone = run("plan", "--sigma", 0.5, "--inputs", 500)[1]
        assert alone == "Largest l2 radius, if every vote agrees: 1.9057\n"
        (tmp_path / "log").write_text("idx\tlabel\tpredict\tradius\n0\t1\t1\t0.7\n1\t1\t-1\t0.0\n")
        options = ["--sigma", 0.5, "--procedure", "anytime", "--radius", 0.5, "--pilot", tmp_path / "log"]
        code, out, err = run("plan", *options, "--rate", 1000, "--inputs", 500, "--simultaneous")
        assert code == 0, err
        costs = [line.split() for line in out.splitlines() if line.startswith("anytime")]
        assert [cost[3] for cost in costs] == ["0.001", "2e-06"]
        single, together = (float(cost[4].replace(",", "")) for cost in costs)
        assert single < together < 2 * single
