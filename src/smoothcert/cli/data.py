"""``smoothcert data``."""

from __future__ import annotations

from typing import Annotated

import typer

from smoothcert import data
from smoothcert.cli.options import DataRoot
from smoothcert.cli.show import show_columns


def list_datasets(data_root: DataRoot = None) -> None:
    """List the named datasets, and which of them are on this machine.

    **Example**

        smoothcert data list
    """
    lines = [["name", "classes", "shape", "train", "test", "here"]]
    for info in data.DATASETS.values():
        here = "bundled" if info.bundled else "yes" if data.available(info.name, root=data_root) else "no"
        sizes = [str(info.train_size), str(info.test_size)]
        lines.append([info.name, str(info.num_classes), "×".join(map(str, info.shape)), *sizes, here])
    for name in data.LOADERS:
        plugin = data.LOADERS.plugin(name)
        lines.append([name, "", "", "", "", f"plug-in {plugin.package or 'file'}" if plugin else ""])
    show_columns(lines, left=1)
    typer.echo(
        f"\nFolder: {data_root or data.default_root()}. --data also accepts a folder of images, an .npz, .csv or "
        ".parquet file, hf:NAME, package.module:factory and file.py:factory; options follow "
        "as ,name=value, such as ,size=224."
    )


def fetch(
    names: Annotated[list[str], typer.Argument(help="Dataset names.")],
    data_root: DataRoot = None,
) -> None:
    """Download datasets from their canonical sites and check their SHA-256; an interrupted download continues.

    **Example**

        smoothcert data fetch mnist cifar10
    """
    for name in names:
        typer.echo(f"{name}: {data.fetch(name, root=data_root)}", err=True)
