"""``smoothcert denoiser``: train, continue, and certify with the result."""

from __future__ import annotations

import pytest
import torch

from smoothcert import load_run, models
from smoothcert.models import CheckpointInfo, save_checkpoint

SHORT = ("--arch", "dncnn-small", "--set", "epochs=1", "--set", "holdout=0")


@pytest.fixture
def classifier(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    save_checkpoint(tmp_path / "clean.safetensors", models.build("digits-cnn"), CheckpointInfo.of("digits-cnn"))
    return tmp_path / "clean.safetensors"


def test_denoisers_are_trained_and_certified_as_an_ensemble(run, classifier, tmp_path):
    train = ("denoiser", "digits-gaussian-0.25-quick", *SHORT, "--classifier", classifier)
    code, out, err = run(*train, "--objective", "stability", "-o", "one")
    assert code == 0, err
    assert f"Next: smoothcert certify {classifier} --denoiser one --data digits" in out
    written = (tmp_path / "one" / "last.safetensors").stat().st_mtime_ns
    assert run(*train, "--objective", "stability", "-o", "one")[0] == 0
    assert (tmp_path / "one" / "last.safetensors").stat().st_mtime_ns == written
    assert run("denoiser", "digits-gaussian-0.25-quick", *SHORT, "--set", "seed=1", "-o", "two")[0] == 0
    certify = ("certify", classifier, "--denoiser", "one", "--denoiser", "two", "--data", "digits")
    code, _, err = run(*certify, "--n", 100, "--stop", 2, "--run", "run")
    assert code == 0, err
    assert load_run("run").config["noise"]["sigma"] == 0.25  # that of the denoisers' training


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--objective", "mes"), "did you mean 'mse'"),
        (("--objective", "stability"), "needs a classifier"),
        (("--arch", "dncn"), "did you mean 'dncnn'"),
        (("--classifier", "nowhere"), "there is no checkpoint at"),
    ],
)
def test_wrong_use_is_one_sentence(run, classifier, options, sentence):
    code, out, err = run("denoiser", "digits-gaussian-0.25-quick", *SHORT, "-o", "one", *options)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
