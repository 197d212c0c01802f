"""What a corruption is."""

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
"""The source of randomness: not NumPy's newer Generator, whose stream may change from one version to the next."""

Apply = Callable[[Image, Any, Random], Image]
"""Corrupts an image by a strength; the result may leave [0, 1]."""


@dataclass(frozen=True)
class Corruption:
    """A way to corrupt images, at severities 1 to 5.

    Attributes:
        apply: The pure function; it takes the strength.
        strengths: The strength at each severity.
        channels: The numbers of channels it can be applied to; any where none is given.
    """

    apply: Apply
    strengths: tuple[float, float, float, float, float]
    channels: tuple[int, ...] = ()

    def __call__(self, image: NDArray[Any], severity: int, random: Random) -> Image:
        """The corrupted image, cut to [0, 1]; the input is left as it is.

        Args:
            image: An image (channels, height, width) with values in [0, 1].
            severity: 1, the weakest, to 5.
            random: The source of all randomness.

        Raises:
            UsageError: If the severity is another one, or the image has another number of channels.
        """
        check_severity(severity)
        if not self.fits(len(image)):
            raise UsageError(
                f"{self.apply.__name__} is for images of {' or '.join(map(str, self.channels))} channels, "
                f"not of {len(image)}; choose another corruption."
            )
        # A copy, so that no corruption can change what it is given.
        changed = self.apply(np.array(image, dtype=np.float64), self.strengths[severity - 1], random)
        return np.clip(changed, 0.0, 1.0)

    def fits(self, channels: int) -> bool:
        """Whether images of this many channels can be corrupted so."""
        return not self.channels or channels in self.channels


def check_severity(severity: int) -> None:
    """Refuse a severity that is not 1 to 5.

    Raises:
        UsageError: If it is none.
    """
    if severity not in SEVERITIES:
        raise UsageError(f"a severity is a whole number from 1 to 5, not {severity}.")


def pixels(image: Image, length: float) -> float:
    """A length in pixels of this image, given for an image whose shorter side has 32; half of it at least."""
    height, width = image.shape[1:]
    return float(length * max(min(height, width) / 32, 0.5))
