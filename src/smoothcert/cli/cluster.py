"""The options that use a Ray cluster."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import typer

from smoothcert.cli.options import build, derived
from smoothcert.sampling.ray import LOCAL, Cluster
from smoothcert.types import UsageError

ADDRESS = re.compile(r"local|auto|ray://.+|[^/\\]+:[0-9]+")

__all__ = ["ADDRESS", "LOCAL", "ClusterOptions"]


@dataclass(kw_only=True)
class ClusterOptions:
    """A Ray cluster, if there is to be one."""

    panel: ClassVar[str] = "Cluster"

    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="Sample with the workers of a Ray cluster. Without an address: one on this machine that ends with "
            "the run. `auto`: one that runs on this machine. HOST:PORT: its head node. ray://HOST:PORT: from outside.",
        ),
    ] = None
    settings: dict[str, Any] = derived(lambda: {"ray": Cluster}, skip=["address"], prefix="ray_")

    def build(self) -> Cluster | None:
        """Make the cluster; None where the work stays in this process.

        Raises:
            UsageError: If an option has no effect, or a value is wrong.
        """
        if self.ray is None:
            if self.settings:
                raise UsageError(f"--ray-{next(iter(self.settings))} is for a Ray cluster; give --ray too.")
            return None
        if not ADDRESS.fullmatch(self.ray):
            raise UsageError(f"--ray takes auto, HOST:PORT or ray://HOST:PORT, or nothing; got {self.ray!r}.")
        gpus = {"gpus": 1.0} if torch.cuda.is_available() and "gpus" not in self.settings else {}
        cluster: Cluster = build("cluster", {"ray": Cluster}, "ray", self.settings, address=self.ray, **gpus)
        return cluster
