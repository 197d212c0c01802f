"""Batches from memory and from disk: the same images, in order, cut at random where asked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from smoothcert import Gaussian, data
from smoothcert.training import TrainingSettings, train
from smoothcert.training.sources import Source

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path):
    """Two classes of three images with a bright left half, of uneven sizes."""
    for label, name in enumerate(("a", "b")):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(3):
            pixels = np.zeros((260 + 10 * number, 300, 3), np.uint8)
            pixels[:, :150] = 255 - 200 * label
            Image.fromarray(pixels).save(tmp_path / "train" / name / f"{number}.png")
    return data.load(f"{tmp_path},size=224", split="train")


def test_memory_gives_the_rows_asked_for():
    x, y = torch.rand(10, 3), torch.arange(10)
    source = Source((x, y), CPU)
    assert len(source) == 10
    (first, labels), (second, _) = source.batches([torch.tensor([3, 1]), torch.tensor([9])], 0)
    assert torch.equal(first, x[[3, 1]])
    assert labels.tolist() == [3, 1]
    assert torch.equal(second, x[[9]])


def test_disk_gives_whole_images_in_order(folder):
    source = Source(folder, CPU)
    parts = [torch.tensor([index, 5 - index]) for index in (0, 1, 2, 0, 1, 2)]  # more than are read ahead
    for part, (x, y) in zip(parts, source.batches(parts, 0), strict=True):
        assert torch.equal(x, torch.stack([folder[index][0] for index in part.tolist()]))
        assert y.tolist() == [folder[index][1] for index in part.tolist()]


def test_random_crops_follow_from_seed_and_index(folder):
    source = Source(folder, CPU, crop=True)
    parts = [torch.arange(6)]
    crops = [next(source.batches(parts, seed))[0] for seed in (1, 1, 2)]
    assert crops[0].shape == (6, 3, 224, 224)
    assert torch.equal(crops[0], crops[1])
    assert not torch.equal(crops[0], crops[2])
    alone = next(source.batches([torch.tensor([4])], 1))[0]
    assert torch.equal(alone[0], crops[0][4])


def test_random_crops_cut_scale_and_flip(folder):
    brightness, left = [], []
    for seed in range(60):
        image, _ = folder.random_crop(0, np.random.default_rng(seed))
        assert image.shape == (3, 224, 224)
        assert 0 <= image.min() <= image.max() <= 1
        brightness.append(float(image.mean()))
        left.append(bool(image[..., :112].mean() >= image[..., 112:].mean()))
    assert max(brightness) > 0.9  # a part within the bright half
    assert min(brightness) < 0.3  # or mostly outside it
    assert 10 < sum(left) < 50  # flipped about half of the time


def test_a_folder_of_images_can_be_trained_on(folder):
    model = torch.nn.Sequential(torch.nn.AvgPool2d(56), torch.nn.Flatten(), torch.nn.Linear(48, 2))
    settings = TrainingSettings(epochs=12, batch_size=4, rate=0.05, holdout=2, votes=20, augment="imagenet")
    history = train(model, folder, noise=Gaussian(0.1), settings=settings, progress=False)
    assert history[-1]["loss"] < history[0]["loss"]
