"""``.npz`` files and image folders read back, and every damaged one refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from smoothcert import data
from smoothcert.types import DataError

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (4, 6, 5), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (4, 3, 6, 5), dtype=np.uint8)
LABELS = np.array([0, 2, 1, 2])


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (GREY, GREY[:, None]),
        (GREY[:, None], GREY[:, None]),
        (GREY[..., None], GREY[:, None]),
        (COLOUR, COLOUR),
        (COLOUR.transpose(0, 2, 3, 1), COLOUR),
        (COLOUR[:, :, :1, :1], COLOUR[:, :, :1, :1]),  # of two possible channels, the one that leaves a square
    ],
)
@pytest.mark.parametrize("keys", [("x", "y"), ("images", "labels")])
@pytest.mark.parametrize("floats", [False, True])
def test_npz_round_trip(
    tmp_path: Path, stored: np.ndarray, expected: np.ndarray, keys: tuple[str, str], floats
) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, **{keys[0]: stored.astype(np.float32) / np.float32(255) if floats else stored, keys[1]: LABELS})
    dataset = data.load(path, split="train")
    assert isinstance(dataset, data.ArrayDataset)
    images, labels = dataset.arrays()
    torch.testing.assert_close(images, torch.tensor(expected).float() / 255, rtol=0, atol=0)
    assert labels.tolist() == LABELS.tolist()
    assert (dataset.name, dataset.split, dataset.class_names) == (path.stem, "train", ("0", "1", "2"))


def test_npz_names_its_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=GREY, y=LABELS[:, None], class_names=["a", "b", "c", "d"])
    dataset = data.load(str(tmp_path / "own.npz"))
    assert dataset.num_classes == 4
    assert dataset.class_names == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": GREY}, "no key 'y' or 'labels'"),
        ({"y": LABELS}, "no key 'x' or 'images'"),
        ({"x": np.array([object()] * 4), "y": LABELS}, "without pickled objects"),
        ({"x": GREY, "y": np.array([0, 1, 2, None])}, "without pickled objects"),
        ({"x": GREY.astype(np.int64), "y": LABELS}, "images of type int64"),
        ({"x": GREY.astype(np.float64), "y": LABELS}, "outside \\[0, 1\\]"),
        ({"x": np.full((4, 2, 2), np.nan), "y": LABELS}, "outside \\[0, 1\\]"),
        ({"x": GREY, "y": LABELS[:3]}, "shape \\(3,\\) for 4 images"),
        ({"x": GREY, "y": LABELS / 2}, "labels of type float64"),
        ({"x": GREY[:0], "y": LABELS[:0]}, "for 0 images"),
        ({"x": GREY, "y": LABELS - 1}, "label -1 at image 0"),
        ({"x": GREY, "y": LABELS * 10**12}, "label 2000000000000 at image 1"),
        ({"x": GREY, "y": LABELS, "class_names": ["a", "b"]}, "label 2 at image 1"),
        ({"x": GREY, "y": LABELS, "class_names": [1, 2, 3]}, "not a list of text"),
        ({"x": np.zeros((4, 5, 5, 2), np.uint8), "y": LABELS}, "has no clear channel axis"),
        ({"x": np.zeros((4, 3, 3, 3), np.uint8), "y": LABELS}, "has no clear channel axis"),
        ({"x": np.zeros((4, 9), np.uint8), "y": LABELS}, "has no clear channel axis"),
    ],
)
def test_bad_npz_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=rf"own.npz .*{message}"):
        data.load(tmp_path / "own.npz")


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-30], lambda c: b"no zip file", lambda c: c.replace(b"\x93NUMPY", b"??????")]
)
def test_damaged_npz_is_refused(tmp_path: Path, damage) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=GREY, y=LABELS)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"own.npz cannot be read"):
        data.load(path)


def test_npz_that_is_missing_or_a_single_array(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"own\.npz does not exist"):
        data.load(tmp_path / "own.npz")
    with (tmp_path / "own.npz").open("wb") as file:
        np.save(file, GREY)
    with pytest.raises(DataError, match="is a single array"):
        data.load(tmp_path / "own.npz")


def write_folder(top: Path, size: tuple[int, int] = (300, 260)) -> None:
    for name, colour in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
        (top / name).mkdir(parents=True)
        Image.new("RGB", (300, 260), colour).save(top / name / "b.PNG")
    Image.new("L", size, 51).save(top / "red" / "a.jpg", quality=100)
    (top / "red" / "notes.txt").write_text("no image")


@pytest.mark.parametrize("below", ["", "test"])
def test_image_folder_round_trip(tmp_path: Path, below: str) -> None:
    write_folder(tmp_path / below)
    dataset = data.load(tmp_path)
    assert dataset.by_name
    assert isinstance(dataset, data.ImageFolder)
    assert dataset.class_names == ("blue", "red")
    assert [label for _, label in dataset] == [0, 1, 1]
    image, _ = dataset[0]
    assert image.dtype == torch.float32
    assert image.shape == dataset.shape == (3, 260, 300)
    assert image.flatten(1).unique(dim=1).squeeze().tolist() == [0, 0, 1]
    torch.testing.assert_close(dataset[1][0], torch.full((3, 260, 300), 0.2))
    with pytest.raises(IndexError):
        dataset[3]


def test_image_folder_resizes_the_short_side_and_crops_the_centre(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    stripes = np.zeros((128, 256), dtype=np.uint8)
    stripes[:, 128:] = 255
    Image.fromarray(stripes).save(tmp_path / "one" / "a.png")
    image, _ = data.load(f"{tmp_path},size=224")[0]  # resized to 512 × 256, so the edge is in the middle of the crop
    assert image[:, :, :110].max() == 0
    assert image[:, :, 114:].min() == 1


def test_image_folder_reads_lazily_and_names_the_broken_image(tmp_path: Path) -> None:
    write_folder(tmp_path)
    whole = (tmp_path / "red" / "b.PNG").read_bytes()
    (tmp_path / "red" / "b.PNG").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "red" / "c.png").write_bytes(b"no image")
    dataset = data.load(tmp_path)
    for index, name in ((2, "b.PNG"), (3, "c.png")):
        with pytest.raises(DataError, match=f"{name} is not a readable image"):
            dataset[index]


def test_image_folder_without_images_or_with_other_splits(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no images"):
        data.load(tmp_path)
    write_folder(tmp_path / "val")
    assert len(data.load(tmp_path, split="val")) == 3
    with pytest.raises(DataError, match="no split 'test', only val"):
        data.load(tmp_path)
