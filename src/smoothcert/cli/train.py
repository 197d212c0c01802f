"""``smoothcert train`` and ``smoothcert recipes``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import torch
import typer

from smoothcert.cli.options import Changes, DataRoot, Device, FreshTraining, Threads, hardware, output_folder
from smoothcert.cli.procedures import ClusterOptions
from smoothcert.cli.show import show_columns
from smoothcert.training import make_fabric
from smoothcert.training.recipes import load_recipe, recipe_names, recipe_to_yaml
from smoothcert.training.run import own_model, train_recipe
from smoothcert.types import UsageError


def train(
    over: ClusterOptions,
    recipe: Annotated[str, typer.Argument(help="A recipe's name (`smoothcert recipes list`) or a YAML file.")],
    model: Annotated[
        str | None,
        "Another model than the recipe's: a name, or your own as package.module:factory or file.py:factory, with "
        "arguments as MODEL,name=value.",
    ] = None,
    data_name: Annotated[
        str | None, typer.Option("--data", help="Another dataset than the recipe's, as for `certify`.")
    ] = None,
    normalize: Annotated[str | None, "How the model normalises inputs, as for `certify`; none for not at all."] = None,
    changes: Changes = None,
    output: Annotated[Path | None, output_folder("Folder of the training; by default models/RECIPE.")] = None,
    fresh: FreshTraining = False,
    data_root: DataRoot = None,
    device: Device = "auto",
    processes: Annotated[int, hardware("Processes per node; each uses one device.", min=1)] = 1,
    nodes: Annotated[int, hardware("Nodes.", min=1)] = 1,
    threads: Threads = None,
    tensorboard: Annotated[bool, "Write TensorBoard logs too."] = False,
) -> None:
    """Train a classifier for smoothing by a recipe of the papers, or by your own.

    Stop it at any time; the same command continues, and ends with the same weights. The folder holds the best and the
    last model, history.csv and, in the checkpoints, the recipe. The workers of a Ray cluster (`--ray`) can count the
    votes for the soft labels of CAT-RS; training itself uses `--device`.

    **Examples**

        smoothcert train digits-gaussian-0.25-quick
        smoothcert train mnist-catrs-0.50 --set epochs=10 --set method.lam=0.5 -o models/mine
        smoothcert train digits-consistency-0.25-quick --model nets.py:small,width=8 --data digits -o models/mine
        smoothcert train cifar10-smoothmix-0.50 --device cuda --processes 4
        smoothcert train cifar10-catrs-0.50 --ray 10.0.0.1:6379 --ray-gpus 1
    """
    cluster = over.build()
    if threads is not None:
        torch.set_num_threads(threads)
    named = {"model": model, "dataset": data_name, "normalize": normalize}
    given = [f"{name}={value}" for name, value in named.items() if value is not None]
    chosen = load_recipe(recipe, [*(changes or []), *given])
    folder = output or Path("models") / chosen.name
    fabric = make_fabric(chosen.precision, device, processes, nodes)
    if fabric.world_size > 1:
        fabric.launch()
    history = train_recipe(
        chosen, folder, root=data_root, fabric=fabric, fresh=fresh, tensorboard=tensorboard, cluster=cluster
    )
    if not fabric.is_global_zero:
        return
    last, seconds = history[-1], sum(row["seconds"] for row in history)
    typer.echo(f"{chosen.name}: {len(history)} epochs in {seconds:.0f} s, loss {last['loss']:.4f}")
    if "accuracy" in last:
        radius = chosen.radius or chosen.build_noise().usual_radius
        typer.echo(
            f"On {chosen.holdout} held-out inputs: accuracy {last['accuracy']:.1%}, "
            f"certified at {radius:g} at least {last['certified']:.1%} (from {chosen.votes} votes each)"
        )
    typer.echo(f"Models: {folder / 'best.safetensors'}, {folder / 'last.safetensors'}")
    own = own_model(chosen)
    trained = str(folder) if own is None else f"{own},weights={folder / 'best.safetensors'}"
    typer.echo(f"Next: smoothcert certify {shlex.quote(trained)} --data {shlex.quote(chosen.dataset)}")


def list_recipes(
    filter_text: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only names that contain this.")] = "",
) -> None:
    """List the recipes with their dataset, method, noise and model; quick ones are for a CPU.

    **Examples**

        smoothcert recipes list
        smoothcert recipes list mnist-catrs
    """
    recipes = {name: load_recipe(name) for name in recipe_names() if filter_text in name}
    if not recipes:
        raise UsageError(f"no recipe's name contains {filter_text!r}; run `smoothcert recipes list` for all of them.")
    lines = [["recipe", "dataset", "method", "noise", "model", "epochs"]]
    for name, recipe in recipes.items():
        noise = str(recipe.build_noise())
        lines.append([name, recipe.dataset, recipe.method["name"], noise, recipe.model, str(recipe.epochs)])
    show_columns(lines, left=5)
    typer.echo("\n`smoothcert recipes show NAME` prints all settings and the paper they are from.")


def show_recipe(
    name: Annotated[str, typer.Argument(help="The recipe.")],
    changes: Changes = None,
) -> None:
    """Print a recipe as YAML: redirect it to a file, change it, and train it by its path.

    **Example**

        smoothcert recipes show mnist-catrs-0.50 > mine.yaml
    """
    typer.echo(recipe_to_yaml(load_recipe(name, changes or [])), nl=False)
