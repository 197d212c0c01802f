"""Noises from training to certificates: recipes, checkpoints, the command line, and what is refused on the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smoothcert import Cohen, Smoothed, certify_dataset, data, load_run, models
from smoothcert.models import CheckpointInfo, load_checkpoint, save_checkpoint
from smoothcert.noise import Discrete, Gaussian, Uniform
from smoothcert.report.recompute import outcomes_of
from smoothcert.stats import lower_bound
from smoothcert.store import Result
from smoothcert.training import METHODS, train
from smoothcert.training.recipes import load_recipe
from smoothcert.training.run import train_recipe
from smoothcert.types import Norm, UsageError

EXACT = {
    "digits-gaussian-0.25-quick": Gaussian(0.25, grid=256),
    "digits-uniform-0.50-quick": Uniform(0.5, grid=256),
}
SHORT = ["epochs=4", "holdout=50", "votes=40"]
RECIPES = {
    "digits-gaussian-0.25-quick": Gaussian(0.25),
    "digits-uniform-0.50-quick": Uniform(0.5),
    "digits-discrete-0.80-quick": Discrete(0.8, 16),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a model for each noise, trained in seconds."""
    folder = tmp_path_factory.mktemp("models")
    for name in RECIPES:
        history = train_recipe(load_recipe(name, SHORT), folder / name, progress=False)
        assert history[-1]["loss"] < 0.8 * history[0]["loss"]
        assert history[-1]["accuracy"] > 0.5
    return folder


def refusal(result: tuple[int, str, str], code: int = 2) -> str:
    """The one sentence on stderr of a command that was refused."""
    assert result[0] == code, result
    assert result[1] == ""
    assert result[2].startswith("smoothcert: ")
    assert result[2].count("\n") == 1
    return result[2]


@pytest.mark.parametrize("name", RECIPES)
def test_training_writes_the_noise_and_certifying_takes_it(run, trained, tmp_path, name):
    noise, folder = RECIPES[name], trained / name
    info = load_checkpoint(folder).info
    assert info.noise == noise.config()  # trained in floating point
    assert info.sigma == getattr(noise, "sigma", None)
    noise = EXACT.get(name, noise)  # and certified on the grid of the digits
    command = ["certify", folder, "--data", "digits", "--n", 300, "--every", 100]
    for norm in noise.norms:
        place = tmp_path / norm.value
        code, out, err = run(*command, "--norm", norm.value, "--run", place)
        assert code == 0, err
        stored = load_run(place)
        assert stored.config["noise"] == noise.config()
        assert stored.config["procedure"]["norm"] == norm.value
        assert {row["norm"] for row in stored.rows()} == {norm.value}
        assert {(row["arithmetic"], row["offset"]) for row in stored.rows()} == {("exact", 0.0)}  # k/16 is exact
        assert outcomes_of(stored).norm is norm
        named = {Norm.L0: "ℓ0 radius", Norm.L1: "ℓ1 radius", Norm.LINF: "ℓ∞ radius"}
        assert named.get(norm, "ACR | 0.00") in out.splitlines()[0]
        for row in stored.rows():
            assert row["radius"] == noise.radius(row["p_lower"], norm, 64)
        assert stored.dimension == 64
        limit = Result(stored.name, stored).sampling_limit
        assert limit == noise.radius(lower_bound(300, 300, 0.001), norm, 64)
        assert limit >= max(row["radius"] for row in stored.rows())
    if len(noise.norms) > 1:
        both = [tmp_path / norm.value for norm in noise.norms]
        sentence = refusal(run("table", *both))
        assert "different norms and cannot be compared" in sentence
        assert "ℓ∞" in sentence
        assert "different norms" in refusal(run("plot", *both, "-o", tmp_path / "curve.png"))
    code, out, err = run("predict", folder, "--data", "digits", "--every", 100, "--votes", 100)
    assert code == 0, err
    assert len(out.splitlines()) == 6
    code, out, err = run("info", folder)
    assert f"name: {noise.name}" in out


