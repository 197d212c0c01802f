"""All corruptions that can be made, by name."""

from __future__ import annotations

from smoothcert.data.corruptions.base import Corruption
from smoothcert.data.corruptions.blurs import BLURS
from smoothcert.data.corruptions.lights import LIGHTS
from smoothcert.data.corruptions.noises import NOISES
from smoothcert.data.corruptions.shapes import SHAPES

CORRUPTIONS: dict[str, Corruption] = dict(sorted({**NOISES, **BLURS, **LIGHTS, **SHAPES}.items()))
"""Every corruption by name, named as in CIFAR-10-C and MNIST-C where those have it too."""
