"""``smoothcert train`` and ``smoothcert recipes``, as a user runs them."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from smoothcert.models import describe, load_checkpoint
from smoothcert.store import load_run
from smoothcert.training.recipes import load_recipe, recipe_to_yaml


@pytest.fixture(autouse=True)
def own_folder(monkeypatch, tmp_path):
    """Trainings go to folders under the current one."""
    monkeypatch.chdir(tmp_path)


SHORT = ("--set", "epochs=2", "--set", "votes=20", "--set", "holdout=50")


def test_train_writes_models_that_carry_their_recipe_and_continues(run, tmp_path):
    code, out, _ = run("train", "digits-gaussian-0.25-quick", *SHORT)
    assert code == 0
    assert "2 epochs" in out
    assert "Next: smoothcert certify models/digits-gaussian-0.25-quick --data digits" in out
    folder = tmp_path / "models" / "digits-gaussian-0.25-quick"
    info = load_checkpoint(folder).info
    assert info.sigma == 0.25
    assert info.extra["recipe"] == load_recipe(
        "digits-gaussian-0.25-quick", ["epochs=2", "votes=20", "holdout=50"]
    ).model_dump(mode="json")
    written = (folder / "last.safetensors").stat().st_mtime_ns
    assert run("train", "digits-gaussian-0.25-quick", *SHORT)[0] == 0
    assert (folder / "last.safetensors").stat().st_mtime_ns == written
    code, _, err = run("train", "digits-gaussian-0.25-quick", "--set", "epochs=3")
    assert code == 2
    assert "--fresh" in err
    assert run("train", "digits-gaussian-0.25-quick", *SHORT, "--set", "seed=1", "--fresh")[0] == 0
    assert load_checkpoint(folder).info.extra["recipe"]["seed"] == 1


def test_catrs_makes_its_soft_labels_and_uses_them_again(run, tmp_path):
    teacher = tmp_path / "teacher.yaml"
    teacher.write_text(recipe_to_yaml(load_recipe("digits-gaussian-0.25-quick", ["epochs=2", "name=teacher"])))
    change = ("--set", f"soft_labels.recipe={teacher}", "--set", "soft_labels.n=20")
    code, _, _ = run("train", "digits-catrs-0.25-quick", *SHORT, *change)
    assert code == 0
    labels = list((tmp_path / "models" / "soft-labels" / "teacher-0.25-20").glob("part-*.parquet"))
    assert labels
    before = {file: file.stat().st_mtime_ns for file in [*labels, tmp_path / "models" / "teacher" / "last.safetensors"]}
    assert run("train", "digits-catrs-0.25-quick", *SHORT, *change, "-o", "models/other", "--set", "seed=1")[0] == 0
    assert {file: file.stat().st_mtime_ns for file in before} == before
    with (tmp_path / "models" / "other" / "history.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2


def test_recipes_are_listed_and_shown(run, tmp_path):
    code, out, _ = run("recipes", "list", "mnist-catrs")
    assert code == 0
    assert "mnist-catrs-0.50-quick" in out
    assert "macer" not in out
    code, out, _ = run("recipes", "show", "mnist-catrs-0.50", "--set", "method.lam=2")
    assert code == 0
    assert yaml.safe_load(out)["method"]["lam"] == 2.0
    (tmp_path / "mine.yaml").write_text(out)
    assert load_recipe("mine.yaml").method["lam"] == 2.0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("train", "digits-gausian-0.25-quick"), "did you mean 'digits-gaussian-0.25-quick'"),
        (("train", "digits-gaussian-0.25-quick", "--set", "epoch=3"), "did you mean 'epochs'"),
        (("train", "digits-gaussian-0.25-quick", "--set", "epochs=many"), "epochs must be a valid integer"),
        (("train", "digits-gaussian-0.25-quick", "--processes", "0"), "--processes must be at least 1"),
        (("train", "digits-gaussian-0.25-quick", "--threads", "0"), "--threads must be at least 1"),
        (("train", "digits-gaussian-0.25-quick", "--set", "model=lenet"), "accepts images of 28×28"),
        (("train", "digits-gaussian-0.25-quick", "--set", "holdout=5000"), "holdout=5000 leaves none"),
        (("recipes", "list", "imagenet-nothing"), "no recipe's name contains"),
        (("recipes", "show", "mnist"), "unknown recipe 'mnist'"),
    ],
)
def test_wrong_use_is_one_sentence(run, tmp_path, arguments, sentence):
    code, _, err = run(*arguments)
    assert code == 2
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("*.safetensors"))


def test_help_teaches(run):
    for arguments in (("train",), ("recipes", "list"), ("recipes", "show")):
        code, out, _ = run(*arguments, "--help")
        assert code == 0
        assert "Example" in out


NETS = """
from torch import nn

