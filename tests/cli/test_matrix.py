"""Every model source with every data source and every command: it works, or is refused in one sentence."""

from __future__ import annotations

import csv
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from smoothcert import data, load_run
from smoothcert.models import CheckpointInfo, build, save_checkpoint

NETS = """
import torch
from torch import nn

def small(num_classes=10):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes))

class Letters:
    class_names = list("0123456789")

    def __init__(self, split="test"):
        self.x = torch.load(f"{__file__.rpartition('/')[0]}/items.pt", weights_only=True)

    def __len__(self):
        return len(self.x["x"])

    def __getitem__(self, index):
        return self.x["x"][index], int(self.x["y"][index])
"""
COUNT = 4  # inputs of each data source, the same in all
FEW = ("--n", 40, "--n0", 20, "--seed", 0, "--float", "--sigma", 0.1, "--runtime", "eager", "--batch-size", 60)
SMALL = "matrix_nets.py:small"


def small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


class Endpoint(http.server.BaseHTTPRequestHandler):
    model: nn.Module

    def do_POST(self):
        rows = torch.tensor(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["instances"])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"predictions": self.model(rows).tolist()}).encode())

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with one network in every form, the same few digits in every form, and an endpoint."""
    folder = tmp_path_factory.mktemp("matrix")
    torch.manual_seed(0)
    model = small().eval()
    x, y = (part[:40] for part in data.load("digits").arrays())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    (folder / "matrix_nets.py").write_text(NETS)
    _models(folder, model)
    _datasets(folder, x, y)
    Endpoint.model = model
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (folder / "address").write_text(f"http://127.0.0.1:{server.server_port}/net")
    yield folder
    server.shutdown()
    server.server_close()


def _models(folder: Path, model: nn.Module) -> None:
    example = torch.rand(2, 1, 8, 8)
    torch.save(
        {"state_dict": {f"module.{name}": value for name, value in model.state_dict().items()}}, folder / "w.pth"
    )
    for name in ("a", "b"):
        save_checkpoint(folder / f"{name}.safetensors", build("digits-cnn"), CheckpointInfo.of("digits-cnn", sigma=0.1))
    (folder / "two.yaml").write_text("kind: ensemble\nmembers: [a.safetensors, b.safetensors]\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(model, example).save(folder / "net.pt")
        exported = torch.export.export(model, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        torch.export.save(exported, folder / "net.pt2")
        if _has("onnxruntime"):
            torch.onnx.export(model, (example[:1],), folder / "fixed.onnx", dynamo=False)
            axes = {"x": {0: "batch"}}
            torch.onnx.export(
                model, (example,), folder / "free.onnx", dynamo=False, input_names=["x"], dynamic_axes=axes
            )
    if _has("transformers"):
        from transformers import ResNetConfig, ResNetForImageClassification

        config = ResNetConfig(
            num_channels=1, embedding_size=4, hidden_sizes=[4], depths=[1], layer_type="basic", num_labels=10
        )
        ResNetForImageClassification(config).save_pretrained(folder / "hf")


def _datasets(folder: Path, x: torch.Tensor, y: torch.Tensor) -> None:
    pixels, labels = (x[:, 0] * 255).round().to(torch.uint8).numpy(), y.numpy()
    np.savez(folder / "own.npz", x=pixels, y=labels, class_names=np.array(list("0123456789")))
    np.savez(folder / "med.npz", test_images=pixels, test_labels=labels[:, None], train_images=pixels, train_labels=y)
    torch.save({"x": torch.from_numpy(pixels)[:, None] / 255, "y": y}, folder / "items.pt")
    (folder / "flat").mkdir()
    (folder / "classes.txt").write_text("\n".join("0123456789"))
    lines = [("file", "label")]
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        Image.fromarray(image).save(folder / "flat" / f"{number:02}.png")
        (folder / "classes" / str(label)).mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "flat" / f"{number:02}.png", folder / "classes" / str(label))
        lines.append((f"{number:02}.png", str(label)))
    with (folder / "flat" / "labels.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows(lines)
    with (folder / "table.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*(f"p{place}" for place in range(64)), "label"])
        writer.writerows([*map(float, row), int(label)] for row, label in zip(x.flatten(1), labels, strict=True))
    if _has("datasets"):
        from datasets import ClassLabel, Dataset, Features
        from datasets import Image as Column

        features = Features({"image": Column(), "label": ClassLabel(names=list("0123456789"))})
        images = [Image.fromarray(image) for image in pixels]
        rows = Dataset.from_dict({"image": images, "label": labels.tolist()}, features=features)
        rows.save_to_disk(folder / "rows")


def _has(package: str) -> bool:
    try:
        __import__(package)
    except ImportError:
        return False
    return True


MODELS = {
    "checkpoint": ["a.safetensors"],
    "composition": ["two.yaml"],
    "factory": [f"{SMALL},weights=w.pth"],
    "state dict": [f"w.pth,architecture={SMALL}"],
    "torchscript": ["net.pt"],
    "torch.export": ["net.pt2"],
    "onnx": ["free.onnx"],
    "onnx, fixed batch": ["fixed.onnx"],
    "hugging face": ["hf"],
    "endpoint": ["http"],
}
SAME = [name for name in MODELS if name not in ("checkpoint", "composition", "hugging face")]
"""Sources of one and the same network."""

ANY_SHAPE = ("factory", "state dict", "torchscript", "endpoint")
"""Sources that accept the pixels as a vector too."""

DATA = {
    "named": "digits",
    "npz": "own.npz",
    "medmnist": "med.npz",
    "classes": "classes,classes=classes.txt",
    "labels.csv": "flat",
    "hugging face": "rows",
    "factory": "matrix_nets.py:Letters",
    "table": "table.csv,classes=classes.txt",
}


@pytest.fixture
def call(here, run, monkeypatch):
    """Run a command in the folder with a model and data by name; a source that is not installed skips the test."""
    monkeypatch.chdir(here)

    def made(command: str, model: str | None, source: str | None, *more) -> tuple[int, str, str]:
        given = list(MODELS[model]) if model else []
        if given and given[0] == "http":
            given = [(here / "address").read_text()]
        elif given and not (here / given[0].split(",")[0].split(":")[0]).exists():
            pytest.skip("the package of this source is not installed")
        named = DATA[source] if source else None
        if named == "rows" and not (here / "rows").exists():
            pytest.skip("the package of this source is not installed")
        return run(*command.split(), *given, *(["--data", named] if named else []), *more)

    return made


@pytest.fixture(scope="module")
def expected() -> dict[str, list]:
    """The rows of the network as a module, by data source."""
    return {}


def rows(path) -> list[tuple[int, tuple[int, ...]]]:
    return [(row["predict"], tuple(row["counts"])) for row in load_run(path).rows()]


@pytest.mark.parametrize("source", DATA)
@pytest.mark.parametrize("model", MODELS)
def test_certify(call, tmp_path, expected, model, source):
    code, out, err = call("certify", model, source, *FEW, "--stop", COUNT, "--run", tmp_path / "run")
    if source == "table" and model not in ANY_SHAPE:
        assert code == 2
        assert err.splitlines()[-1].startswith("smoothcert: the model cannot classify a batch of shape (1, 64)")
        return
    assert code == 0, err
    assert "| run |" in out
    found = load_run(tmp_path / "run")
    assert len(found) == COUNT
    if model in SAME:
        if source not in expected:
            code, _, err = call("certify", "factory", source, *FEW, "--stop", COUNT, "--run", tmp_path / "other")
            assert code == 0, err
            expected[source] = rows(tmp_path / "other")
        assert rows(tmp_path / "run") == expected[source]


@pytest.mark.parametrize("model", MODELS)
def test_predict(call, model):
    code, out, err = call("predict", model, "named", "--sigma", 0.1, "--votes", 60, "--stop", COUNT, "--seed", 0)
    assert code == 0, err
    assert out


ATTACK = ("--votes", 20, "--steps", 2, "--copies", 2, "--stop", 2, "--seed", 0, "--radii", "0.1")
COMMANDS = {
    "predict": ("--votes", 60, "--stop", COUNT, "--seed", 0),
    "attack": ATTACK,
    "doctor": ("--seconds", 1),
}


@pytest.mark.parametrize("source", DATA)
@pytest.mark.parametrize("command", COMMANDS)
def test_other_commands_with_every_data_source(call, command, source):
    code, out, err = call(command, "factory", source, "--sigma", 0.1, *COMMANDS[command])
    assert code == 0 or (code, command) == (1, "doctor"), err
    assert out


def test_a_model_is_the_same_in_another_process(here):
    """Otherwise a run could not be continued."""
    names = [given[0] for given in MODELS.values() if (here / given[0].split(",")[0]).exists()]
    code = (
        "import sys, smoothcert as sc; from smoothcert.classifiers.identity import model_identity\n"
        "for name in sys.argv[1:]: print(model_identity(sc.load_model(name)))"
    )
    seeds = {"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"}
    found = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code, *names],
            cwd=here,
            env={**os.environ, **seed},
            capture_output=True,
            text=True,
        )
        for seed in seeds
    ]
    lines = [each.stdout.splitlines() for each in found]
    assert len(lines[0]) == len(names), found[0].stderr
    assert lines[0] == lines[1]


NO_GRADIENT = ("onnx", "onnx, fixed batch", "endpoint")


@pytest.mark.parametrize("model", MODELS)
def test_attack(call, model):
    code, out, err = call("attack", model, "named", "--sigma", 0.1, *ATTACK)
    if model in NO_GRADIENT:
        assert code == 2
        assert "gradient" in err
        assert len(err.strip().splitlines()) == 1
    else:
        assert code == 0, err
        assert out


@pytest.mark.parametrize("model", MODELS)
def test_info(call, model):
    code, out, err = call("info", model, None)
    assert code == 0, err
    assert out


@pytest.mark.parametrize("model", MODELS)
def test_doctor(call, model):
    code, out, err = call("doctor", model, "named", "--sigma", 0.1, "--seconds", 1)
    assert code in (0, 1), err
    assert "ok" in out


@pytest.mark.parametrize("source", DATA)
def test_train(call, tmp_path, source):
    short = ("--model", SMALL, "--set", "epochs=1", "--set", "holdout=4", "--set", "votes=10", "-o", tmp_path / "t")
    code, out, err = call("train digits-gaussian-0.25-quick", None, source, *short)
    assert code == 0, err
    assert "Next: smoothcert certify" in out
