"""Names, splits, places and what every dataset promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from smoothcert import data
from smoothcert.data.corruptions import Corrupted
from smoothcert.types import DataError, UsageError


def test_digits_are_split_without_overlap() -> None:
    train, test = data.load("digits", split="train"), data.load("digits")
    assert (len(train), len(test)) == (1297, 500)
    assert test.shape == (1, 8, 8)
    assert isinstance(train, data.ArrayDataset)
    assert isinstance(test, data.ArrayDataset)
    images = torch.cat([train.arrays()[0], test.arrays()[0]])
    labels = torch.cat([train.arrays()[1], test.arrays()[1]])
    assert images.min() == 0
    assert images.max() == 1
    assert ((images * 16) == (images * 16).round()).all()
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]  # the counts of all 1797


def test_the_digits_split_never_changes() -> None:
    assert [label for _, label in data.load("digits")][:20] == [
        0,
        9,
        6,
        9,
        8,
        4,
        5,
        8,
        1,
        6,
        3,
        0,
        4,
        6,
        1,
        8,
        3,
        4,
        7,
        1,
    ]


def test_indices() -> None:
    dataset = data.load("digits")
    for index in (-1, 500):
        with pytest.raises(IndexError, match=f"index {index} is not among the 500 images"):
            dataset[index]
    assert dataset[np.int64(3)][1] == dataset[3][1]
    assert sum(1 for _ in dataset) == 500
    with pytest.raises(TypeError):
        dataset[1.0]  # type: ignore[index]


def test_items_are_copies() -> None:
    dataset = data.load("digits")
    dataset[0][0].fill_(9)
    assert dataset[0][0].max() <= 1


def test_a_data_loader_takes_it() -> None:
    images, labels = next(iter(DataLoader(data.load("digits"), batch_size=7)))
    assert images.shape == (7, 1, 8, 8)
    assert labels.dtype == torch.int64


@pytest.mark.parametrize("info", data.DATASETS.values(), ids=lambda info: info.name)
def test_registry_is_complete(info: data.DatasetInfo) -> None:
    assert data.DATASETS[info.name] is info
    assert info.num_classes == {"cifar100": 100, "imagenet": 1000}.get(info.name, 10)
    assert len(set(info.class_names)) == {"imagenet": 998}.get(info.name, info.num_classes)  # two cranes, two maillots
    assert info.name == "imagenet" or info.bundled == (not info.files)
    assert info.source.endswith(".")
    for file in info.files:
        assert len(bytes.fromhex(file.sha256)) == 32
        assert file.url.endswith("/" + file.filename)


def test_unknown_dataset_names_the_close_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="unknown dataset 'cifra10'; did you mean 'cifar10'"):
        data.load("cifra10")


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="images does not exist"):
        data.load(tmp_path / "images")


@pytest.mark.parametrize("name", ["digits", "mnist", "own.npz", "."])
def test_unknown_split(name: str) -> None:
    with pytest.raises(UsageError, match="unknown split 'valid'; use train or"):
        data.load(name, split="valid")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("mnist", "t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz"),
        ("cifar10", "test_batch.bin or test_batch"),
        ("cifar100", "test.bin or test"),
    ],
)
def test_missing_files_are_told_in_one_sentence(tmp_path: Path, name: str, wanted: str) -> None:
    with pytest.raises(DataError) as caught:
        data.load(name, root=tmp_path)
    assert str(caught.value) == (
        f"the test files of {name} are missing: looked for {wanted} in {tmp_path / name} and its subfolders; "
        f"run `smoothcert data fetch {name}` or name another folder."
    )


def test_default_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOOTHCERT_DATA", str(tmp_path))
    assert data.default_root() == tmp_path
    with pytest.raises(DataError, match=str(tmp_path)):
        data.load("mnist")
    monkeypatch.delenv("SMOOTHCERT_DATA")
    assert data.default_root().name == "smoothcert"


def test_datasets_tell_the_grid_of_their_values() -> None:
    images, labels = np.zeros((2, 1, 4, 4), np.uint8), np.zeros(2)
    about = {"name": "a", "split": "test", "class_names": "ab"}
    assert data.ArrayDataset(images, labels, **about).levels == 255
    assert data.ArrayDataset(images, labels, scale=1.0, **about).levels == 1
    assert data.ArrayDataset(images.astype(np.float32), labels, scale=1.0, **about).levels is None
    digits = data.load("digits")
    assert digits.levels == 16
    assert Corrupted(digits, "fog", 3).levels is None


def test_array_dataset_refuses_what_does_not_fit() -> None:
    with pytest.raises(UsageError, match="do not match"):
        data.ArrayDataset(np.zeros((2, 1, 4, 4)), np.zeros(3), name="a", split="test", class_names="ab")
