"""Corruptions: what every one of them promises, and what some of them must do exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage, stats

from smoothcert import data
from smoothcert.data import CORRUPTIONS, Corrupted, load_suite
from smoothcert.types import UsageError

SHAPES = [(1, 28, 28), (3, 32, 32), (3, 24, 40), (1, 40, 24), (1, 8, 8)]
PAIRS = [(name, shape) for name in CORRUPTIONS for shape in SHAPES if CORRUPTIONS[name].fits(shape[0])]


def scene(shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    """A smooth image with edges, in which everything can be told from everything else."""
    random = np.random.RandomState(seed)
    smooth = ndimage.gaussian_filter(random.normal(size=shape), (0, shape[1] / 10, shape[2] / 10))
    smooth = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    top, left = random.randint(shape[1] // 2), random.randint(shape[2] // 2)  # elsewhere in every scene
    smooth[:, top : top + shape[1] // 3, left : left + shape[2] // 3] = 0.9
    return 0.1 + 0.7 * smooth


def corrupted(name: str, image: np.ndarray, severity: int, seed: int = 0) -> np.ndarray:
    return CORRUPTIONS[name](image, severity, np.random.RandomState(seed))


@pytest.mark.parametrize(("name", "shape"), PAIRS)
def test_every_corruption_keeps_its_promises(name, shape):
    images = [scene(shape, seed) for seed in range(12)]
    before = [image.copy() for image in images]
    distances = []
    for severity in range(1, 6):
        results = [corrupted(name, image, severity, seed) for seed, image in enumerate(images)]
        for seed, (image, result) in enumerate(zip(images, results, strict=True)):
            assert result.shape == shape
            assert 0 <= result.min() <= result.max() <= 1
            assert np.array_equal(result, corrupted(name, image, severity, seed))
            assert severity < 5 or not np.allclose(result, image, atol=0.05)
        distances.append(np.mean([np.linalg.norm(a - b) for a, b in zip(images, results, strict=True)]))
    assert distances == sorted(distances)
    assert distances[4] > 1.3 * distances[0] > 0.01
    assert all(np.array_equal(a, b) for a, b in zip(images, before, strict=True))


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_plain_images_stay_finite(name, value):
    shape = (3, 9, 12)
    result = corrupted(name, np.full(shape, value), 5)
    assert result.shape == shape
    assert np.isfinite(result).all()


@pytest.mark.parametrize("name", ["gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur", "glass_blur"])
def test_a_blur_averages(name):
    image = scene((3, 32, 32))
    result = corrupted(name, image, 4)
    assert result.min() >= image.min() - 1e-9
    assert result.max() <= image.max() + 1e-9
    if name != "glass_blur":  # which scatters too
        assert np.abs(np.diff(result, axis=2)).mean() < np.abs(np.diff(image, axis=2)).mean()
    plain = np.full((3, 20, 20), 0.3)
    assert np.allclose(corrupted(name, plain, 5), 0.3)


def test_blurs_against_scipy():
    image = scene((3, 64, 48))
    expected = ndimage.gaussian_filter(image, (0, 1.4 * 1.5, 1.4 * 1.5), mode="nearest")  # lengths grow with the side
    assert np.allclose(corrupted("gaussian_blur", image, 3), expected)
    point = np.zeros((1, 33, 33))
    point[0, 16, 16] = 1.0
    disc = corrupted("defocus_blur", point, 5)[0]
    assert disc.sum() == pytest.approx(1)
    assert (disc > 0).sum() == pytest.approx(np.pi * 3.9**2, rel=0.1)
    assert np.allclose(disc, disc.T)


def test_noises_have_the_moments_they_name():
    image = np.full((1, 200, 200), 0.5)
    sigma = 0.08 * stats.norm.std()
    assert corrupted("gaussian_noise", image, 2).std() == pytest.approx(sigma, rel=0.03)
    assert corrupted("speckle_noise", image, 2).std() == pytest.approx(0.5 * 0.2, rel=0.03)
    assert corrupted("shot_noise", image, 3).var() == pytest.approx(stats.poisson(12.5).var() / 25**2, rel=0.05)
    impulses = corrupted("impulse_noise", image, 5)
    assert (impulses == 0).mean() == pytest.approx(0.1, rel=0.1)
    assert (impulses == 1).mean() == pytest.approx(0.1, rel=0.1)


def test_moves_are_exact_where_they_can_be():
    image = np.zeros((1, 41, 41))
    image[0, 20, 30] = 1.0
    for seed in range(4):
        turned = corrupted("rotate", image, 5, seed)[0]
        row, column = ndimage.center_of_mass(turned)
        assert abs(row - 20) == pytest.approx(10 * np.sin(np.radians(40)), abs=0.3)
        assert column - 20 == pytest.approx(10 * np.cos(np.radians(40)), abs=0.3)
    smaller = corrupted("scale", scene((1, 41, 41)), 5)[0]
    assert np.allclose(smaller[20, 11:30], scene((1, 41, 41))[0, 20, 2:40:2])
    block = np.zeros((1, 40, 40))
    block[0, 18:22, 18:22] = 1.0
    shifted = ndimage.center_of_mass(corrupted("translate", block, 5)[0])
    assert np.hypot(shifted[0] - 19.5, shifted[1] - 19.5) == pytest.approx(10, abs=0.1)


def test_lights_are_exact_where_they_can_be():
    image = scene((3, 20, 20))
    assert np.allclose(corrupted("brightness", image, 1), image + 0.1)
    assert np.allclose(corrupted("contrast", image, 3).std(axis=(1, 2)), 0.4 * image.std(axis=(1, 2)))
    assert np.allclose(corrupted("contrast", image, 3).mean(axis=(1, 2)), image.mean(axis=(1, 2)))
    grey = image.mean(axis=0)
    assert np.allclose(corrupted("saturate", image, 1), np.clip(grey + 1.5 * (image - grey), 0, 1))
    stripe = corrupted("stripe", image, 2)
    assert np.allclose(stripe[:, :, 8:12], 1 - image[:, :, 8:12])
    assert np.allclose(stripe[:, :, [*range(8), *range(12, 20)]], image[:, :, [*range(8), *range(12, 20)]])
    coarse = corrupted("pixelate", scene((3, 32, 64)), 3)
    blocks = scene((3, 32, 64)).reshape(3, 8, 4, 16, 4).mean(axis=(2, 4))
    assert np.allclose(coarse, blocks.repeat(4, axis=1).repeat(4, axis=2))
    spatter = corrupted("spatter", image, 2)
    assert (spatter != image).any(axis=0).mean() == pytest.approx(0.10, abs=0.01)


def test_a_corrupted_view():
    digits = data.load("digits")
    view = Corrupted(digits, "gaussian_noise", 2, seed=1)
    assert (view.name, view.split, len(view), view.shape) == ("digits-gaussian_noise-2", "test", 500, (1, 8, 8))
    assert (view.num_classes, view.class_names) == (10, digits.class_names)
    image, label = view[7]
    assert image.dtype == torch.float32
    assert label == digits[7][1]
    assert torch.equal(image, Corrupted(digits, "gaussian_noise", 2, seed=1)[np.int64(7)][0])
    for other in (
        Corrupted(digits, "gaussian_noise", 2, seed=2)[7],
        Corrupted(digits, "gaussian_noise", 3, seed=1)[7],
        Corrupted(digits, "speckle_noise", 2, seed=1)[7],
    ):
        assert not torch.equal(other[0], image)
    noise = [(view[i][0] - digits[i][0])[digits[i][0] == 0.5] for i in (3, 4)]
    assert not torch.equal(noise[0][:3], noise[1][:3])  # every image has noise of its own
    with pytest.raises(IndexError, match="index 500 is not among the 500 images"):
        view[500]


def test_the_stream_of_a_corruption_never_changes():
    image = Corrupted(data.load("digits"), "gaussian_noise", 5)[0][0]
    assert image[0, 0].tolist() == pytest.approx(FIRST_ROW, abs=1e-6)


FIRST_ROW = [0.04681076, 0.0, 0.27281067, 1.0, 0.80179477, 0.0, 0.10494611, 0.03733082]


def test_a_suite_made_of_a_dataset():
    sets = load_suite("digits")
    kinds = [name for name in CORRUPTIONS if name != "saturate"]  # digits have no colours
    assert [member.name for member in sets] == ["identity", *(f"{k}-{s}" for k in kinds for s in range(1, 6))]
    assert sets[0].dataset.name == "digits"
    some = load_suite("digits", types=["stripe", "identity"], severities=[5, 1], seed=3)
    assert [member.name for member in some] == ["identity", "stripe-5", "stripe-1"]
    assert isinstance(some[1].dataset, Corrupted)
    assert (some[1].dataset.seed, some[1].dataset.severity) == (3, 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": ["gausian_noise"]}, "unknown corruption 'gausian_noise'; did you mean 'gaussian_noise'"),
        ({"types": ["fog", "fog"]}, "name at least one type of corruption, and each once"),
        ({"types": []}, "name at least one type"),
        ({"types": ["saturate"]}, "saturate is for images of 3 channels, not of 1"),
        ({"severities": [0]}, "a severity is a whole number from 1 to 5, not 0"),
        ({"severities": [6]}, "from 1 to 5, not 6"),
        ({"severities": [2, 2]}, "name at least one severity, and each once"),
        ({"severities": []}, "name at least one severity"),
        ({"seed": -1}, "the seed of a corruption must not be negative, got -1"),
    ],
)
def test_what_a_suite_refuses(options, message):
    with pytest.raises(UsageError, match=message):
        load_suite("digits", **options)


def test_what_a_corruption_refuses():
    with pytest.raises(UsageError, match="saturate is for images of 3 channels, not of 1"):
        corrupted("saturate", scene((1, 8, 8)), 1)
    with pytest.raises(UsageError, match="jpeg_compression is for images of 1 or 3 channels, not of 2"):
        corrupted("jpeg_compression", scene((2, 8, 8)), 1)
    with pytest.raises(UsageError, match="from 1 to 5, not 6"):
        corrupted("fog", scene((1, 8, 8)), 6)
    with pytest.raises(UsageError, match="unknown corruption 'frog'; did you mean 'fog'"):
        Corrupted(data.load("digits"), "frog", 1)
