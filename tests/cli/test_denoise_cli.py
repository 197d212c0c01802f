"""``smoothcert denoise``: train denoisers and diffusion models, fine-tune behind them, and certify with the result."""

from __future__ import annotations

import json

import pytest
import torch

from smoothcert import load_run, models
from smoothcert.models import CheckpointInfo, save_checkpoint

SHORT = ("--arch", "dncnn-small", "--set", "epochs=1", "--set", "holdout=0")
RECIPE = "digits-gaussian-0.25-quick"


@pytest.fixture
def classifier(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    info = CheckpointInfo.of("digits-cnn", normalize=([0.3], [0.4]))
    save_checkpoint(tmp_path / "clean.safetensors", models.build("digits-cnn", normalize=([0.3], [0.4])), info)
    return tmp_path / "clean.safetensors"


def test_denoisers_are_trained_and_certified_as_an_ensemble(run, classifier, tmp_path):
    train = ("denoise", "train", RECIPE, *SHORT, "--classifier", classifier)
    code, out, err = run(*train, "--objective", "stability", "-o", "one")
    assert code == 0, err
    assert f"Next: smoothcert certify {classifier} --denoiser one --data digits" in out
    written = (tmp_path / "one" / "last.safetensors").stat().st_mtime_ns
    assert run(*train, "--objective", "stability", "-o", "one")[0] == 0
    assert (tmp_path / "one" / "last.safetensors").stat().st_mtime_ns == written
    code, _, err = run("denoise", "train", "--data", "digits", "--sigma", 0.25, *SHORT, "--set", "seed=1", "-o", "two")
    assert code == 0, err
    certify = ("certify", classifier, "--denoiser", "one", "--denoiser", "two", "--data", "digits")
    code, _, err = run(*certify, "--n", 100, "--stop", 2, "--run", "run")
    assert code == 0, err
    assert load_run("run").config["noise"]["sigma"] == 0.25  # that of the denoisers' training


def test_the_options_replace_data_and_noise_of_the_recipe(run, classifier, tmp_path):
    code, out, err = run(
        "denoise", "train", "cifar10-gaussian-0.50", *SHORT, "--data", "digits", "--sigma", 0.3, "-o", "d"
    )
    assert code == 0, err
    assert "--denoiser d --data digits" in out
    info = models.load_checkpoint(tmp_path / "d").info
    assert (info.sigma, info.input_shape) == (0.3, (1, 8, 8))


def test_a_classifier_of_the_users_code_and_one_without_gradients(run, classifier, tmp_path):
    (tmp_path / "nets.py").write_text(
        "import torch\nfrom torch import nn\n\n\ndef net():\n    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n\n\nclass Votes(nn.Module):\n"
        "    def forward(self, x):\n        return x.detach().flatten(1)[:, :10]\n"
    )
    train = ("denoise", "train", RECIPE, *SHORT, "--objective", "stability")
    code, _, err = run(*train, "--classifier", "nets.py:net", "-o", "one")
    assert code == 0, err
    code, _, err = run(*train, "--classifier", "nets.py:Votes", "-o", "two")
    assert code == 2
    assert "Votes returns logits without gradients; pass surrogates" in err
    code, _, err = run(*train, "--classifier", "nets.py:Votes", "--surrogate", "nets.py:net", "-o", "two")
    assert code == 0, err


def test_a_diffusion_model_is_trained_continued_and_certified(run, classifier, tmp_path):
    pytest.importorskip("diffusers")
    settings = ("--set", "epochs=2", "--set", "batch_size=650", "--set", "ema=0.5")
    train = ("denoise", "train", "--data", "digits", "--arch", "diffusion", *settings, "-o", "ddpm")
    code, out, err = run(*train)
    assert code == 0, err
    assert "Next: smoothcert certify MODEL --denoiser ddpm --data digits --sigma 0.25" in out
    weights = (tmp_path / "ddpm" / "unet" / "diffusion_pytorch_model.safetensors").read_bytes()
    code, _, err = run(*train)
    assert code == 0, err
    assert (tmp_path / "ddpm" / "unet" / "diffusion_pytorch_model.safetensors").read_bytes() == weights
    certify = ("certify", classifier, "--data", "digits", "--n", 100, "--stop", 1, "--batch-size", 100)
    code, _, err = run(
        *certify, "--sigma", 0.25, "--denoiser", "ddpm,seeds=2,steps=2", "--vote", "hard", "--run", "run"
    )
    assert code == 0, err
    members = json.loads((tmp_path / "run" / "run.json").read_text())["sessions"][0]["source"]["members"]
    assert [(part["seed"], part["steps"], part["level"]) for part in (each["denoiser"] for each in members)] == [
        (0, 2, 0.25),
        (1, 2, 0.25),
    ]
    code, _, err = run(*certify, "--denoiser", "ddpm")
    assert code == 2
    assert "told the noise level; give --sigma" in err


def test_a_classifier_is_fine_tuned_behind_a_denoiser(run, classifier, tmp_path):
    assert run("denoise", "train", RECIPE, *SHORT, "-o", "d")[0] == 0
    tune = ("denoise", "finetune", classifier, RECIPE, "--denoiser", "d", "--set", "epochs=2", "--set", "votes=10")
    code, out, err = run(*tune, "-o", "tuned")
    assert code == 0, err
    assert "Next: smoothcert certify tuned --denoiser d --data digits\n" in out
    before, after = (models.load_checkpoint(tmp_path / name) for name in ("clean.safetensors", "tuned"))
    assert after.info.normalize == before.info.normalize
    assert after.info.extra["denoiser"]["checkpoint"] == "d/best.safetensors"
    state = before.model.state_dict()
    assert after.model.state_dict().keys() == state.keys()
    assert any(not torch.equal(value, state[name]) for name, value in after.model.state_dict().items())
    code, _, err = run("certify", "tuned", "--denoiser", "d", "--data", "digits", "--n", 100, "--stop", 1, "--run", "r")
    assert code == 0, err
    code, _, err = run(*tune, "-o", "tuned", "--set", "seed=1")
    assert code == 2
    assert "holds another training" in err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--objective", "mes"), "did you mean 'mse'"),
        (("--objective", "stability"), "needs a classifier"),
        (("--arch", "dncn"), "did you mean 'dncnn'"),
        (("--classifier", "nowhere"), "there is no checkpoint at"),
        (("--arch", "diffusion", "--sigma", 0.5), "learns all noise levels without a classifier; leave out a noise"),
        (("--arch", "diffusion", "--objective", "stability"), "leave out --objective"),
    ],
)
def test_wrong_use_is_one_sentence(run, classifier, options, sentence):
    code, out, err = run("denoise", "train", RECIPE, *SHORT, "-o", "one", *options)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("train", "-o", "d"), "name a recipe"),
        (
            ("finetune", "torch.nn:Identity", RECIPE, "--denoiser", "torch.nn:Identity", "-o", "d"),
            "is not a checkpoint",
        ),
    ],
)
def test_other_wrong_use(run, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("denoise", *arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert not any(tmp_path.iterdir())
