"""Datasets that Hugging Face ``datasets`` saved in a folder."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from smoothcert import data
from smoothcert.types import DataError, UsageError

datasets = pytest.importorskip("datasets")

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)


def saved(path, split="test", labels=(0, 1, 0), names=("cat", "dog"), images=None, **more):
    pictures = [Image.fromarray(each) for each in PIXELS] if images is None else images
    kinds = {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=list(names))}
    rows = datasets.Dataset.from_dict(
        {"picture": pictures, "kind": list(labels), **more},
        features=datasets.Features(kinds | {name: datasets.Value("string") for name in more}),
    )
    found = rows if split is None else datasets.DatasetDict({split: rows})
    found.save_to_disk(str(path))
    return path


@pytest.mark.parametrize(("stored", "asked"), [("test", "test"), ("validation", "val"), (None, "train")])
def test_a_saved_dataset(tmp_path, stored, asked):
    dataset = data.load(saved(tmp_path / "pets", stored), split=asked)
    assert (len(dataset), dataset.shape, dataset.class_names) == (3, (3, 4, 5), ("cat", "dog"))
    assert (dataset.name, dataset.by_name) == ("pets", True)
    image, label = dataset[1]
    assert label == 1
    torch.testing.assert_close(image, torch.from_numpy(PIXELS[1]).permute(2, 0, 1).float() / 255)


def test_options_of_a_saved_dataset(tmp_path):
    saved(tmp_path / "pets", species=["x", "y", "x"])
    (tmp_path / "names.txt").write_text("bird\ndog\ncat\n")
    dataset = data.load(f"{tmp_path / 'pets'},classes={tmp_path / 'names.txt'},size=8,channels=1")
    assert ([dataset[index][1] for index in range(3)], dataset.shape) == ([2, 1, 2], (1, 8, 8))
    assert data.load(f"{tmp_path / 'pets'},label=species,image=picture").class_names == ("x", "y")


@pytest.mark.parametrize(
    ("option", "split", "error", "message"),
    [
        ("", "val", DataError, "no split 'val', only test"),
        (",label=wing", "test", DataError, r"needs a column of labels; its columns are picture \(Image\), kind"),
        (",image=kind", "test", DataError, "needs a column of images"),
        (",name=small", "test", UsageError, "is a folder; name and revision are for datasets on the hub"),
        (",lable=kind", "test", UsageError, "unknown option of this data 'lable'"),
    ],
)
def test_refusals(tmp_path, option, split, error, message):
    saved(tmp_path / "pets")
    with pytest.raises(error, match=message):
        data.load(f"{tmp_path / 'pets'}{option}", split=split)


def test_rows_without_a_label_are_refused(tmp_path):
    with pytest.raises(DataError, match="label -1 at image 1"):
        data.load(saved(tmp_path / "pets", labels=(0, -1, 0)))


def test_other_sizes_are_refused(tmp_path):
    pictures = [Image.new("RGB", (4, 4)), Image.new("RGB", (5, 4)), Image.new("RGB", (4, 4))]
    with pytest.raises(DataError, match=r"image 1 of .*pets has 4×5 pixels, but the first image has 4×4"):
        data.load(saved(tmp_path / "pets", images=pictures))[1]


def test_a_file_outside_is_not_read(tmp_path):
    """A saved table may name any file of this machine; only stored bytes are decoded."""
    Image.new("RGB", (4, 4)).save(tmp_path / "private.png")
    stored = [{"bytes": None, "path": str(tmp_path / "private.png")}]
    content = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    kinds = datasets.Features({"image": content, "label": datasets.ClassLabel(names=["a", "b"])})
    rows = datasets.Dataset.from_dict({"image": stored, "label": [0]}, features=kinds)
    rows.save_to_disk(str(tmp_path / "set"))
    info = json.loads((tmp_path / "set" / "dataset_info.json").read_text())
    info["features"]["image"] = {"_type": "Image"}
    (tmp_path / "set" / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(DataError, match="is stored outside of the dataset"):
        data.load(tmp_path / "set")[0]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"splits": ["../x"]}'])
def test_a_damaged_folder(tmp_path, content):
    (tmp_path / "dataset_dict.json").write_bytes(content)
    with pytest.raises(DataError, match=r"not a dataset that can be loaded|no split"):
        data.load(tmp_path)


def test_the_package_is_named_if_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install .smoothcert\[hf\]"):
        data.load("hf:mnist")
