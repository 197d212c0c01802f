"""Corruptions of images as array operations, for datasets without a published corrupted version.

The kinds are those of Hendrycks and Dietterich (Benchmarking neural network robustness to common corruptions and
perturbations, ICLR 2019) and of Mu and Gilmer (MNIST-C: a robustness benchmark for computer vision, 2019), but the
implementation and the strength of each severity differ, so do not compare results with those on MNIST-C or CIFAR-10-C.
Lengths are for images whose shorter side has 32 pixels, and scale with it. Pixels outside an image are like its border.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from PIL import Image as Pillow

from smoothcert.data.base import Dataset, NumberedClasses, checked_index
from smoothcert.data.classes import ClassList
from smoothcert.tensors import array_tensor
from smoothcert.types import UsageError, unknown_name

if TYPE_CHECKING:
    from torch import Tensor

SEVERITIES = (1, 2, 3, 4, 5)
ZOOM_STEPS = 8

Image = NDArray[np.float64]  # an image (channels, height, width) with values in [0, 1]

Random = np.random.RandomState
"""The source of randomness: not NumPy's newer Generator, whose stream may change between versions."""

Apply = Callable[[Image, Any, Random], Image]  # corrupts an image with a strength; the result may leave [0, 1]


@dataclass(frozen=True)
class Corruption:
    """A corruption of images, with a strength for each of the severities 1 to 5.

    ``channels`` are the numbers of channels it can be applied to; empty means any.
    """

    apply: Apply
    strengths: tuple[float, float, float, float, float]
    channels: tuple[int, ...] = ()

    def __call__(self, image: NDArray[Any], severity: int, random: Random) -> Image:
        """Return a corrupted copy of an image (channels, height, width), clipped to [0, 1]."""
        self.check(len(image), severity)
        changed = self.apply(np.array(image, dtype=np.float64), self.strengths[severity - 1], random)
        return np.clip(changed, 0.0, 1.0)

    def fits(self, channels: int) -> bool:
        """Return whether it can be applied to images with this many channels."""
        return not self.channels or channels in self.channels

    def check(self, channels: int, severity: int) -> None:
        """Raise a UsageError if the severity or the number of channels is not supported."""
        check_severity(severity)
        if not self.fits(channels):
            raise UsageError(
                f"{self.apply.__name__} is for images of {' or '.join(map(str, self.channels))} channels, "
                f"not of {channels}; choose another corruption."
            )


def check_severity(severity: int) -> None:
    """Raise a UsageError unless the severity is 1 to 5."""
    if severity not in SEVERITIES:
        raise UsageError(f"a severity is a whole number from 1 to 5, not {severity}.")


def _pixels(image: Image, length: float) -> float:
    """Scale a length from images whose shorter side has 32 pixels to this image, by at least 0.5."""
    return float(length * max(min(image.shape[1:]) / 32, 0.5))


def gaussian_noise(image: Image, sigma: float, random: Random) -> Image:
    return image + random.normal(0.0, sigma, image.shape)


def shot_noise(image: Image, photons: float, random: Random) -> Image:
    """Count photons, of which white has ``photons`` on average."""
    return random.poisson(image * photons) / photons


def impulse_noise(image: Image, share: float, random: Random) -> Image:
    """Set a share of all values to 0 or 1 with equal probability."""
    draws = random.random_sample(image.shape)
    image[draws < share / 2] = 0.0
    image[draws > 1 - share / 2] = 1.0
    return image


def speckle_noise(image: Image, sigma: float, random: Random) -> Image:
    """Multiply by Gaussian noise around 1."""
    return image * (1 + random.normal(0.0, sigma, image.shape))


def brightness(image: Image, gain: float, random: Random) -> Image:
    return image + gain


def contrast(image: Image, factor: float, random: Random) -> Image:
    """Move all values of a channel towards their mean."""
    mean: Image = image.mean(axis=(1, 2), keepdims=True)
    return mean + factor * (image - mean)


def saturate(image: Image, factor: float, random: Random) -> Image:
    """Move colours away from grey."""
    grey: Image = image.mean(axis=0, keepdims=True)
    return grey + factor * (image - grey)


def pixelate(image: Image, size: float, random: Random) -> Image:
    """Average over blocks of about ``size``."""
    counts = [math.ceil(length / _pixels(image, size)) for length in image.shape[1:]]
    rows, columns = (np.arange(length) * n // length for length, n in zip(image.shape[1:], counts, strict=True))
    block = rows[:, None] * counts[1] + columns
    means = [np.bincount(block.flat, channel.flat) / np.bincount(block.flat) for channel in image]
    return np.stack([mean[block] for mean in means])


def jpeg_compression(image: Image, quality: float, random: Random) -> Image:
    """Compress the image in 8 bits as JPEG."""
    levels = np.rint(255 * image).astype(np.uint8)
    picture = Pillow.fromarray(levels[0] if len(levels) == 1 else np.moveaxis(levels, 0, 2))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=int(quality))
    with Pillow.open(buffer) as stored:
        return np.asarray(np.atleast_3d(np.asarray(stored, dtype=np.float64) / 255).transpose(2, 0, 1))


