"""The options that choose a procedure and a noise."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

import typer

from smoothcert.certify import PROCEDURES, Procedure
from smoothcert.certify.simultaneous import simultaneous
from smoothcert.cli.options import build, derived
from smoothcert.noise import NOISES, Noise, noise_from_config
from smoothcert.noise.grid import GridNoise
from smoothcert.types import UsageError


@dataclass(kw_only=True)
class ProcedureOptions:
    """A procedure and its settings."""

    panel: ClassVar[str] = "Procedure"

    procedure: Annotated[str, typer.Option(help=f"How to certify: {', '.join(PROCEDURES)}.")] = "cohen"
    settings: dict[str, Any] = derived(lambda: PROCEDURES)
    simultaneous: Annotated[
        bool,
        typer.Option(
            "--simultaneous", help="Make alpha the error probability of all inputs together: alpha/N for each of N."
        ),
    ] = False

    def build(self) -> Procedure:
        """Make the procedure, with alpha as given; see :meth:`share`.

        Raises:
            UsageError: If the procedure is unknown, an option does not belong to it, or a value is wrong.
        """
        procedure: Procedure = build("procedure", PROCEDURES, self.procedure, self.settings)
        return procedure

    def share(self, procedure: Procedure, count: int) -> tuple[Procedure, dict[str, Any]]:
        """The procedure for each of ``count`` inputs, and what the run records about ``--simultaneous``.

        Args:
            procedure: The procedure with alpha as given.
            count: The number of inputs of all shards.
        """
        if not self.simultaneous:
            return procedure, {}
        return simultaneous(procedure, count), {"simultaneous": {"alpha": procedure.alpha, "inputs": count}}


@dataclass(kw_only=True)
class NoiseOptions:
    """A noise and its settings."""

    panel: ClassVar[str] = "Noise"

    noise: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(NOISES)}. By default the noise that the checkpoint was trained with."),
    ] = None
    settings: dict[str, Any] = derived(lambda: NOISES, skip=["grid"])

    def build(self) -> Noise | None:
        """Make the noise; None where no option is given.

        Raises:
            UsageError: If the noise is unknown, a setting is missing or belongs to another noise, or a value is wrong.
        """
        name = self.noise
        if name is None:
            if not self.settings:
                return None
            name = next(each for each, one in NOISES.items() if {key.name for key in fields(one)} & set(self.settings))
        noise: Noise = build("noise", NOISES, name, self.settings)
        return noise


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
    """The noise drawn exactly or in floating point.

    A grid of fewer than 255 steps would round the copies coarsely, which is part of what is certified; a multiple of it
    holds the same inputs and is used instead.

    Args:
        noise: The noise.
        levels: ``Dataset.levels`` of the data.
        exact: The choice of the user; None for exact where the data's grid is known.

    Raises:
        UsageError: If exact noise is asked for and the grid is not known, or the noise leaves no choice.

    Example:
        >>> from smoothcert import Gaussian
        >>> with_arithmetic(Gaussian(0.5), 16, None)
        Gaussian(sigma=0.5, grid=256)
    """
    if not isinstance(noise, GridNoise):
        if exact is not None:
            raise UsageError(f"{noise.name} noise is always drawn exactly; leave out --exact and --float.")
        return noise
    if levels is None and exact:
        raise UsageError("exact noise needs data on a known grid, such as 8-bit images; use --float here.")
    grid = None if levels is None or exact is False else levels * -(-255 // levels)
    return noise_from_config({**noise.config(), "grid": grid})