def small(width=4, num_classes=10, in_channels=1):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, width), nn.ReLU(), nn.Linear(width, num_classes))

def fixed():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))
"""
OWN = "own_nets.py:small,width=16"


def test_an_own_model_is_trained_and_certified_by_the_commands_printed(run, tmp_path):
    (tmp_path / "own_nets.py").write_text(NETS)
    settings = (*SHORT, "--normalize", "0.5/0.5", "--set", "optimizer=adamw", "--set", "rate=0.01")
    code, out, err = run("train", "digits-gaussian-0.25-quick", "--model", OWN, *settings, "-o", "models/mine")
    assert code == 0, err
    weights = "models/mine/best.safetensors"
    following = f"certify {OWN},weights={weights} --data digits"
    assert f"Next: smoothcert {following}\n" in out
    few = ("--every", "400", "--procedure", "cohen", "--n", "100", "--seed", "0")
    code, _, err = run(*following.split(), *few, "--run", "runs/a")  # with the noise of the training
    assert code == 0, err
    code, _, err = run("certify", "models/mine", "--data", "digits", *few)
    assert code == 1
    assert f"has the weights of {OWN}, which is not one of our architectures; pass architecture=, or on" in err
    code, _, err = run("certify", "models/mine", "--arch", OWN, "--data", "digits", *few, "--run", "runs/b")
    assert code == 0, err
    assert load_run("runs/a").table(["radius"]) == load_run("runs/b").table(["radius"])
    assert load_run("runs/a").config["noise"] == {"name": "gaussian", "sigma": 0.25, "grid": 256}
    code, _, err = run("train", "digits-gaussian-0.25-quick", "--model", "own_nets.py:fixed", *SHORT, "-o", "models/f")
    assert code == 2
    assert "the model has 7 classes and the dataset 10" in err
    assert not (tmp_path / "models" / "f").exists()


def test_a_recipe_names_an_own_model_and_other_data(run, tmp_path):
    (tmp_path / "own_nets2.py").write_text(NETS)
    recipe = load_recipe("digits-gaussian-0.25-quick", ["epochs=1", "holdout=20", "votes=10", "name=mine"])
    values = {**yaml.safe_load(recipe_to_yaml(recipe)), "model": "own_nets2.py:small,width=3"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values))
    images, labels = np.random.default_rng(0).random((40, 1, 8, 8), dtype=np.float32), np.arange(40) % 4
    np.savez(tmp_path / "four.npz", x=images, y=labels)
    code, _, err = run("train", "mine.yaml", "--data", "four.npz")
    assert code == 2
    assert "mine.yaml names code as its model; if you trust it, give --model own_nets2.py:small,width=3 too." in err
    own = ("--model", "own_nets2.py:small,width=3")
    code, out, err = run("train", "mine.yaml", *own, "--data", "four.npz")
    assert code == 0, err
    assert "Next: smoothcert certify own_nets2.py:small,width=3,weights=models/mine/best.safetensors" in out
    assert "--data four.npz" in out
    assert describe("models/mine").info.num_classes == 4
    code, _, err = run("train", "mine.yaml", *own)
    assert code == 2
    assert "it differs in dataset, inputs" in err
    code, _, err = run("train", "mine.yaml", "--model", "own_nets2.py:tall", "-o", "models/other")
    assert code == 2
    assert "own_nets2.py has no tall" in err


def test_the_commands_of_the_documentation_run(run, tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    section = text.partition("## Your own model and data")[2].partition("\n## ")[0]
    (tmp_path / "nets.py").write_text(section.partition("# nets.py\n")[2].partition("```")[0])
    lines = re.findall("^smoothcert (.*)$", section, flags=re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        fewer = SHORT if line.startswith("train") else ("--procedure", "cohen", "--n", "100", "--fresh")
        code, _, err = run(*line.split(), *fewer)
        assert code == 0, err