def stripe(image: Image, share: float, random: Random) -> Image:
    """Invert a vertical stripe at the centre, whose width is a share of the image."""
    width = image.shape[2]
    edges = np.clip((np.arange(width + 1) - (1 - share) * width / 2) / (share * width), 0.0, 1.0)
    covered: Image = np.diff(edges) * share * width  # how much of each column lies in the stripe
    return image + covered * (1 - 2 * image)


def fog(image: Image, thickness: float, random: Random) -> Image:
    """Add uneven white fog, which lowers the contrast of the scene."""
    return (image + thickness * _cloud(image.shape[1:], random)) / (1 + thickness)


def spatter(image: Image, share: float, random: Random) -> Image:
    """Cover a share of the image with grey drops."""
    field = scipy.ndimage.gaussian_filter(random.normal(size=image.shape[1:]), _pixels(image, 1.2), mode="wrap")
    return np.where(field > np.quantile(field, 1 - share), 0.6, image)


def _cloud(shape: tuple[int, ...], random: Random) -> NDArray[np.float64]:
    """Draw noise in [0, 1] whose amplitude falls with the square of the frequency."""
    rows, columns = (np.fft.fftfreq(side) for side in shape)
    frequency = np.hypot(rows[:, None], columns[None, :])
    frequency[0, 0] = np.inf
    noise = np.fft.ifft2(np.fft.fft2(random.normal(size=shape)) / frequency**2).real
    low, high = noise.min(), noise.max()
    return np.asarray((noise - low) / (high - low)) if high > low else np.full(shape, 0.5)


