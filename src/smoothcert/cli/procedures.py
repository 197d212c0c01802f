"""The options of procedures, noises and clusters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import torch
import typer

from smoothcert.certify import PROCEDURES, Aces, Procedure
from smoothcert.certify.simultaneous import simultaneous
from smoothcert.cli.app import is_address
from smoothcert.cli.options import Group, build, derived
from smoothcert.evaluate import Cluster
from smoothcert.noise import NOISES, Noise, noise_from_config
from smoothcert.noise.grid import GridNoise
from smoothcert.types import UsageError


@dataclass(kw_only=True)
class ProcedureOptions(Group, panel="Procedure"):
    """A procedure and its settings."""

    procedure: Annotated[str | None, f"How to certify: {', '.join(PROCEDURES)} (cohen, or what a file names)."] = None
    settings: dict[str, Any] = derived(PROCEDURES)
    simultaneous: Annotated[bool, "Let alpha be the error probability of all N inputs together: alpha/N for each."] = (
        False
    )

    def build(self, aces: Aces | None = None) -> Procedure:
        """Make the procedure, with alpha as given; see :meth:`share`.

        ``aces`` is the procedure that the model stands for, if it is a composition of that kind.
        """
        if aces is None:
            return build("procedure", PROCEDURES, self.procedure or "cohen", self.settings)
        if self.procedure not in (None, aces.name):
            raise UsageError(f"the model is a composition for the procedure aces, not {self.procedure}; leave it out.")
        fixed = {name: getattr(aces, name) for name in ("core", "selector", "theta", "steps")}
        for name in fixed:
            if name in self.settings:
                raise UsageError(f"the file of the model has its {name}; leave out the option for it.")
        return build("procedure", PROCEDURES, aces.name, self.settings, **fixed)

    def share(
        self, procedure: Procedure, count: int, device: torch.device | None = None
    ) -> tuple[Procedure, dict[str, Any]]:
        """Make the procedure for each of ``count`` inputs of all shards, and the record of ``--simultaneous``."""
        for value in vars(procedure).values():
            if device is not None and isinstance(value, torch.nn.Module):
                value.to(device)
        if not self.simultaneous:
            return procedure, {}
        return simultaneous(procedure, count), {"simultaneous": {"alpha": procedure.alpha, "inputs": count}}


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


@dataclass(kw_only=True)
class ClusterOptions(Group, panel="Cluster"):
    """A Ray cluster, or none."""

    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="Sample with the workers of a Ray cluster: HOST:PORT of its head node, `auto` for one that runs on "
            "this machine, or ray://HOST:PORT from outside. Without an address, start one here for this run.",
        ),
    ] = None
    settings: dict[str, Any] = derived({"ray": Cluster}, skip=["address"], prefix="ray_")

    def build(self) -> Cluster | None:
        """Make the cluster; None without ``--ray``."""
        if self.ray is None:
            if self.settings:
                raise UsageError(f"--ray-{next(iter(self.settings))} is for a Ray cluster; give --ray too.")
            return None
        if not is_address(self.ray):
            raise UsageError(f"--ray accepts auto, HOST:PORT, ray://HOST:PORT or nothing; got {self.ray!r}.")
        gpus = {"gpus": 1.0} if torch.cuda.is_available() and "gpus" not in self.settings else {}
        return build("cluster", {"ray": Cluster}, "ray", self.settings, address=self.ray, **gpus)


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
