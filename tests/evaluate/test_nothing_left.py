"""A certification that is refused leaves no run folder, and the corrected command works."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert import Cohen, Gaussian, Smoothed, certify_dataset, data, models
from smoothcert.models import CheckpointInfo, save_checkpoint
from smoothcert.sampling.forwards import RUNTIMES
from smoothcert.types import SmoothcertError, UsageError

DATA = data.load("digits")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "sigma-0.25.safetensors"
    torch.manual_seed(0)
    save_checkpoint(path, models.build("digits-cnn"), CheckpointInfo.of("digits-cnn", sigma=0.25))
    return path


def left(folder):
    """What is in a folder, but for an empty ``runs``."""
    return [path for path in folder.rglob("*") if path != folder / "runs"]


@pytest.fixture
def certify(run, checkpoint, tmp_path, monkeypatch):
    """Certify two digits with more options; gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*options, data_name="digits"):
        return run("certify", checkpoint, "--data", data_name, "--every", 200, "--stop", 400, *options)

    return call


WRONG = {
    "fp16 on a CPU": (["--precision", "fp16"], "is for CUDA devices"),
    "unknown precision": (["--precision", "fp8"], "unknown precision"),
    "unknown runtime": (["--runtime", "nonsense"], "unknown runtime"),
    "batch of none": (["--batch-size", "0"], "batch_size must be at least 1"),
    "unreachable radius, staged": (["--procedure", "staged", "--radius", "100"], "radius"),
    "unreachable radius, anytime": (["--procedure", "anytime", "--radius", "100"], "radius"),
    "radius below 0": (["--procedure", "anytime", "--radius", "-1"], "radii '-1'"),
    "norm of another noise": (["--norm", "l1"], "l1"),
    "no samples": (["--n", "0"], "n "),
    "alpha of 1": (["--alpha", "1"], "alpha"),
    "no sigma": (["--sigma", "0"], "sigma"),
    "seed below 0": (["--seed", "-1"], "seed"),
    "seed of 64 bits": (["--seed", str(2**64)], "seed"),
    "start beyond the end": (["--start", "10000"], "no input selected"),
    "every 0": (["--every", "0"], "every must be at least 1"),
    "shard 3 of 2": (["--shard", "3/2"], "no shard 3/2"),
    "more shards than inputs": (["--shard", "1/3"], "2 inputs cannot fill 3 shards"),
    "Ray's option without Ray": (["--ray-workers", "2"], "give --ray too"),
    "spread without members": (["--ray", "local", "--ray-spread"], "ensemble"),
    "an option of another procedure": (["--procedure", "cohen", "--radius", "0.5"], "--radius is an option of"),
    "weights for one member": (["--weights", "1,2"], "--weights is for several members"),
    "no threads": (["--threads", "0"], "threads must be at least 1"),
    "a device that is not here": (["--device", "nonsense"], "cannot be used here"),
}


@pytest.mark.parametrize(("options", "match"), WRONG.values(), ids=WRONG)
def test_wrong_options_leave_nothing(certify, tmp_path, options, match):
    code, out, err = certify("--run", "runs/mine", *options)
    assert (code, out) == (2, ""), err
    assert match in err.splitlines()[-1]
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "options",
    [["--precision", "fp16"], ["--runtime", "onnx"], ["--start", "10000"], ["--shard", "3/2"], ["--norm", "l1"]],
    ids=" ".join,
)
def test_the_corrected_command_works(certify, tmp_path, monkeypatch, options):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as if it was not installed
    assert certify("--n", 100, "--run", "runs/mine", *options)[0] == 2
    assert left(tmp_path) == []
    code, _, err = certify("--n", 100, "--run", "runs/mine")
    assert code == 0, err


def test_a_default_folder_is_not_made_either(certify, tmp_path):
    assert certify("--precision", "bf16")[0] == 2
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("package", "options", "match"),
    [
        ("onnxruntime", ["--runtime", "onnx"], "the onnx runtime is not installed"),
        ("ray", ["--ray", "local"], "Ray is not installed"),
    ],
)
def test_a_package_that_is_missing_leaves_nothing(certify, tmp_path, monkeypatch, package, options, match):
    monkeypatch.setitem(sys.modules, package, None)
    code, out, err = certify("--n", 100, "--run", "runs/mine", *options)
    assert (code, out) == (2, "")
    assert match in err
    assert left(tmp_path) == []


def test_data_that_does_not_fit_leaves_nothing(certify, tmp_path):
    images = np.zeros((12, 1, 8, 8), dtype=np.float32)
    for name, x, y, match in [
        ("classes", images, np.arange(12), "has 10 classes and classes has 12"),
        ("range", 200 + images, np.arange(12) % 10, "[0, 1]"),
        ("shape", np.zeros((12, 1, 9, 5), dtype=np.float32), np.arange(12) % 10, "shape"),
    ]:
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
        code, out, err = certify("--n", 100, "--run", "runs/mine", data_name=f"{name}.npz")
        assert code in (1, 2), name
        assert (out, match in err) == ("", True), err
        assert not (tmp_path / "runs" / "mine").exists(), name
    assert certify("--n", 100, "--run", "runs/mine", data_name="missing.npz")[0] != 0
    assert not (tmp_path / "runs" / "mine").exists()


def test_a_memory_that_is_none_leaves_nothing(certify, tmp_path):
    (tmp_path / "balls").write_bytes(b"nonsense")
    code, out, _ = certify("--sigma-steps", 2, "--memory", "balls", "--n", 100, "--run", "runs/mine")
    assert code in (1, 2)
    assert out == ""
    assert not (tmp_path / "runs" / "mine").exists()


class OneByOne(nn.Module):
    """Takes batches of one input only."""

    def forward(self, x):
        if len(x) != 1:
            raise ValueError("one at a time")
        return x.flatten(1)[:, :10]


class Alone(nn.Module):
    """Gives one row of logits, whatever the batch."""

    def forward(self, x):
        return x.flatten(1)[:1, :10]


@pytest.mark.parametrize("model", [OneByOne(), Alone()], ids=["fails", "one row"])
def test_a_model_that_takes_no_batches_leaves_nothing(tmp_path, model):
    smoothed = Smoothed(model, Gaussian(0.25))
    with pytest.raises(UsageError, match="batch"):
        certify_dataset(smoothed, DATA, Cohen(n=30_000), run=tmp_path / "run", stop=2, progress=False)
    assert left(tmp_path) == []


def test_a_runtime_that_cannot_run_the_model_leaves_nothing(tmp_path, monkeypatch):
    def refuse(model, plan):
        raise ValueError("no such operator")

    monkeypatch.setitem(RUNTIMES, "onnx", refuse)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    options = {"run": tmp_path / "run", "stop": 2, "progress": False}
    with pytest.raises(SmoothcertError, match=r"the onnx runtime cannot run this model \(no such operator\)"):
        certify_dataset(Smoothed(model, Gaussian(0.25), runtime="onnx"), DATA, Cohen(n=100), **options)
    assert left(tmp_path) == []
    certify_dataset(Smoothed(model, Gaussian(0.25)), DATA, Cohen(n=100), **options)