def rotate(image: Image, degrees: float, random: Random) -> Image:
    """Rotate about the centre in a random direction."""
    angle = math.radians(degrees) * _sign(random)
    return _moved(image, [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def shear(image: Image, slope: float, random: Random) -> Image:
    """Slant vertical lines to a random side."""
    return _moved(image, [[1.0, 0.0], [slope * _sign(random), 1.0]])


def scale(image: Image, factor: float, random: Random) -> Image:
    """Resize the content about the centre."""
    return _moved(image, np.eye(2) / factor)


def translate(image: Image, share: float, random: Random) -> Image:
    """Shift by a share of each side in a random direction."""
    angle = random.uniform(0.0, 2 * math.pi)
    height, width = image.shape[1:]
    return _moved(image, np.eye(2), (share * height * math.sin(angle), share * width * math.cos(angle)))


def _moved(image: Image, matrix: ArrayLike, shift: tuple[float, float] = (0.0, 0.0)) -> Image:
    """Take the value at each place (row, column) from ``matrix`` times the place plus ``shift``, about the centre."""
    centre = (np.array(image.shape[1:]).reshape(2, 1, 1) - 1) / 2
    offsets = np.indices(image.shape[1:]) - centre
    places = np.tensordot(np.asarray(matrix), offsets, axes=1) + centre + np.reshape(shift, (2, 1, 1))
    return _sampled(image, places)


def _sampled(image: Image, places: NDArray[np.float64]) -> Image:
    """Interpolate the image linearly at places (2, height, width)."""
    channels = [scipy.ndimage.map_coordinates(channel, places, order=1, mode="nearest") for channel in image]
    return np.stack(channels)


def _sign(random: Random) -> int:
    return 1 if random.random_sample() < 0.5 else -1


def gaussian_blur(image: Image, sigma: float, random: Random) -> Image:
    return _blurred(image, _pixels(image, sigma))


def defocus_blur(image: Image, radius: float, random: Random) -> Image:
    """Average over a disc, as a lens out of focus does."""
    size = _pixels(image, radius)
    line = np.arange(-math.ceil(size), math.ceil(size) + 1)
    return _filtered(image, np.clip(size + 0.5 - np.hypot(line[:, None], line), 0.0, 1.0))


def motion_blur(image: Image, length: float, random: Random) -> Image:
    """Average along a line in a random direction."""
    angle = random.uniform(0.0, math.pi)
    half = _pixels(image, length) / 2
    reach = math.ceil(half)
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    for step in np.linspace(-half, half, 8 * reach + 1):
        _add_point(kernel, reach + step * math.sin(angle), reach + step * math.cos(angle))
    return _filtered(image, kernel)


def glass_blur(image: Image, distance: float, random: Random) -> Image:
    """Replace every pixel by a random one nearby, then blur a little, as frosted glass does."""
    reach = _pixels(image, distance)
    moves = random.uniform(-reach, reach, (2, *image.shape[1:]))
    return _blurred(_sampled(image, np.indices(image.shape[1:]) + moves), _pixels(image, 0.4))


def zoom_blur(image: Image, most: float, random: Random) -> Image:
    """Average the image and copies of it enlarged by factors up to ``most``."""
    copies = [scale(image, factor, random) for factor in np.linspace(1.0, most, ZOOM_STEPS + 1)]
    return np.asarray(np.mean(copies, axis=0))


def _blurred(image: Image, sigma: float) -> Image:
    return np.asarray(scipy.ndimage.gaussian_filter(image, (0.0, sigma, sigma), mode="nearest"))


def _filtered(image: Image, kernel: NDArray[np.float64]) -> Image:
    return np.asarray(scipy.ndimage.correlate(image, kernel[None] / kernel.sum(), mode="nearest"))


def _add_point(kernel: NDArray[np.float64], row: float, column: float) -> None:
    """Divide a point among the four entries around it."""
    for i in (math.floor(row), math.ceil(row)):
        for j in (math.floor(column), math.ceil(column)):
            kernel[i, j] += max(0.0, 1 - abs(row - i)) * max(0.0, 1 - abs(column - j))


CORRUPTIONS: dict[str, Corruption] = {
    "brightness": Corruption(brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": Corruption(contrast, (0.75, 0.55, 0.40, 0.27, 0.15)),
    "defocus_blur": Corruption(defocus_blur, (1.2, 1.6, 2.1, 2.7, 3.4)),
    "fog": Corruption(fog, (0.2, 0.4, 0.7, 1.1, 1.6)),
    "gaussian_blur": Corruption(gaussian_blur, (0.7, 1.0, 1.4, 1.9, 2.5)),
    "gaussian_noise": Corruption(gaussian_noise, (0.04, 0.08, 0.12, 0.18, 0.26)),
    "glass_blur": Corruption(glass_blur, (0.6, 0.9, 1.3, 1.8, 2.4)),
    "impulse_noise": Corruption(impulse_noise, (0.02, 0.05, 0.09, 0.14, 0.20)),
    "jpeg_compression": Corruption(jpeg_compression, (60, 40, 25, 15, 8), channels=(1, 3)),
    "motion_blur": Corruption(motion_blur, (3, 5, 7, 9, 12)),
    "pixelate": Corruption(pixelate, (2.5, 3.2, 4.0, 5.5, 8.0)),
    "rotate": Corruption(rotate, (8, 16, 24, 32, 40)),
    "saturate": Corruption(saturate, (1.5, 2.0, 2.75, 3.5, 5.0), channels=(3,)),
    "scale": Corruption(scale, (0.9, 0.8, 0.7, 0.6, 0.5)),
    "shear": Corruption(shear, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "shot_noise": Corruption(shot_noise, (100, 50, 25, 12, 6)),
    "spatter": Corruption(spatter, (0.05, 0.10, 0.15, 0.20, 0.28)),
    "speckle_noise": Corruption(speckle_noise, (0.10, 0.20, 0.30, 0.45, 0.60)),
    "stripe": Corruption(stripe, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "translate": Corruption(translate, (0.05, 0.10, 0.15, 0.20, 0.25)),
    "zoom_blur": Corruption(zoom_blur, (1.06, 1.12, 1.18, 1.25, 1.33)),
}
"""Every corruption, with the names of CIFAR-10-C and MNIST-C for those they have."""


class Corrupted:
    """A dataset whose images are corrupted on access.

    A corrupted image depends only on the seed, the type, the severity, the index and the clean image, so that it is
    the same in every process and order.

    Example:
        >>> from smoothcert import data
        >>> foggy = Corrupted(data.load("digits"), "fog", 3)
        >>> foggy.name, len(foggy), foggy[0][0].shape
        ('digits-fog-3', 500, torch.Size([1, 8, 8]))
    """

    def __init__(self, dataset: Dataset, type: str, severity: int, seed: int = 0) -> None:
        if type not in CORRUPTIONS:
            raise unknown_name("corruption", type, CORRUPTIONS)
        CORRUPTIONS[type].check(dataset.shape[0], severity)
        if seed < 0:
            raise UsageError(f"the seed of a corruption must not be negative, got {seed}.")
        self.dataset, self.type, self.severity, self.seed = dataset, type, severity, seed
        self.name = f"{dataset.name}-{type}-{severity}"
        self.split = dataset.split
        self.shape = dataset.shape
        self.levels: int | None = None

    @property
    def num_classes(self) -> int:
        return self.dataset.num_classes

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.dataset.class_names

    @property
    def by_name(self) -> bool:
        return bool(getattr(self.dataset, "by_name", False))

    @property
    def complete(self) -> bool:
        return bool(getattr(self.dataset, "complete", False))

    def use_classes(self, classes: ClassList) -> None:
        """Number the classes of the dataset as in a list; its other corruptions get the same numbers."""
        assert isinstance(self.dataset, NumberedClasses | Corrupted)
        self.dataset.use_classes(classes)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: SupportsIndex) -> tuple[Tensor, int]:
        i = checked_index(index, len(self))
        image, label = self.dataset[i]
        type_number = int.from_bytes(hashlib.sha256(self.type.encode()).digest()[:8], "big")
        sequence = np.random.SeedSequence([self.seed, type_number, self.severity, i])
        changed = CORRUPTIONS[self.type](image.numpy(), self.severity, Random(np.random.MT19937(sequence)))
        return array_tensor(changed.astype(np.float32)), label
