"""The options of noises."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from smoothcert.cli.options import Group, build, derived
from smoothcert.noise import NOISES, Noise, noise_from_config
from smoothcert.noise.grid import GridNoise
from smoothcert.types import UsageError


@dataclass(kw_only=True)
class NoiseOptions(Group, panel="Noise"):
    """A noise and its settings."""

    noise: Annotated[str | None, f"{', '.join(NOISES)}; by default that of the training."] = None
    settings: dict[str, Any] = derived(NOISES, skip=["grid"])

    def build(self) -> Noise | None:
        """Make the noise; None where no option is given."""
        name = self.noise
        if name is None:
            if not self.settings:
                return None
            name = next(each for each, one in NOISES.items() if {key.name for key in fields(one)} & set(self.settings))
        return build("noise", NOISES, name, self.settings)


@dataclass(kw_only=True)
class DrawnNoiseOptions(NoiseOptions):
    """A noise, its settings, and how it is drawn."""

    exact: Annotated[
        bool | None,
        typer.Option(
            "--exact/--float",
            help="Draw and add noise in whole steps of the data's grid, so that no rounding error can make a "
            "certificate false; or in floating point. By default exact where the data's grid is known.",
            show_default=False,
        ),
    ] = None


def with_arithmetic(noise: Noise, levels: int | None, exact: bool | None) -> Noise:
    """Return the noise that is drawn exactly or in floating point.

    A grid of fewer than 255 steps would round the copies coarsely, which is part of what is certified; a multiple of it
    holds the same inputs and is used instead. By default (``exact=None``) noise is exact where ``levels``, the data's
    grid, is known.

    Example:
        >>> from smoothcert import Gaussian
        >>> with_arithmetic(Gaussian(0.5), 16, None)
        Gaussian(sigma=0.5, grid=256)
    """
    if not isinstance(noise, GridNoise):
        if exact or (exact is False and noise.exact):
            drawn = "always drawn exactly" if noise.exact else "drawn in floating point only"
            raise UsageError(f"{noise.name} noise is {drawn}; leave out --exact and --float.")
        return noise
    if levels is None and exact:
        raise UsageError("exact noise needs data on a known grid, such as 8-bit images; use --float here.")
    grid = None if levels is None or exact is False else levels * -(-255 // levels)
    return noise_from_config({**noise.config(), "grid": grid})
