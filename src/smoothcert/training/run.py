"""Train a recipe in a folder, with the soft labels that it needs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from smoothcert import data, models
from smoothcert.certify import Smoothed
from smoothcert.evaluate import Cluster, count_votes
from smoothcert.noise import Gaussian, Noise
from smoothcert.specifiers import Specifier, is_factory
from smoothcert.training.loop import BEST, HISTORY, LAST, make_fabric, train
from smoothcert.training.recipes import load_recipe
from smoothcert.training.resume import FILE
from smoothcert.training.settings import Recipe
from smoothcert.training.sigma import SIGMAS
from smoothcert.types import StrPath, UsageError

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def train_recipe(
    recipe: Recipe,
    folder: StrPath,
    *,
    find: Callable[[str], Recipe] = load_recipe,
    root: StrPath | None = None,
    fabric: Fabric | None = None,
    fresh: bool = False,
    progress: bool = True,
    tensorboard: bool = False,
    cluster: Cluster | None = None,
) -> list[dict[str, float]]:
    """Train a recipe, or continue the training in the folder.

    Models that the recipe needs, for soft labels or as initial weights, are trained if they are missing, in folders
    next to this one that other trainings share.

    Args:
        find: Returns the recipe of a name.
        root: The folder of the named datasets.
        fresh: Whether to delete an earlier training in the folder first.
        cluster: The Ray cluster that counts soft labels.

    Returns, raises and the other arguments are those of :func:`smoothcert.training.train`; a DataError is raised if
    the data is missing.
    """
    folder = Path(folder)
    fabric = fabric or make_fabric(recipe.precision)
    noise, method = recipe.build_noise(), recipe.build_method()
    method.check(noise)
    dataset = data.load(recipe.dataset, split="train", root=root)
    for image in range(min(len(dataset), 10)):
        noise.check(dataset[image][0])
    if fresh and fabric.is_global_zero:
        clear(folder)
    fabric.barrier()

    def trained_model(other: Recipe, use: str) -> nn.Module:
        try:
            train_recipe(other, folder.parent / other.name, find=find, root=root, fabric=fabric, progress=progress)
        except UsageError as error:
            raise UsageError(f"{use} of {recipe.name} need the model of {other.name}, but {error}") from error
        return models.load_model(folder.parent / other.name / LAST, architecture=other.model)

    labels = None
    if method.needs_soft_labels:
        wanted = recipe.soft_labels
        assert wanted is not None
        teacher = find(wanted.recipe)
        if teacher.build_method().needs_soft_labels or teacher.dataset != recipe.dataset:
            raise UsageError(f"{teacher.name} cannot make soft labels for {recipe.name}: use a Gaussian recipe.")
        count = partial(
            soft_labels,
            trained_model(teacher, "the soft labels").to(fabric.device),
            dataset.arrays()[0] if isinstance(dataset, data.ArrayDataset) else dataset,
            Gaussian(wanted.sigma),
            n=wanted.n,
            num_classes=dataset.num_classes,
            folder=folder.parent / "soft-labels" / f"{teacher.name}-{wanted.sigma:g}-{wanted.n}",
            cluster=cluster,
        )
        if fabric.is_global_zero:  # one process counts, and all read
            count(progress=progress)
        fabric.barrier()
        labels = count(progress=False)
    model, info = _model(recipe, dataset, noise)
    if recipe.start is not None:
        other = find(recipe.start)
        same = ("dataset", "model", "normalize")
        if other.start is not None or any(getattr(other, key) != getattr(recipe, key) for key in same):
            raise UsageError(
                f"{recipe.name} cannot start from {other.name}: use a recipe with the same dataset, model and "
                "normalisation that starts from new weights."
            )
        model.load_state_dict(trained_model(other, "the initial weights").state_dict())
    return train(
        model,
        dataset,
        noise=noise,
        method=method,
        settings=recipe,
        folder=folder,
        info=info,
        soft_labels=labels,
        fabric=fabric,
        progress=progress,
        tensorboard=tensorboard,
    )


def clear(folder: Path) -> None:
    """Delete the files of a training, and no others."""
    for name in (BEST, LAST, SIGMAS, HISTORY, FILE):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)


def _model(recipe: Recipe, dataset: data.Dataset, noise: Noise) -> tuple[nn.Module, models.CheckpointInfo]:
    """Build the model of a recipe; one that names a factory imports its code."""
    options: dict[str, Any] = {"num_classes": dataset.num_classes, "in_channels": dataset.shape[0]}
    extra = {"recipe": recipe.model_dump(mode="json")}
    given = Specifier.parse(recipe.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        if is_factory(given.text):
            model = models.build_own(given, normalize=recipe.normalize, **options)
            info = models.CheckpointInfo.of_module(
                model,
                num_classes=dataset.num_classes,
                input_shape=dataset.shape,
                noise=noise.config(),
                architecture=own_model(recipe),
                extra=extra,
            )
            return model, info
        expected = models.find_model(recipe.model).input_shape
        if dataset.shape[1:] != expected[1:]:
            raise UsageError(
                f"{recipe.model} accepts images of {expected[1]}×{expected[2]}, but {recipe.dataset} has "
                f"{'×'.join(map(str, dataset.shape[1:])) or dataset.shape[0]}; set another model."
            )
        options["normalize"] = recipe.normalize
        model = models.build(recipe.model, **options)
    return model, models.CheckpointInfo.of(recipe.model, noise=noise.config(), extra=extra, **options)


def own_model(recipe: Recipe) -> str | None:
    """Return the specifier of a recipe's own model without initial weights, or None for one of ours."""
    given = Specifier.parse(recipe.model)
    if not is_factory(given.text):
        return None
    return ",".join([given.text, *(f"{name}={value}" for name, value in given.options.items() if name != "weights")])


def soft_labels(
    model: nn.Module,
    x: Tensor | data.Dataset,
    noise: Noise,
    *,
    n: int,
    num_classes: int,
    folder: StrPath,
    seed: int = 0,
    progress: bool = True,
    cluster: Cluster | None = None,
) -> Tensor:
    """Return vote shares of each input: ŷ_c = (1/n) Σ 1[f(x + δ_i) = c] (Jeong et al., 2023, Eq. 10).

    Copies with a NaN or infinite logit do not count. A copy of the model runs in evaluation mode. The shares have the
    shape (inputs, classes), on the model's device; each row sums to 1. Arguments and errors are those of
    :func:`smoothcert.evaluate.count_votes`.
    """
    if (Path(folder) / "labels.json").exists():
        raise UsageError(f"{folder} holds soft labels of an earlier version; delete it to count them again.")
    smoothed = Smoothed(model, noise, num_classes=num_classes, input_range=None)
    dataset = [(image, 0) for image in x.detach()] if isinstance(x, Tensor) else x
    found = count_votes(
        smoothed, dataset, n, folder=folder, seed=seed, title="soft labels", progress=progress, cluster=cluster
    )
    votes = torch.tensor(found)
    return (votes / votes.sum(dim=1, keepdim=True)).to(smoothed.device)
