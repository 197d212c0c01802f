"""Who answers, on the command line: ACES, a sigma for every input, and training data for selectors."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
import torch

from smoothcert import Aces, Cohen, Gaussian, Smoothed, certify_dataset, data, load_run, models
from smoothcert.models import CheckpointInfo, save_checkpoint

SMALL = ["--data", "digits", "--every", 60, "--seed", 0, "--runtime", "eager"]


def save(folder, name, *, seed, classes=10):
    torch.manual_seed(seed)
    model = models.build("digits-cnn", num_classes=classes)
    info = CheckpointInfo.of("digits-cnn", num_classes=classes, sigma=0.25)
    save_checkpoint(folder / f"{name}.safetensors", model, info)
    return folder / f"{name}.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("certifier", "core")):
        save(made, name, seed=seed)
    save(made, "selector", seed=5, classes=2)
    save(made, "wrong", seed=6, classes=3)
    return made


@pytest.mark.parametrize("network", [False, True])
def test_aces_keeps_votes_from_which_every_threshold_follows(run, folder, tmp_path, network):
    model, core = folder / "certifier.safetensors", folder / "core.safetensors"
    chosen = ["--selector-model", folder / "selector.safetensors"] if network else []
    options = [
        "--procedure",
        "aces",
        "--core-model",
        core,
        "--theta",
        0.9,
        "--n",
        300,
        "--run",
        tmp_path / "run",
        *chosen,
    ]
    code, _, err = run("certify", model, *SMALL, *options)
    assert code == 0, err
    code, out, err = run("aces", "--runs", tmp_path / "run", "--theta", "0.1:1:0.1", "--radii", "0,0.1", "-f", "csv")
    assert code == 0, err
    lines = {float(line["theta"]): line for line in csv.DictReader(io.StringIO(out))}
    digits = data.load("digits", split="test")
    smoothed = Smoothed(models.load_model(model), Gaussian(0.25, grid=256), runtime="eager")
    selector = models.load_model(chosen[1]) if network else None
    for theta in (0.1, 0.9, 1.0):
        procedure = Aces(core=models.load_model(core), selector=selector, theta=theta, n=300)
        inputs = ((i, digits[i][0]) for i in range(0, len(digits), 60))
        given = [(c, digits[job.index][1]) for job, c in smoothed.run(inputs, procedure, procedure.certify, seed=0)]
        right = np.mean([c.label == label for c, label in given])
        assert float(lines[theta]["accuracy 0.00"]) == pytest.approx(100 * right, abs=0.06)
        sure = np.mean([c.routing.choice == 1 for c, _ in given])
        assert float(lines[theta]["selection 0.00"]) == pytest.approx(100 * sure, abs=0.06)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--procedure", "aces", "--theta", 1.5], "theta must lie between 0 and 1"),
        (["--theta", 0.5], "--theta is an option of aces, not of cohen"),
        (["--core-model", "core.safetensors"], "--core-model is an option of aces"),
        (["--sigma-steps", 5, "--sigma-grid", "usual"], "not both"),
        (["--memory", "balls.safetensors"], "--memory is for a sigma chosen for each input"),
        (["--sigma-steps", 5, "--noise", "uniform", "--lam", 1], "Gaussian noise only"),
    ],
)
def test_refusals(run, folder, tmp_path, options, words):
    code, _, err = run("certify", folder / "certifier.safetensors", *SMALL, *options, "--run", tmp_path / "run")
    assert code == 2
    assert words in " ".join(err.split())
    assert not (tmp_path / "run").exists()


def test_a_core_of_other_classes_is_refused_before_anything_is_written(run, folder, tmp_path):
    options = ["--procedure", "aces", "--core-model", folder / "wrong.safetensors", "--run", tmp_path / "run"]
    code, _, err = run("certify", folder / "certifier.safetensors", *SMALL, *options)
    assert code == 2
    assert "use a core with the same classes" in " ".join(err.split())
    assert not (tmp_path / "run").exists()


def test_a_chosen_sigma_is_kept_and_warned_of(run, folder, tmp_path):
    model = folder / "certifier.safetensors"
    code, _, err = run("certify", model, *SMALL, "--sigma-steps", 3, "--n", 100, "--run", tmp_path / "run")
    assert code == 0
    assert "Warning" in err
    rows = load_run(tmp_path / "run").rows()
    assert {row["guarantee"] for row in rows} == {"pointwise"}
    assert len({row["sigma"] for row in rows}) > 1
    code, _, err = run("certify", model, *SMALL, "--sigma-grid", "0.1,0.3", "--n", 100, "--run", tmp_path / "grid")
    assert code == 0
    assert {row["sigma"] for row in load_run(tmp_path / "grid").rows()} <= {0.1, 0.3}


def test_a_memory_makes_answers_consistent_and_is_needed_to_go_on(run, folder, tmp_path):
    model, memory = folder / "certifier.safetensors", tmp_path / "balls.safetensors"
    options = ["--sigma-steps", 3, "--n", 2000, "--run", tmp_path / "run", "--memory", memory]
    code, _, err = run("certify", model, *SMALL, *options)
    assert code == 0, err
    assert "Warning" not in err
    rows = load_run(tmp_path / "run").rows()
    assert {row["guarantee"] for row in rows} == {"memory"}
    assert memory.exists()
    code, _, _ = run("certify", model, *SMALL, *options)
    assert code == 0
    assert load_run(tmp_path / "run").rows() == rows
    elsewhere = [*options[:4], "--run", tmp_path / "other", *options[-2:]]
    code, _, err = run("certify", folder / "core.safetensors", *SMALL, *elsewhere)
    assert code == 1
    assert "another classifier" in " ".join(err.split())
    assert any(row["predict"] >= 0 for row in rows)
    memory.unlink()
    code, _, err = run("certify", model, *SMALL, *options)
    assert code == 1
    assert "use the memory they were made with" in " ".join(err.split())


def test_a_router_certifies_with_the_expert_that_the_selector_chooses(run, folder, tmp_path):
    experts = [folder / "certifier.safetensors", folder / "core.safetensors"]
    command = ["certify", *experts, "--router", folder / "selector.safetensors", *SMALL, "--n", 300]
    code, _, err = run(*command, "--run", tmp_path / "run")
    assert code == 0, err
    smoothed = [Smoothed(models.load_model(path), Gaussian(0.25, grid=256), runtime="eager") for path in experts]
    selector = models.load_model(folder / "selector.safetensors")
    router = Smoothed(selector, Gaussian(0.25, grid=256), experts=smoothed, runtime="eager")
    same = certify_dataset(router, data.load("digits"), Cohen(n=300), run=tmp_path / "same", every=60, seed=0)
    kept = ("index", "predict", "radius", "guarantee", "counts")
    rows = [{key: row[key] for key in kept} for row in load_run(tmp_path / "run").rows()]
    assert rows == [{key: row[key] for key in kept} for row in same.rows()]
    assert {row["guarantee"] for row in rows} == {"routed"}
    code, out, err = run(*command, "--vote", "soft")
    assert (code, out, "--router chooses one model" in err) == (2, "", True)
    code, out, err = run(*command, "--sigma-steps", 3)
    assert (code, out, "sigma cannot be chosen for a selector" in err) == (2, "", True)


def test_training_data_of_selectors(run, folder, tmp_path):
    for name in ("certifier", "core"):
        options = ["--split", "train", "--n", 200, "--run", tmp_path / name]
        assert run("certify", folder / f"{name}.safetensors", *SMALL, *options)[0] == 0
    rows = load_run(tmp_path / "certifier").rows()
    common = ["--data", "digits", "--split", "train"]
    code, _, err = run("selection", tmp_path / "certifier", *common, "--eta", 0.05, "-o", tmp_path / "aces.npz")
    assert code == 0, err
    made = data.load(str(tmp_path / "aces.npz"))
    assert made.class_names == ("core", "certify")
    assert [made[i][1] for i in range(len(made))] == [int(r["counts"][r["label"]] > 0.05 * 200) for r in rows]
    digits = data.load("digits", split="train")
    assert all(torch.equal(made[i][0], digits[row["index"]][0]) for i, row in enumerate(rows))

    code, _, err = run("selection", tmp_path / "certifier", tmp_path / "core", *common, "-o", tmp_path / "best.npz")
    assert code == 0, err
    best = data.load(str(tmp_path / "best.npz"))
    for i, pair in enumerate(zip(rows, load_run(tmp_path / "core").rows(), strict=True)):
        radii = [row["radius"] if row["correct"] else 0.0 for row in pair]
        shares = [row["counts"][row["label"]] for row in pair]
        if max(radii) > 0 and radii[0] != radii[1]:
            assert best[i][1] == int(np.argmax(radii))
        elif max(radii) == 0 and shares[0] != shares[1]:
            assert best[i][1] == int(np.argmax(shares))
    settings = ["--set", f"dataset={tmp_path / 'aces.npz'}", "--set", "epochs=1", "--set", "holdout=0"]
    code, _, err = run("train", "digits-gaussian-0.25-quick", *settings, "-o", tmp_path / "trained")
    assert code == 0, err
    assert models.describe(tmp_path / "trained" / "last.safetensors").info.num_classes == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--eta", 1.0], "eta must lie strictly between 0 and 1"),
        (["--split", "test"], "ends before it"),
        (["-o", "labels.npy"], "must end with .npz"),
    ],
)
def test_selection_refuses(run, folder, tmp_path, options, words):
    smoothed = Smoothed(models.load_model(folder / "certifier.safetensors"), Gaussian(0.25), runtime="eager")
    digits = data.load("digits", split="train")
    certify_dataset(smoothed, digits, Cohen(n=50), run=tmp_path / "run", every=700, start=700, progress=False, seed=0)
    arguments = {"-o": tmp_path / "out.npz", "--split": "train", **dict(zip(options[::2], options[1::2], strict=True))}
    flat = [part for pair in arguments.items() for part in pair]
    code, _, err = run("selection", tmp_path / "run", "--data", "digits", *flat)
    assert code == 2
    assert words in " ".join(err.split())
