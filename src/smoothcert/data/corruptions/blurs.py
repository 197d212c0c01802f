"""Corruptions by blur; pixels outside an image have the values of its border."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from smoothcert.data.corruptions.base import Corruption, Image, Random, pixels
from smoothcert.data.corruptions.shapes import sampled, scaled

ZOOM_STEPS = 8


def gaussian_blur(image: Image, sigma: float, random: Random) -> Image:
    return _blurred(image, pixels(image, sigma))


def defocus_blur(image: Image, radius: float, random: Random) -> Image:
    """Average over a disc, as a lens out of focus does."""
    size = pixels(image, radius)
    line = np.arange(-math.ceil(size), math.ceil(size) + 1)
    return _filtered(image, np.clip(size + 0.5 - np.hypot(line[:, None], line), 0.0, 1.0))


def motion_blur(image: Image, length: float, random: Random) -> Image:
    """Average along a line in a random direction."""
    angle = random.uniform(0.0, math.pi)
    half = pixels(image, length) / 2
    reach = math.ceil(half)
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    for step in np.linspace(-half, half, 8 * reach + 1):
        _add_point(kernel, reach + step * math.sin(angle), reach + step * math.cos(angle))
    return _filtered(image, kernel)


def glass_blur(image: Image, distance: float, random: Random) -> Image:
    """Replace every pixel by a random one nearby, then blur a little, as frosted glass does."""
    reach = pixels(image, distance)
    moves = random.uniform(-reach, reach, (2, *image.shape[1:]))
    return _blurred(sampled(image, np.indices(image.shape[1:]) + moves), pixels(image, 0.4))


def zoom_blur(image: Image, most: float, random: Random) -> Image:
    """Average the image and copies of it enlarged by factors up to ``most``."""
    copies = [scaled(image, factor) for factor in np.linspace(1.0, most, ZOOM_STEPS + 1)]
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


BLURS = {
    "gaussian_blur": Corruption(gaussian_blur, (0.7, 1.0, 1.4, 1.9, 2.5)),
    "defocus_blur": Corruption(defocus_blur, (1.2, 1.6, 2.1, 2.7, 3.4)),
    "motion_blur": Corruption(motion_blur, (3, 5, 7, 9, 12)),
    "glass_blur": Corruption(glass_blur, (0.6, 0.9, 1.3, 1.8, 2.4)),
    "zoom_blur": Corruption(zoom_blur, (1.06, 1.12, 1.18, 1.25, 1.33)),
}
