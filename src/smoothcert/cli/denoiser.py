"""``smoothcert denoiser``: train a denoiser for a classifier that was not trained on noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from smoothcert import data, models
from smoothcert.cli.classifiers import HARDWARE
from smoothcert.cli.options import check_choice, output_folder
from smoothcert.training import OBJECTIVES, make_fabric, train_denoiser
from smoothcert.training.recipes import load_recipe
from smoothcert.training.run import clear


def denoiser(
    recipe: Annotated[str, typer.Argument(help="The recipe whose dataset, noise and training settings are used.")],
    output: Annotated[Path, output_folder("Folder of the training.")],
    classifier: Annotated[
        Path | None, typer.Option(help="Checkpoint of the classifier; the objective `mse` needs none.")
    ] = None,
    surrogate: Annotated[
        list[Path] | None,
        typer.Option(help="Checkpoint whose gradients stand for the classifier's, which then gives decisions only."),
    ] = None,
    arch: Annotated[str, typer.Option(help=f"Architecture: {', '.join(models.DENOISERS)}.")] = "dncnn",
    objective: Annotated[str, typer.Option(help=f"{', '.join(OBJECTIVES)}.")] = "mse",
    mse_epochs: Annotated[
        int | None, typer.Option(help="Epochs of mse in mse-then-stability; by default half.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of the recipe: epochs=10, noise.sigma=0.25 …")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete what the folder holds and start again.")] = False,
    data_root: Annotated[Path | None, typer.Option(help="Folder of the named datasets.")] = None,
    device: Annotated[str, typer.Option(rich_help_panel=HARDWARE, help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Train a denoiser to put in front of a classifier that was not trained on noise (Salman et al., 2020).

    Stop it at any time; the same command continues. The weights of the classifier do not change. Several denoisers in
    front of one classifier are an ensemble: `certify MODEL --denoiser A --denoiser B`.

    **Examples**

        smoothcert denoiser digits-gaussian-0.25-quick --arch dncnn-small -o models/denoiser

        smoothcert denoiser cifar10-gaussian-0.25 --classifier clean.safetensors --objective stability -o models/d

        smoothcert certify clean.safetensors --denoiser models/denoiser --data cifar10
    """
    check_choice("objective", objective, OBJECTIVES)
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
