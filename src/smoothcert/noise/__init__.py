"""Noises: each draws noisy copies of an input and knows the radius its distribution proves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smoothcert.noise.base import Noise
from smoothcert.noise.gaussian import Gaussian
from smoothcert.types import unknown_name

NOISES: dict[str, type[Noise]] = {Gaussian.name: Gaussian}
"""Every noise by name; a new one is one file and one entry here."""


def noise_from_config(config: Mapping[str, Any]) -> Noise:
    """The noise that :meth:`Noise.config` described.

    Raises:
        UsageError: If the name is unknown or a value out of range.
    """
    values = dict(config)
    name = str(values.pop("name"))
    if name not in NOISES:
        raise unknown_name("noise", name, NOISES)
    return NOISES[name](**values)


__all__ = ["NOISES", "Gaussian", "Noise", "noise_from_config"]
