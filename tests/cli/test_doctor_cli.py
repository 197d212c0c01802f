"""``smoothcert doctor``: its table, its JSON, its exit codes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from smoothcert import data, models
from smoothcert.models import CheckpointInfo, save_checkpoint
from smoothcert.noise import Gaussian
from smoothcert.training import TrainingSettings, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Checkpoints: one trained for a moment, and one untrained."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    model = models.build("digits-cnn")
    info = CheckpointInfo.of("digits-cnn", sigma=0.25)
    save_checkpoint(folder / "untrained.safetensors", model, info)
    settings = TrainingSettings(epochs=6, batch_size=64, rate=0.1, holdout=0)
    train(model, data.load("digits", split="train"), noise=Gaussian(0.25), settings=settings, progress=False)
    save_checkpoint(folder / "trained.safetensors", model, info)
    return folder


def doctor(run, model, *options):
    plan = ["--n", 1_000, "--every", 5, "--seconds", 15]
    return run("doctor", model, "--data", "digits", *plan, *options)


def test_a_healthy_model_ends_with_0(run, folder):
    code, out, err = doctor(run, folder / "trained.safetensors")
    assert code == 0, out
    assert out.endswith("Nothing was found that would invalidate certificates or waste the run.\n")
    assert "Traceback" not in err


def test_findings_as_json(run, folder):
    code, out, _ = doctor(run, folder / "trained.safetensors", "--sigma", 0.12, "--format", "json")
    found = {finding.pop("title"): finding for finding in json.loads(out)}
    assert code == 0  # a warning is not an error
    assert found["noise"] == {
        "level": "warning",
        "detail": "The model was trained with Gaussian(sigma=0.25), but Gaussian(sigma=0.12, grid=256) is planned.",
        "advice": "Certify with the noise of the training, or train for the planned one.",
    }
    assert {finding["level"] for title, finding in found.items() if title != "noise"} == {"info"}


def test_an_error_ends_with_1(run, folder):
    code, out, _ = doctor(run, folder / "untrained.safetensors")
    assert code == 1
    assert "no better than guessing" in " ".join(out.split())
    assert out.splitlines()[-1].startswith("1 error and 0 warnings: ")


def test_own_data_of_another_range_is_an_error(run, folder, tmp_path):
    images, labels = data.load("digits").arrays()
    np.savez(tmp_path / "own.npz", x=2 * images.numpy() - 1, y=labels.numpy())
    code, out, err = run("doctor", folder / "trained.safetensors", "--data", tmp_path / "own.npz", "--seconds", 10)
    assert code in (1, 2)
    assert "[0, 1]" in out + err


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--data", "nonsense"], "unknown dataset"),
        (["--data", "digits", "--format", "xml"], "unknown format"),
        (["--data", "digits", "--procedure", "nonsense"], "unknown procedure"),
        (["--data", "digits", "--start", 10_000], "no input selected"),
    ],
)
def test_what_cannot_be_examined_is_refused(run, folder, options, match):
    code, out, err = run("doctor", folder / "trained.safetensors", *options)
    assert (code, out) == (2, "")
    assert match in err
    assert err.count("\n") == 1
