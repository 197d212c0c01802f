"""``--data``: every kind of dataset reaches the model with the right labels, or is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from smoothcert import data, load_run
from smoothcert.models import CheckpointInfo, build, save_checkpoint

NETS = '''
import torch


class Brightness(torch.nn.Module):
    """Class k for a mean near k / (classes - 1)."""

    def __init__(self, classes=4):
        super().__init__()
        self.register_buffer("centres", torch.linspace(0, 1, classes))

    def forward(self, x):
        return -(x.flatten(1).mean(1, keepdim=True) - self.centres).abs()


class Rows(torch.utils.data.Dataset):
    classes = ["dark", "bright"]

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.full((1, 4, 4), float(index)), index
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{tmp_path.name.replace('-', '_')}.py").write_text(NETS)
    return tmp_path


@pytest.fixture
def predict(run, here):
    def call(dataset: str, classes: int = 4):
        model = f"{here.name.replace('-', '_')}.py:Brightness,classes={classes}"
        code, out, err = run("predict", model, "--data", dataset, "--sigma", 0.1, "--votes", 100, "--seed", 0)
        return code, [line.split("\t")[1:3] for line in out.splitlines()[1:]], " ".join(err.split())

    return call


def picture(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (4, 4), value).save(path)


def test_a_folder_with_some_classes(here, predict):
    picture(here / "set" / "white" / "a.png", 255)
    picture(here / "set" / "grey" / "a.png", 85)
    code, _, err = predict("set")
    assert code == 2
    assert "has 4 classes and set has 2 (grey, white); list the classes of the model in order in a file" in err
    (here / "names.txt").write_text("black\ngrey\nlight\nwhite\n")
    assert predict("set,classes=names.txt")[:2] == (0, [["1", "1"], ["3", "3"]])


def test_a_single_image(here, predict):
    picture(here / "photo.png", 255)
    code, _, err = predict("photo.png")
    assert code == 2
    assert "photo.png is a single image; put it into a folder" in err
    (here / "set").mkdir()
    (here / "photo.png").rename(here / "set" / "photo.png")
    (here / "set" / "labels.csv").write_text("file,label\nphoto.png,3\n")
    assert predict("set")[:2] == (0, [["3", "3"]])


def test_a_table_of_any_values(here, predict):
    (here / "t.csv").write_text("a,b,kind\n-3,0,0\n5,5,1\n")
    code, found, _ = predict("t.csv,label=kind", classes=2)
    assert (code, found) == (0, [["0", "0"], ["1", "1"]])


def test_own_code(here, predict):
    code, found, _ = predict(f"{here.name.replace('-', '_')}.py:Rows", classes=2)
    assert (code, found) == (0, [["0", "0"], ["1", "1"]])


def test_named_data_with_fewer_classes(predict):
    code, _, err = predict("digits", classes=12)
    assert code == 2
    assert "has 12 classes and digits has 10 (0, 1, 2, 3, 4, …); use a dataset with the classes of the model" in err


def test_a_model_that_names_its_classes(here, run):
    transformers = pytest.importorskip("transformers")
    names = ["white", "black", "grey"]
    config = transformers.ResNetConfig(
        num_channels=3, embedding_size=4, hidden_sizes=[4], depths=[1], layer_type="basic", num_labels=3
    )
    config.id2label = dict(enumerate(names))
    torch.manual_seed(0)
    transformers.ResNetForImageClassification(config).save_pretrained(here / "net")

    def certify(dataset, folder):
        options = ("--sigma", 0.1, "--n", 100, "--n0", 10, "--seed", 0, "--run", here / folder)
        code, _, err = run("certify", here / "net", "--data", dataset, *options)
        return code, " ".join(err.split())

    for name in ("black", "grey"):
        (here / "set" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(here / "set" / name / "a.png")
    assert certify("set", "run")[0] == 0
    assert [row["label"] for row in load_run(here / "run").rows()] == [1, 2]
    x = np.zeros((3, 32, 32, 3), np.uint8)
    np.savez(here / "d.npz", x=x, y=[0, 1, 2], class_names=["black", "grey", "white"])
    code, err = certify("d.npz", "other")
    assert code == 2
    assert "net has 3 classes (white, black, grey) and d has 3 (black, grey, white); their names differ" in err
    (here / "names.json").write_text(json.dumps(names))
    assert certify("d.npz,classes=names.json", "other")[0] == 0


def test_a_run_cannot_name_code(here, run):
    """Figures load the dataset that a run names; a file must not make them import anything."""
    model = here / "m.safetensors"
    save_checkpoint(model, build("digits-cnn"), CheckpointInfo.of("digits-cnn", sigma=0.25))
    done = run("certify", model, "--data", "digits", "--n", 50, "--n0", 10, "--stop", 2, "--run", here / "run")
    assert done[0] == 0
    info = json.loads((here / "run" / "run.json").read_text())
    (here / "evil.py").write_text("raise SystemExit('imported')")
    from smoothcert.cli.plot import PlotOptions, _dataset
    from smoothcert.types import UsageError

    assert info["config"]["data"]["name"] == "digits"
    stored = load_run(here / "run")
    stored.config["data"]["name"] = "evil.py:make"
    with pytest.raises(UsageError, match=r"cannot be loaded; give --data: 'evil.py:make' is not a named dataset"):
        _dataset(stored, PlotOptions())


def test_a_recipe_cannot_name_code(here, run):
    code, out, _ = run("recipes", "show", "digits-gaussian-0.25-quick")
    assert code == 0
    (here / "r.yaml").write_text(out.replace("dataset: digits", "dataset: evil.py:make,count=3"))
    assert "evil.py" in (here / "r.yaml").read_text()
    code, _, err = run("train", here / "r.yaml", "-o", here / "model")
    assert code == 2
    assert "names code as its dataset" in err


def test_the_list_of_datasets_names_the_other_kinds(run, here):
    code, out, _ = run("data", "list")
    assert code == 0
    assert "imagenet" in out
    assert "file.py:factory" in out
    assert data.DATASETS["imagenet"].num_classes == 1000
