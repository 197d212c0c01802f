"""Several models on the command line: votes, weights, consensus, denoisers, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch

from smoothcert import Cohen, Consensus, Ensemble, Gaussian, Smoothed, data, load_run, models
from smoothcert.classifiers import Denoised
from smoothcert.models import CheckpointInfo, save_checkpoint


def save(folder, name, *, seed, sigma=0.25, classes=10):
    torch.manual_seed(seed)
    model = models.build("digits-cnn", num_classes=classes)
    info = CheckpointInfo.of("digits-cnn", num_classes=classes, sigma=sigma)
    save_checkpoint(folder / f"{name}.safetensors", model, info)
    return folder / f"{name}.safetensors"


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    folder = tmp_path_factory.mktemp("members")
    return [save(folder, name, seed=seed) for seed, name in enumerate("abc")]


def counts_of(model, index=0, n=200):
    x = data.load("digits", split="test")[index][0]
    smoothed = Smoothed(model, Gaussian(0.25, grid=256), runtime="eager")
    return list(smoothed.certify(x, Cohen(n=n), index=index, seed=0).counts)


@pytest.mark.parametrize(
    ("options", "make"),
    [
        ([], Ensemble),
        (["--vote", "hard"], lambda m: Ensemble(m, "hard")),
        (["--vote", "softmax"], lambda m: Ensemble(m, "softmax")),
        (["--weights", "0.7,0.2,0.1"], lambda m: Ensemble(m, "weighted", [0.7, 0.2, 0.1])),
        (["--first", "2"], lambda m: Consensus(m, 2)),
        (["--first", "2", "--margin", "0.05"], lambda m: Consensus(m, 2, margin=0.05)),
    ],
)
def test_models_named_together_certify_as_one(run, members, tmp_path, options, make):
    common = ["--data", "digits", "--n", 200, "--every", 50, "--seed", 0, "--runtime", "eager"]
    code, out, err = run("certify", *members, *common, *options, "--run", tmp_path / "run")
    assert code == 0, err
    rows = load_run(tmp_path / "run").rows()
    assert rows[0]["counts"] == counts_of(make([models.load_model(path) for path in members]))
    assert (rows[0]["consensus"] is not None) == ("--first" in options)
    assert ("decided by the first members alone (KCR)" in out) == ("--first" in options)


def test_ensembles_get_run_folders_of_their_own(run, members, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ["--data", "digits", "--n", 100, "--stop", 1]
    for options in ([], ["--vote", "hard"], ["--first", 2], ["--first", 2, "--margin", 0.5]):
        assert run("certify", *members, *common, *options)[0] == 0
    assert run("certify", members[0], *common)[0] == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "a-3-consensus-2-digits-gaussian-0.25-grid-256-cohen-n-100-stop-1",
        "a-3-consensus-2-margin-0.5-digits-gaussian-0.25-grid-256-cohen-n-100-stop-1",
        "a-3-hard-digits-gaussian-0.25-grid-256-cohen-n-100-stop-1",
        "a-3-soft-digits-gaussian-0.25-grid-256-cohen-n-100-stop-1",
        "a-digits-gaussian-0.25-grid-256-cohen-n-100-stop-1",
    ]


def test_a_denoiser_goes_in_front_of_the_model(run, members, tmp_path):
    torch.manual_seed(3)
    denoiser = models.build_denoiser("dncnn-small")
    path = tmp_path / "denoiser.safetensors"
    save_checkpoint(path, denoiser, CheckpointInfo.of("dncnn-small", sigma=0.25))
    common = ["--data", "digits", "--n", 200, "--stop", 1, "--seed", 0, "--runtime", "eager"]
    code, _, err = run("certify", members[0], "--denoiser", path, *common, "--run", tmp_path / "run")
    assert code == 0, err
    model = Denoised(models.load_model(members[0]), models.load_denoiser(path))
    assert load_run(tmp_path / "run").rows()[0]["counts"] == counts_of(model)


def test_ensemble_orders_and_weighs_members(run, members):
    code, out, err = run("ensemble", *members, "--data", "digits", "--split", "train", "--every", 20)
    assert code == 0, err
    shown = re.findall(r"^\s*([\d.]+)%\s+([\d.]+)\s+(\S+)$", out, flags=re.MULTILINE)
    accuracies = [float(accuracy) for accuracy, _, _ in shown]
    assert accuracies == sorted(accuracies, reverse=True)
    assert sum(float(weight) for _, weight, _ in shown) == pytest.approx(1, abs=2e-3)
    assert {path for _, _, path in shown} == {str(path) for path in members}
    command = next(line for line in out.splitlines() if "--vote weighted" in line).split()[1:]
    assert run(*command, "--n", 100, "--stop", 1, "--run", members[0].parent / "weighted")[0] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["{a}", "--vote", "soft"], "--vote is for several members"),
        (["{a}", "--first", "1"], "--first is for several members"),
        (["{a}", "{b}", "--margin", "1"], "give --first too"),
        (["{a}", "{b}", "--first", "1", "--margin", "-1"], "not negative, got -1"),
        (["{a}", "{b}", "--vote", "sofft"], "did you mean 'soft'"),
        (["{a}", "{b}", "--vote", "weighted"], "needs weights"),
        (["{a}", "{b}", "--vote", "weighted", "--first", "2"], "needs --weights"),
        (["{a}", "{b}", "--vote", "hard", "--first", "2"], "votes softly, not by hard"),
        (["{a}", "{b}", "--weights", "1,2,3"], "3 weights for 2 members"),
        (["{a}", "{b}", "--weights", "0,0"], "all weights are zero"),
        (["{a}", "{b}", "--weights", "x,y"], "weights must be numbers"),
        (["{a}", "{b}", "--first", "3"], "between 1 and the number of members, 2; got 3"),
        (["{a}", "{b}", "--denoiser", "x", "--denoiser", "y"], "several models or several denoisers, not both"),
        (["{a}", "{five}"], "same classes, but have [5, 10]"),
        (["{a}", "{loud}"], "different noise"),
        ([], "Missing argument 'MODEL'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(run, members, tmp_path, options, words):
    files = {
        "a": members[0],
        "b": members[1],
        "five": save(tmp_path, "five", seed=9, classes=5),
        "loud": save(tmp_path, "loud", seed=9, sigma=1.0),
    }
    given = [option.format(**files) for option in options]
    code, out, err = run("certify", *given, "--data", "digits", "--stop", 1, "--run", tmp_path / "run")
    assert code == 2, (out, err)
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_one_model_is_no_ensemble(run, members):
    code, _, err = run("ensemble", members[0], "--data", "digits")
    assert code == 2
    assert "name at least two models" in err


def test_info_compares_a_run_with_another(run, members, tmp_path):
    common = ["--data", "digits", "--n", 300, "--every", 90, "--runtime", "eager"]
    assert run("certify", *members, *common, "--run", tmp_path / "all")[0] == 0
    assert run("certify", *members, *common, "--run", tmp_path / "two", "--first", 2)[0] == 0
    code, out, err = run("info", tmp_path / "two", "--against", tmp_path / "all")
    assert code == 0, err
    assert re.search(r"1\.0 × fewer and [\d.]+ × faster than all\.", out)
    assert "(KCR)" in out
    code, _, err = run("info", members[0], "--against", tmp_path / "all")
    assert code == 2
    assert "is not a run folder" in err
