"""``smoothcert train`` and ``smoothcert recipes``, as a user runs them."""

from __future__ import annotations

import csv

import pytest
import yaml

from smoothcert.models import load_checkpoint
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
        (("train", "digits-gaussian-0.25-quick", "--set", "epochs=many"), "epochs must be a whole number"),
        (("train", "digits-gaussian-0.25-quick", "--processes", "0"), "--processes must be at least 1"),
        (("train", "digits-gaussian-0.25-quick", "--threads", "0"), "--threads must be at least 1"),
        (("train", "digits-gaussian-0.25-quick", "--set", "model=lenet"), "takes images of 28×28"),
        (("train", "digits-gaussian-0.25-quick", "--set", "holdout=5000"), "none is left"),
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
