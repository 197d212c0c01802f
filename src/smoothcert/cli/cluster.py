"""The options of a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import typer

from smoothcert.cli.app import is_address
from smoothcert.cli.options import build, derived
from smoothcert.evaluate.cluster import Cluster
from smoothcert.types import UsageError


@dataclass(kw_only=True)
class ClusterOptions:
    """A Ray cluster, or none."""

    panel: ClassVar[str] = "Cluster"

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
        cluster: Cluster = build("cluster", {"ray": Cluster}, "ray", self.settings, address=self.ray, **gpus)
        return cluster
