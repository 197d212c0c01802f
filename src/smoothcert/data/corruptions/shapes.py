"""Corruptions that move what an image shows; what lies outside an image is like its border."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from smoothcert.data.corruptions.base import Corruption, Image, Random


def rotate(image: Image, degrees: float, random: Random) -> Image:
    """Turn about the centre, to a side drawn at random."""
    angle = math.radians(degrees) * _side(random)
    return moved(image, [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def shear(image: Image, slope: float, random: Random) -> Image:
    """Slant the upright lines, to a side drawn at random."""
    return moved(image, [[1.0, 0.0], [slope * _side(random), 1.0]])


def scale(image: Image, factor: float, random: Random) -> Image:
    """Show everything smaller."""
    return scaled(image, factor)


def translate(image: Image, share: float, random: Random) -> Image:
    """Shift by a share of each side, in a direction drawn at random."""
    angle = random.uniform(0.0, 2 * math.pi)
    height, width = image.shape[1:]
    return moved(image, np.eye(2), (share * height * math.sin(angle), share * width * math.cos(angle)))


def scaled(image: Image, factor: float) -> Image:
    """The image with everything ``factor`` times as large, about its centre."""
    return moved(image, np.eye(2) / factor)


def moved(image: Image, matrix: ArrayLike, shift: tuple[float, float] = (0.0, 0.0)) -> Image:
    """The image whose value at a place is that of the old one at ``matrix`` times the place, from the centre.

    Args:
        image: The image.
        matrix: Two by two, on (row, column).
        shift: Rows and columns to add.
    """
    centre = (np.array(image.shape[1:]).reshape(2, 1, 1) - 1) / 2
    offsets = np.indices(image.shape[1:]) - centre
    places = np.tensordot(np.asarray(matrix), offsets, axes=1) + centre + np.reshape(shift, (2, 1, 1))
    return sampled(image, places)


def sampled(image: Image, places: NDArray[np.float64]) -> Image:
    """The image's values at places (2, height, width), between pixels by linear interpolation."""
    channels = [scipy.ndimage.map_coordinates(channel, places, order=1, mode="nearest") for channel in image]
    return np.stack(channels)


def _side(random: Random) -> int:
    return 1 if random.random_sample() < 0.5 else -1


SHAPES = {
    "rotate": Corruption(rotate, (8, 16, 24, 32, 40)),
    "shear": Corruption(shear, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "scale": Corruption(scale, (0.9, 0.8, 0.7, 0.6, 0.5)),
    "translate": Corruption(translate, (0.05, 0.10, 0.15, 0.20, 0.25)),
}
