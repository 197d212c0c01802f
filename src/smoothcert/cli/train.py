"""``smoothcert train``, ``smoothcert denoiser`` and ``smoothcert recipes``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from smoothcert import data, models
from smoothcert.cli.options import Changes, DataRoot, Device, FreshTraining, Threads, choice, hardware, output_folder
from smoothcert.cli.procedures import ClusterOptions
from smoothcert.cli.show import show_columns
from smoothcert.training import OBJECTIVES, make_fabric, train_denoiser
from smoothcert.training.recipes import load_recipe, recipe_names, recipe_to_yaml
from smoothcert.training.run import clear, train_recipe
from smoothcert.types import UsageError


def train(
    over: ClusterOptions,
    recipe: Annotated[str, typer.Argument(help="A recipe's name (`smoothcert recipes list`) or a YAML file.")],
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
        smoothcert train cifar10-smoothmix-0.50 --device cuda --processes 4
        smoothcert train cifar10-catrs-0.50 --ray 10.0.0.1:6379 --ray-gpus 1
    """
    cluster = over.build()
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = load_recipe(recipe, changes or [])
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
    typer.echo(f"Next: smoothcert certify {folder} --data {chosen.dataset}")


def denoiser(
    recipe: Annotated[str, typer.Argument(help="The recipe whose dataset, noise and training settings are used.")],
    output: Annotated[Path, output_folder("Folder of the training.")],
    classifier: Annotated[Path | None, "Checkpoint of the classifier; the objective `mse` needs none."] = None,
    surrogate: Annotated[list[Path] | None, "Checkpoints with gradients for a black-box classifier."] = None,
    arch: Annotated[str, f"Architecture: {', '.join(models.DENOISERS)}."] = "dncnn",
    objective: Annotated[str, choice("objective", OBJECTIVES, "Objective")] = "mse",
    mse_epochs: Annotated[int | None, "Epochs of mse in mse-then-stability; by default half."] = None,
    changes: Changes = None,
    fresh: FreshTraining = False,
    data_root: DataRoot = None,
    device: Device = "auto",
) -> None:
    """Train a denoiser in front of a classifier that was not trained on noise (Salman et al., 2020).

    Stop it at any time; the same command continues. The weights of the classifier do not change. Several denoisers in
    front of one classifier are an ensemble: `certify MODEL --denoiser A --denoiser B`.

    **Examples**

        smoothcert denoiser digits-gaussian-0.25-quick --arch dncnn-small -o models/denoiser
        smoothcert denoiser cifar10-gaussian-0.25 --classifier clean.safetensors --objective stability -o models/d
        smoothcert certify clean.safetensors --denoiser models/denoiser --data cifar10
    """
    settings = load_recipe(recipe, changes or [])
    network, noise = models.load_checkpoint(classifier).model if classifier else None, settings.build_noise()
    dataset = data.load(settings.dataset, split="train", root=data_root)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        built = models.build_denoiser(arch, in_channels=dataset.shape[0])
    info = models.CheckpointInfo.of(
        arch, num_classes=dataset.num_classes, in_channels=dataset.shape[0], noise=noise.config()
    )
    if fresh:
        clear(output)
    history = train_denoiser(
        built,
        dataset,
        noise,
        classifier=network,
        surrogates=[models.load_checkpoint(path).model for path in surrogate or ()],
        objective=objective,
        mse_epochs=mse_epochs,
        settings=settings,
        folder=output,
        info=info,
        fabric=make_fabric(settings.precision, device),
    )
    typer.echo(f"{len(history)} epochs, loss {history[-1]['loss']:.4f}")
    typer.echo(f"Next: smoothcert certify {classifier or 'MODEL'} --denoiser {output} --data {settings.dataset}")


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
