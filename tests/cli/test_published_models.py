"""Models that others published, each certified by one command; skipped where the files are missing."""

from __future__ import annotations

import numpy as np
import pytest

from smoothcert import load_run

NETS = """
from torch import nn

def provable(channels, features):
    return nn.Sequential(
        nn.Conv2d(channels, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(features, 100), nn.ReLU(), nn.Linear(100, 10),
    )
"""
MODELS = {
    "resnet20": (3, ["akamaster-cifar10/resnet20-12fca82f.th"]),
    "resnet56": (3, ["akamaster-cifar10/resnet56-4bfd9763.th"]),
    "resnet20 behind FFDNet": (3, ["akamaster-cifar10/resnet20-12fca82f.th", "kair-denoisers/ffdnet_color.pth"]),
    "resnet20 behind DnCNN": (3, ["akamaster-cifar10/resnet20-12fca82f.th", "kair-denoisers/dncnn_color_blind.pth"]),
    "l2 cifar": (3, ["nets:channels=3,features=2048,entry=0:convex-adversarial/l2_cifar_small_36px.pth"]),
    "provable mnist": (1, ["nets:channels=1,features=1568:convex-adversarial/mnist.pth"]),
    "mnist.onnx": (1, ["onnxruntime/mnist.onnx"]),
    "cnn_mnist.onnx": (1, ["onnxruntime/cnn_mnist_pytorch.onnx"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_one_command_certifies_it(run, tmp_path, monkeypatch, shared_assets, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "published_nets.py").write_text(NETS)
    channels, (model, *denoisers) = MODELS[name]
    if ".onnx" in model:
        pytest.importorskip("onnxruntime")
    side = {"resnet20 behind FFDNet": 16, "resnet20 behind DnCNN": 16}.get(name, 32 if channels == 3 else 28)  # slow
    images = np.random.default_rng(0).integers(0, 256, (3, channels, side, side), dtype=np.uint8)
    np.savez("images.npz", x=images, y=np.array([0, 1, 2]), class_names=np.array(list("0123456789")))
    specifier = str(shared_assets / model)
    if model.startswith("nets:"):
        _, options, file = model.split(":")
        specifier = f"published_nets.py:provable,{options},weights={shared_assets / file}"
    more = [text for each in denoisers for text in ("--denoiser", shared_assets / each)]
    how = ("--sigma", 0.1, "--n", 10, "--n0", 10, "--stop", 1, "--runtime", "eager", "--batch-size", 10, "--run", "run")
    code, out, err = run("certify", specifier, *more, "--data", "images.npz", *how)
    assert code == 0, err
    assert "| run |" in out
    found = load_run("run")
    assert len(found) == 1
    assert all(sum(row["counts"]) == 10 for row in found.rows())
