"""The options of procedures and clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer

from smoothcert.certify import PROCEDURES, Aces, Procedure
from smoothcert.certify.simultaneous import simultaneous
from smoothcert.cli.app import is_address
from smoothcert.cli.options import Group, build, derived
from smoothcert.evaluate import Cluster
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
