"""The type of a corruption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothcert.types import UsageError

SEVERITIES = (1, 2, 3, 4, 5)

Image = NDArray[np.float64]
"""An image (channels, height, width) with values in [0, 1]."""

Random = np.random.RandomState
"""The source of randomness: not NumPy's newer Generator, whose stream may change between versions."""

Apply = Callable[[Image, Any, Random], Image]
"""Corrupts an image with a strength; the result may leave [0, 1]."""


@dataclass(frozen=True)
class Corruption:
    """A corruption of images, with a strength for each of the severities 1 to 5.

    ``channels`` are the numbers of channels it can be applied to; empty means any.
    """

    apply: Apply
    strengths: tuple[float, float, float, float, float]
    channels: tuple[int, ...] = ()

    def __call__(self, image: NDArray[Any], severity: int, random: Random) -> Image:
        """Return a corrupted copy of an image (channels, height, width), clipped to [0, 1].

        Raises:
            UsageError: If the severity or the number of channels is not supported.
        """
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


def pixels(image: Image, length: float) -> float:
    """Scale a length from images whose shorter side has 32 pixels to this image, but at most by half downwards."""
    return float(length * max(min(image.shape[1:]) / 32, 0.5))