def test_default_run_folders_tell_noises_and_norms_apart(run, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["certify", trained / "digits-uniform-0.50-quick" / "best.safetensors", "--data", "digits", "--n", 50]
    for norm in ("l1", "linf"):
        assert run(*command, "--stop", 1, "--norm", norm)[0] == 0
    assert {folder.name for folder in (tmp_path / "runs").iterdir()} == {
        f"best-digits-uniform-0.5-grid-256-cohen-norm-{norm}-n-50-stop-1" for norm in ("l1", "linf")
    }


@pytest.mark.parametrize(
    ("arguments", "config"),
    [
        (["--sigma", 0.5], {"name": "gaussian", "sigma": 0.5, "grid": 256}),
        (["--noise", "gaussian", "--sigma", 0.5, "--float"], {"name": "gaussian", "sigma": 0.5}),
        (["--lam", 0.5, "--exact"], {"name": "uniform", "lam": 0.5, "grid": 256}),
        (["--noise", "uniform", "--lam", 2, "--float"], {"name": "uniform", "lam": 2.0}),
        (["--keep", 0.7, "--levels", 16], {"name": "discrete", "keep": 0.7, "levels": 16}),
    ],
)
def test_a_noise_is_chosen_on_the_command_line(run, trained, tmp_path, arguments, config):
    model = trained / "digits-uniform-0.50-quick"
    code, _, err = run(
        "certify", model, "--data", "digits", "--stop", 2, "--n", 50, "--run", tmp_path / "run", *arguments
    )
    assert code == 0, err
    assert load_run(tmp_path / "run").config["noise"] == config


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--noise", "uniforn", "--lam", "1"], "unknown noise 'uniforn'; did you mean 'uniform'"),
        (["--noise", "uniform"], "uniform needs --lam"),
        (["--noise", "discrete"], "discrete needs --keep and --levels"),
        (["--keep", "0.8"], "discrete needs --levels"),
        (["--noise", "uniform", "--sigma", "1"], "--sigma is an option of gaussian, not of uniform"),
        (["--sigma", "1", "--lam", "1"], "--lam is an option of uniform, not of gaussian"),
        (["--lam", "0"], "lam must be a positive number"),
        (["--keep", "0.4", "--levels", "1"], "keep must be above 1/2"),
        (["--keep", "0.8", "--levels", "0"], "levels must be a whole number"),
        (["--norm", "l2"], "uniform noise does not certify the norm 'l2'; it certifies: l1, linf"),
        (["--norm", "l7"], "does not certify the norm 'l7'; it certifies: l1, linf"),
        (["--sigma", "1", "--norm", "l0"], "gaussian noise does not certify the norm 'l0'; it certifies: l2, linf"),
        (["--keep", "0.8", "--levels", "1"], "values of the input, such as"),
        (["--procedure", "anytime", "--radius", "0.9"], "l1 radius 0.9 cannot be certified"),
        (["--sigma", "1000"], "spans 2.56e+05 steps, more than the 131072 that can be drawn exactly"),
        (["--keep", "0.8", "--levels", "16", "--exact"], "discrete noise is always drawn exactly; leave out --exact"),
    ],
)
def test_certify_refuses_in_one_sentence(run, trained, tmp_path, arguments, match):
    model = trained / "digits-uniform-0.50-quick"
    result = run("certify", model, "--data", "digits", "--run", tmp_path / "run", *arguments)
    assert match in refusal(result)
    assert not (tmp_path / "run").exists()


def test_an_unknown_noise_in_a_checkpoint_is_told(run, tmp_path):
    for number, (noise, match) in enumerate(
        [
            ({"name": "laplace", "scale": 1.0}, "a noise that cannot be used: unknown noise 'laplace'"),
            ({"name": "uniform", "lam": -1.0}, "a noise that cannot be used: lam must be"),
        ]
    ):
        path = tmp_path / f"{number}.safetensors"
        save_checkpoint(path, models.build("digits-cnn"), CheckpointInfo.of("digits-cnn", noise=noise))
        assert match in refusal(run("certify", path, "--data", "digits"), 1)
        assert run("predict", path, "--data", "digits", "--lam", 0.5, "--stop", 1, "--votes", 20)[0] == 0
    save_checkpoint(tmp_path / "none.safetensors", models.build("digits-cnn"), CheckpointInfo.of("digits-cnn"))
    sentence = refusal(run("certify", tmp_path / "none.safetensors", "--data", "digits"))
    assert "give --sigma for Gaussian noise, or another --noise and its settings" in sentence


def test_attack_is_about_l2_only(run, trained, tmp_path):
    gaussian, uniform = (trained / f"digits-{name}-quick" for name in ("gaussian-0.25", "uniform-0.50"))
    command = ["--data", "digits", "--radii", "0.1", "--max", 1, "--steps", 1, "--copies", 2, "--n", 50]
    assert "the attack works in l2 only, got --norm linf; leave it out" in refusal(
        run("attack", gaussian, *command, "--norm", "linf")
    )
    assert "which uniform noise does not certify (it certifies l1, linf)" in refusal(run("attack", uniform, *command))
    code, _, err = run("attack", gaussian, *command, "--norm", "l2", "--n", 100)
    assert code == 0, err
    for arithmetic in ("--exact", "--float"):  # of a run, the attack takes the noise as it was drawn
        place = tmp_path / arithmetic
        certify = ["certify", gaussian, "--data", "digits", "--n", 100, "--stop", 2, "--run", place]
        assert run(*certify, arithmetic)[0] == 0
        code, _, err = run("attack", gaussian, *command, "--run", place)
        assert code == 0, err


def test_data_off_any_grid_is_certified_in_floating_point(run, trained, tmp_path):
    images, labels = data.load("digits", split="test").arrays()
    np.savez(tmp_path / "own.npz", x=images.numpy()[:3] * 0.9, y=labels.numpy()[:3])
    command = ["certify", trained / "digits-gaussian-0.25-quick", "--data", tmp_path / "own.npz", "--n", 50]
    assert "exact noise needs data on a known grid" in refusal(run(*command, "--run", tmp_path / "run", "--exact"))
    code, _, err = run(*command, "--run", tmp_path / "run")
    assert code == 0, err
    assert load_run(tmp_path / "run").config["noise"] == {"name": "gaussian", "sigma": 0.25}
    assert {row["arithmetic"] for row in load_run(tmp_path / "run").rows()} == {"float"}


