"""``smoothcert data``: which datasets there are, and fetching them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smoothcert import data

Root = Annotated[Path | None, typer.Option("--data-root", help="Where datasets are kept.")]


def list_datasets(root: Root = None) -> None:
    """List the datasets known by name, and whether they are here.

    **Example**

        smoothcert data list
    """
    typer.echo(f"{'name':<15}{'classes':>8}{'shape':>13}{'train':>8}{'test':>8}  here")
    for info in data.DATASETS.values():
        shape = "×".join(map(str, info.shape))
        here = "bundled" if info.bundled else "yes" if data.available(info.name, root=root) else "no"
        typer.echo(f"{info.name:<15}{info.num_classes:>8}{shape:>13}{info.train_size:>8}{info.test_size:>8}  {here}")
    typer.echo(f"\nFolder: {root or data.default_root()}. An .npz file or an image folder can be given by its path.")


def fetch(
    names: Annotated[list[str], typer.Argument(help="Dataset names.")],
    root: Root = None,
) -> None:
    """Download datasets from their canonical sites, checked by SHA-256; an interrupted download continues.

    **Example**

        smoothcert data fetch mnist cifar10
    """
    for name in names:
        typer.echo(f"{name}: {data.fetch(name, root=root)}", err=True)
