"""``smoothcert denoiser``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from smoothcert import data, models
from smoothcert.cli.options import Changes, DataRoot, Device, FreshTraining, choice, output_folder
from smoothcert.training import OBJECTIVES, make_fabric, train_denoiser
from smoothcert.training.recipes import load_recipe
from smoothcert.training.run import clear


def denoiser(
    recipe: Annotated[str, typer.Argument(help="The recipe whose dataset, noise and training settings are used.")],
    output: Annotated[Path, output_folder("Folder of the training.")],
    classifier: Annotated[Path | None, "Checkpoint of the classifier; the objective `mse` needs none."] = None,
    surrogate: Annotated[
        list[Path] | None,
        typer.Option(help="Checkpoint whose gradients replace those of a black-box classifier. May be repeated."),
    ] = None,
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
