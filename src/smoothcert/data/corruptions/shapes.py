"""Corruptions that move the content of an image; pixels outside an image have the values of its border."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from smoothcert.data.corruptions.base import Corruption, Image, Random


def rotate(image: Image, degrees: float, random: Random) -> Image:
    """Rotate about the centre in a random direction."""
    angle = math.radians(degrees) * _sign(random)
    return _moved(image, [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def shear(image: Image, slope: float, random: Random) -> Image:
    """Slant vertical lines to a random side."""
    return _moved(image, [[1.0, 0.0], [slope * _sign(random), 1.0]])


def scale(image: Image, factor: float, random: Random) -> Image:
    return scaled(image, factor)


def translate(image: Image, share: float, random: Random) -> Image:
    """Shift by a share of each side in a random direction."""
    angle = random.uniform(0.0, 2 * math.pi)
    height, width = image.shape[1:]
    return _moved(image, np.eye(2), (share * height * math.sin(angle), share * width * math.cos(angle)))


def scaled(image: Image, factor: float) -> Image:
    """Enlarge the content about the centre."""
    return _moved(image, np.eye(2) / factor)


def _moved(image: Image, matrix: ArrayLike, shift: tuple[float, float] = (0.0, 0.0)) -> Image:
    """Take the value at each place (row, column) from ``matrix`` times the place plus ``shift``, about the centre."""
    centre = (np.array(image.shape[1:]).reshape(2, 1, 1) - 1) / 2
    offsets = np.indices(image.shape[1:]) - centre
    places = np.tensordot(np.asarray(matrix), offsets, axes=1) + centre + np.reshape(shift, (2, 1, 1))
    return sampled(image, places)


def sampled(image: Image, places: NDArray[np.float64]) -> Image:
    """Interpolate the image linearly at places (2, height, width)."""
    channels = [scipy.ndimage.map_coordinates(channel, places, order=1, mode="nearest") for channel in image]
    return np.stack(channels)


def _sign(random: Random) -> int:
    return 1 if random.random_sample() < 0.5 else -1


SHAPES = {
    "rotate": Corruption(rotate, (8, 16, 24, 32, 40)),
    "shear": Corruption(shear, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "scale": Corruption(scale, (0.9, 0.8, 0.7, 0.6, 0.5)),
    "translate": Corruption(translate, (0.05, 0.10, 0.15, 0.20, 0.25)),
}
