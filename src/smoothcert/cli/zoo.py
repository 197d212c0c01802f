"""``smoothcert zoo``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from smoothcert.cli.options import output_folder
from smoothcert.cli.show import show_columns
from smoothcert.models.zoo import MODEL, Zoo
from smoothcert.report.metrics import acr_text
from smoothcert.types import radius_text

Place = Annotated[
    str | None,
    typer.Option("--zoo", help="Folder or https address of the zoo; by default $SMOOTHCERT_ZOO or that of a checkout."),
]


def list_models(place: Place = None) -> None:
    """List the models with their certification.

    **Example**

        smoothcert zoo list
    """
    zoo = Zoo(place)
    lines = [["name", "data", "noise", "ACR", "95 % interval", "n", "inputs"]]
    for name in zoo.names():
        found = zoo.card(name)["certification"]
        low, high = found["acr_interval"]
        interval = f"{radius_text(low)}–{radius_text(-high).removeprefix('-')}"
        n, inputs = found["procedure"]["n"], found["inputs"]["number"]
        cells = [found["data"]["name"], _noise(found["noise"]), acr_text(found["acr"]), interval, n, inputs]
        lines.append([name, *map(str, cells)])
    show_columns(lines, left=3)
    typer.echo("\nEvery command accepts zoo:NAME as a model; `smoothcert zoo show NAME` prints its card.")


def show_card(
    name: Annotated[str, typer.Argument(help="The model.")],
    place: Place = None,
) -> None:
    """Print the card of a model: recipe, data, noise, certified accuracy with intervals, checksum and license.

    **Example**

        smoothcert zoo show mnist-lenet-catrs-0.50
    """
    typer.echo(json.dumps(Zoo(place).card(name), indent=2, ensure_ascii=False))


def get(
    names: Annotated[list[str], typer.Argument(help="Models.")],
    output: Annotated[Path | None, output_folder("Folder to copy them to, which is then a zoo too.")] = None,
    place: Place = None,
) -> None:
    """Check the files of models against the index, download those of an address, and print where the models are.

    **Example**

        smoothcert zoo get mnist-lenet-catrs-0.50 -o mirror
    """
    zoo = Zoo(place)
    for name in names:
        typer.echo(str(zoo.get(name) if output is None else zoo.copy(name, output) / MODEL))


def _noise(config: dict[str, Any]) -> str:
    scale = next(value for key, value in config.items() if key not in ("name", "grid"))
    return f"{config['name']} {scale:g}"
