"""``smoothcert denoise``."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from smoothcert import data, models
from smoothcert.cli.noises import NoiseOptions
from smoothcert.cli.options import Changes, DataRoot, Device, FreshTraining, Threads, choice, output_folder
from smoothcert.models.unet import PIPELINE
from smoothcert.noise import Gaussian, Noise
from smoothcert.training import (
    DIFFUSION_SETTINGS,
    OBJECTIVES,
    Recipe,
    make_fabric,
    train_denoiser,
    train_diffusion,
)
from smoothcert.training import finetune as finetune_classifier
from smoothcert.training.recipes import load_recipe
from smoothcert.training.run import clear
from smoothcert.types import UsageError

_DEFAULT = "digits-gaussian-0.25-quick"
_ARCHITECTURES = [*models.DENOISERS, *models.DIFFUSION]
DataName = Annotated[
    str | None, typer.Option("--data", help="The training data, instead of the recipe's: a name, file or folder.")
]


def train(
    noise: NoiseOptions,
    output: Annotated[Path, output_folder("Folder of the training.")],
    recipe: Annotated[
        str | None,
        typer.Argument(
            help=f"The recipe whose dataset, noise and training settings are used. With --data, by default {_DEFAULT}."
        ),
    ] = None,
    data_name: DataName = None,
    arch: Annotated[str, choice("denoiser", _ARCHITECTURES, "Architecture")] = "dncnn",
    classifier: Annotated[str | None, "The classifier, as for `certify`; the objective `mse` needs none."] = None,
    surrogate: Annotated[list[str] | None, "Model with gradients for a black-box classifier. May be repeated."] = None,
    objective: Annotated[str, choice("objective", OBJECTIVES, "Objective")] = "mse",
    mse_epochs: Annotated[int | None, "Epochs of mse in mse-then-stability; by default half."] = None,
    changes: Changes = None,
    fresh: FreshTraining = False,
    data_root: DataRoot = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train a denoiser in front of a classifier that was not trained on noise (Salman et al., 2020).

    Stop it at any time; the same command continues. The weights of the classifier do not change. Several denoisers in
    front of one classifier are an ensemble: `certify MODEL --denoiser A --denoiser B`.

    `--arch diffusion` trains a small diffusion model, which denoises at any noise level (Carlini et al., 2023); it
    needs no classifier. Its optimizer, rate and epochs replace those of the recipe; `--set` changes them.

    **Examples**

        smoothcert denoise train --data digits --sigma 0.25 --arch dncnn-small -o models/denoiser
        smoothcert denoise train cifar10-gaussian-0.25 --classifier clean.safetensors --objective stability -o models/d
        smoothcert denoise train --data digits --arch diffusion -o models/ddpm
        smoothcert certify clean.safetensors --denoiser models/ddpm --data digits --sigma 0.25
    """
    if threads is not None:
        torch.set_num_threads(threads)
    if recipe is None and data_name is None:
        raise UsageError("name a recipe (`smoothcert recipes list`), or give --data.")
    diffusion, given = arch in models.DIFFUSION, noise.build()
    if diffusion:
        refused = {"--classifier": classifier, "--surrogate": surrogate, "--mse-epochs": mse_epochs, "a noise": given}
        refused["--objective"] = objective != "mse" or None
        for option, value in refused.items():
            if value is not None:
                raise UsageError(f"a diffusion model learns all noise levels without a classifier; leave out {option}.")
    defaults = [f"{name}={value}" for name, value in DIFFUSION_SETTINGS.items()] if diffusion else []
    settings = load_recipe(recipe or _DEFAULT, [*defaults, *(changes or [])])
    dataset_name = data_name or settings.dataset
    dataset = data.load(dataset_name, split="train", root=data_root)
    channels = dataset.shape[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        network = models.build_denoiser(arch, in_channels=channels)
    teacher = None if classifier is None else models.load_model(classifier)
    surrogates = [models.load_model(each) for each in surrogate or ()]
    fabric = make_fabric(settings.precision, device)
    if fresh:
        clear(output)
        for name in PIPELINE if diffusion else ():
            shutil.rmtree(output / name, ignore_errors=True)
    if diffusion:
        history = train_diffusion(network, dataset, settings=settings, folder=output, fabric=fabric)
    else:
        chosen = given or settings.build_noise()
        history = train_denoiser(
            network,
            dataset,
            chosen,
            classifier=teacher,
            surrogates=surrogates,
            objective=objective,
            mse_epochs=mse_epochs,
            settings=settings,
            folder=output,
            info=models.CheckpointInfo.of(
                arch, num_classes=dataset.num_classes, in_channels=channels, noise=chosen.config()
            ),
            fabric=fabric,
        )
    typer.echo(f"{len(history)} epochs, loss {history[-1]['loss']:.4f}")
    sigma = " --sigma 0.25" if diffusion else ""
    typer.echo(f"Next: smoothcert certify {classifier or 'MODEL'} --denoiser {output} --data {dataset_name}{sigma}")


def finetune(
    noise: NoiseOptions,
    classifier: Annotated[str, typer.Argument(help="The checkpoint of the classifier, or its folder.")],
    recipe: Annotated[
        str, typer.Argument(help="The recipe whose dataset, noise, method and training settings are used.")
    ],
    denoiser: Annotated[str, "The denoiser, as for `certify`."],
    output: Annotated[Path, output_folder("Folder of the training.")],
    data_name: DataName = None,
    changes: Changes = None,
    fresh: FreshTraining = False,
    data_root: DataRoot = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train a classifier further on denoised inputs; the denoiser does not change.

    Stop it at any time; the same command continues. The folder holds the classifier alone, so certify it with the same
    denoiser.

    **Examples**

        smoothcert denoise finetune clean.safetensors digits-gaussian-0.25-quick --denoiser models/ddpm -o models/tuned
        smoothcert certify models/tuned --denoiser models/ddpm --data digits --sigma 0.25
    """
    if threads is not None:
        torch.set_num_threads(threads)
    settings = load_recipe(recipe, changes or [])
    chosen = noise.build() or settings.build_noise()
    dataset_name = data_name or settings.dataset
    dataset = data.load(dataset_name, split="train", root=data_root)
    loaded = models.open_model(classifier)
    front = models.open_denoiser(denoiser, level=chosen.sigma if isinstance(chosen, Gaussian) else None)
    info = _info(loaded, front, settings, chosen)
    if dataset.num_classes > info.num_classes:
        raise UsageError(
            f"{loaded.name} has {info.num_classes} classes, but {dataset_name} has {dataset.num_classes}; use a "
            "dataset with the classes of the classifier."
        )
    if fresh:
        clear(output)
    history = finetune_classifier(
        loaded.model,
        front.model,
        dataset,
        chosen,
        method=settings.build_method(),
        settings=settings,
        folder=output,
        info=info,
        fabric=make_fabric(settings.precision, device),
    )
    last = history[-1]
    typer.echo(f"{len(history)} epochs, loss {last['loss']:.4f}")
    if "accuracy" in last:
        typer.echo(f"On {settings.holdout} held-out inputs, behind the denoiser: accuracy {last['accuracy']:.1%}")
    sigma = f" --sigma {chosen.sigma:g}" if isinstance(chosen, Gaussian) and front.noise is None else ""
    typer.echo(f"Next: smoothcert certify {output} --denoiser {denoiser} --data {dataset_name}{sigma}")


def _info(
    loaded: models.LoadedModel, front: models.LoadedModel, settings: Recipe, noise: Noise
) -> models.CheckpointInfo:
    """Return the metadata of a fine-tuned classifier: its architecture, the noise, and where it comes from."""
    if not loaded.extra:
        raise UsageError(f"{loaded.name} is not a checkpoint, and only those can be saved after training; name one.")
    before = models.CheckpointInfo(**loaded.extra)
    recipe = {**settings.model_dump(mode="json"), "start": loaded.source["sha256"]}
    extra = {"recipe": recipe, "start": dict(loaded.source), "denoiser": dict(front.source)}
    config = noise.config()
    sigma = noise.sigma if isinstance(noise, Gaussian) else None
    return replace(before, noise=config, sigma=sigma, extra=extra)