def test_training_is_in_floating_point():
    with pytest.raises(UsageError, match=r"unknown setting 'noise.grid'; .*Known: noise.name, noise.sigma"):
        load_recipe("digits-gaussian-0.25-quick", ["noise.grid=255"])


def test_plan_names_the_norm(run):
    assert "Largest l2 radius, if every vote agrees: 1.9057" in run("plan", "--sigma", 0.5)[1]
    assert "Largest l1 radius, if every vote agrees: 0.4999" in run("plan", "--lam", 0.5)[1]
    code, out, _ = run("plan", "--noise", "discrete", "--keep", 0.8, "--levels", 1, "--radius", 3)
    assert code == 0
    assert "Largest l0 radius, if every vote agrees: 9\n" in out
    assert "Probability the target needs: 0.992188" in out
    code, out, _ = run("plan", "--lam", 1, "--norm", "linf", "--dimension", 784)
    assert code == 0
    assert "Largest linf radius, if every vote agrees: 0.00" in out
    assert "give the dimension, such as 784" in refusal(run("plan", "--sigma", 1, "--norm", "linf"))
    assert "a plan needs a noise; give --sigma" in refusal(run("plan"))
    assert "does not certify the norm 'l2'" in refusal(run("plan", "--lam", 1, "--norm", "l2"))


@pytest.mark.parametrize("name", ["digits-uniform-0.50-quick", "digits-discrete-0.80-quick"])
@pytest.mark.parametrize("method", ["macer", "consistency", "stability"])
def test_methods_that_only_look_at_votes_train_under_any_noise(tmp_path, name, method):
    short = [*SHORT, "epochs=1", f"method={method}", "holdout=10"]
    history = train_recipe(load_recipe(name, short), tmp_path / "model", progress=False)
    assert np.isfinite(history[-1]["loss"])


def test_a_method_refuses_noise_that_does_not_suit_it():
    x, y = torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.long)
    for name in ("smoothadv", "smoothmix"):
        with pytest.raises(UsageError, match=f"{name} moves inputs"):
            train(models.build("digits-cnn"), (x, y), noise=Discrete(0.8, 1), method=METHODS[name](), progress=False)


@pytest.mark.parametrize("method", ["smoothadv", "smoothmix"])
def test_methods_that_move_inputs_are_not_for_a_grid(tmp_path, method):
    with pytest.raises(UsageError, match=rf"{method} moves inputs .* but discrete noise replaces values"):
        train_recipe(load_recipe("digits-discrete-0.80-quick", [f"method={method}"]), tmp_path / "model")
    assert not (tmp_path / "model").exists()
    short = [*SHORT, "epochs=1", f"method={method}", "method.m=1", "method.steps=1", "holdout=10"]
    history = train_recipe(load_recipe("digits-uniform-0.50-quick", short), tmp_path / "model", progress=False)
    assert len(history) == 1


def test_data_off_the_grid_is_refused_before_training(tmp_path):
    with pytest.raises(UsageError, match="not on the grid of 2 values"):
        train_recipe(load_recipe("digits-discrete-0.80-quick", ["noise.levels=1"]), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_votes_come_up_as_often_as_the_noise_says(half_space, tmp_path):
    """Through the whole pipeline, on a classifier whose probabilities are known in closed form."""
    x = torch.tensor([0.7, 0.0])  # 0.2 beyond the edge
    grid = torch.tensor([0.75, 0.0])
    for noise, at, p in (
        (Uniform(0.5), x, 0.7),
        (Uniform(2.0), x, 0.55),
        (Uniform(0.5, grid=100), x, 0.695),  # what is rounded to 0.5 is not beyond the edge
        (Gaussian(0.2, grid=100), x, 0.835219),  # Φ(0.195/0.2)
        (Discrete(0.8, 4), grid, 0.8 + 0.05),  # 0.75 and 1 lie beyond the edge
        (Discrete(0.6, 1), torch.ones(2), 0.6),
    ):
        stored = certify_dataset(
            Smoothed(half_space, noise),
            [(at, 1)],
            Cohen(n=40_000),
            run=tmp_path / repr(noise),
            progress=False,
            seed=0,
        )
        (row,) = stored.rows()
        assert abs(row["counts"][1] - 40_000 * p) < 4 * (40_000 * p * (1 - p)) ** 0.5


def test_binary_mnist_lies_on_its_grid():
    if not data.available("mnist-binary"):
        pytest.skip("MNIST is not here")
    images, _ = data.load("mnist-binary").arrays()
    Discrete(0.8, 1).check(images[:100])
    assert images.unique().tolist() == [0.0, 1.0]
