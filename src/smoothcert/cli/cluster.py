"""The options that spread work over a Ray cluster."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer

from smoothcert.evaluate.cluster import LOCAL, Cluster
from smoothcert.types import UsageError

_ADDRESS = re.compile(r"local|auto|ray://.+|[^/\\]+:[0-9]+")


@dataclass(kw_only=True)
class ClusterOptions:
    """A Ray cluster, if there is to be one."""

    ray: Annotated[
        str | None,
        typer.Option(
            metavar="[ADDRESS]",
            help="Sample with the workers of a Ray cluster: alone for one on this machine that ends with the run, "
            "`auto` for one that runs here, HOST:PORT of its head, ray://HOST:PORT from outside.",
        ),
    ] = None
    ray_workers: Annotated[
        int | None, typer.Option(help="Workers; by default as many as there is room for, also on nodes that join.")
    ] = None
    ray_cpus: Annotated[int | None, typer.Option(help="CPUs, and threads, of each worker (1).")] = None
    ray_gpus: Annotated[
        float | None,
        typer.Option(help="GPUs of each worker, 0.5 for two on one; by default 1 if this machine has any, else 0."),
    ] = None
    ray_spread: Annotated[
        bool, typer.Option("--ray-spread", help="Each worker holds some members of an ensemble, not all of them.")
    ] = False

    def build(self) -> Cluster | None:
        """The cluster, or None where the work stays in this process.

        Raises:
            UsageError: If an option has no effect, or a value is wrong.
        """
        settings: dict[str, Any] = {
            "workers": self.ray_workers,
            "cpus": self.ray_cpus,
            "gpus": self.ray_gpus,
            "spread": self.ray_spread or None,
        }
        given = {key: value for key, value in settings.items() if value is not None}
        if self.ray is None:
            if given:
                raise UsageError(f"--ray-{next(iter(given))} is for a Ray cluster; give --ray too.")
            return None
        if not _ADDRESS.fullmatch(self.ray):
            raise UsageError(f"--ray takes auto, HOST:PORT or ray://HOST:PORT, or nothing; got {self.ray!r}.")
        if torch.cuda.is_available():
            given.setdefault("gpus", 1.0)
        return Cluster(address=self.ray, **given)


def with_address(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, with an address after each ``--ray`` that has none.

    Example:
        >>> with_address(["certify", "--ray", "lenet.safetensors"])
        ['certify', '--ray=local', 'lenet.safetensors']
        >>> with_address(["certify", "lenet.safetensors", "--ray", "10.0.0.1:6379"])
        ['certify', 'lenet.safetensors', '--ray', '10.0.0.1:6379']
    """
    return [
        f"--ray={LOCAL}" if argument == "--ray" and not _ADDRESS.fullmatch(after) else argument
        for argument, after in zip(arguments, [*arguments[1:], ""], strict=False)
    ]
