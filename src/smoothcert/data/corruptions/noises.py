"""Corruptions by noise, independent for each value."""

from __future__ import annotations

from smoothcert.data.corruptions.base import Corruption, Image, Random


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


NOISES = {
    "gaussian_noise": Corruption(gaussian_noise, (0.04, 0.08, 0.12, 0.18, 0.26)),
    "shot_noise": Corruption(shot_noise, (100, 50, 25, 12, 6)),
    "impulse_noise": Corruption(impulse_noise, (0.02, 0.05, 0.09, 0.14, 0.20)),
    "speckle_noise": Corruption(speckle_noise, (0.10, 0.20, 0.30, 0.45, 0.60)),
}
