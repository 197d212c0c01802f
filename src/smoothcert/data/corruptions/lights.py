"""Corruptions of light, colour and resolution, and by objects between the camera and the scene."""

from __future__ import annotations

import io
import math

import numpy as np
import scipy
from numpy.typing import NDArray
from PIL import Image as Pillow

from smoothcert.data.corruptions.base import Corruption, Image, Random, pixels


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
    counts = [math.ceil(length / pixels(image, size)) for length in image.shape[1:]]
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
    field = scipy.ndimage.gaussian_filter(random.normal(size=image.shape[1:]), pixels(image, 1.2), mode="wrap")
    return np.where(field > np.quantile(field, 1 - share), 0.6, image)


def _cloud(shape: tuple[int, ...], random: Random) -> NDArray[np.float64]:
    """Draw noise in [0, 1] whose amplitude falls with the square of the frequency."""
    rows, columns = (np.fft.fftfreq(side) for side in shape)
    frequency = np.hypot(rows[:, None], columns[None, :])
    frequency[0, 0] = np.inf
    noise = np.fft.ifft2(np.fft.fft2(random.normal(size=shape)) / frequency**2).real
    low, high = noise.min(), noise.max()
    return np.asarray((noise - low) / (high - low)) if high > low else np.full(shape, 0.5)


LIGHTS = {
    "brightness": Corruption(brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": Corruption(contrast, (0.75, 0.55, 0.40, 0.27, 0.15)),
    "saturate": Corruption(saturate, (1.5, 2.0, 2.75, 3.5, 5.0), channels=(3,)),
    "pixelate": Corruption(pixelate, (2.5, 3.2, 4.0, 5.5, 8.0)),
    "jpeg_compression": Corruption(jpeg_compression, (60, 40, 25, 15, 8), channels=(1, 3)),
    "stripe": Corruption(stripe, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "fog": Corruption(fog, (0.2, 0.4, 0.7, 1.1, 1.6)),
    "spatter": Corruption(spatter, (0.05, 0.10, 0.15, 0.20, 0.28)),
}
