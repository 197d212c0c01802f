"""Noises: each draws noisy copies of an input and computes the radius that its distribution proves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from smoothcert.noise.base import Noise, invalid_rows
from smoothcert.noise.discrete import Discrete
from smoothcert.noise.gaussian import Gaussian
from smoothcert.noise.uniform import Uniform
from smoothcert.plugins import Registry
from smoothcert.types import UsageError, unknown_name

NOISES: Registry[type[Noise]] = Registry(
    "noises", "noise", Noise, {noise.name: noise for noise in (Gaussian, Uniform, Discrete)}
)
"""All noises by name; to add one here, write a file and add an entry."""


def noise_from_config(config: Mapping[str, Any]) -> Noise:
    """Return the noise that :meth:`Noise.config` describes; raise a UsageError if the name or a setting is invalid.

    Example:
        >>> noise_from_config({"name": "uniform", "lam": 0.5})
        Uniform(lam=0.5)
    """
    values = dict(config)
    name = str(values.pop("name", ""))
    if name not in NOISES:
        raise NOISES.unknown(name)
    settings = {field.name: field for field in fields(NOISES[name])}
    for key in values:
        if key not in settings:
            raise unknown_name(f"setting of {name} noise", key, settings)
    missing = [key for key, field in settings.items() if key not in values and field.default is MISSING]
    if missing:
        raise UsageError(f"{name} noise needs {' and '.join(missing)}; give a value.")
    return NOISES[name](**values)


__all__ = ["NOISES", "Discrete", "Gaussian", "Noise", "Uniform", "invalid_rows", "noise_from_config"]
