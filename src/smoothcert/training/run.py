"""Train a recipe in a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from smoothcert import data, models
from smoothcert.evaluate.cluster import Cluster
from smoothcert.noise import Gaussian
from smoothcert.training.loop import BEST, HISTORY, LAST, make_fabric, train
from smoothcert.training.recipes import load_recipe
from smoothcert.training.resume import FILE
from smoothcert.training.settings import Recipe
from smoothcert.training.sigma import SIGMAS
from smoothcert.training.soft_labels import soft_labels
from smoothcert.types import UsageError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SOFT_LABELS = "soft-labels"


def train_recipe(
    recipe: Recipe,
    folder: str | os.PathLike[str],
    *,
    find: Callable[[str], Recipe] = load_recipe,
    root: str | os.PathLike[str] | None = None,
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
        recipe: The recipe.
        folder: The folder of checkpoints and logs.
        find: Returns the recipe of a name.
        root: The folder of the named datasets.
        fabric: Devices and processes, launched; one device by default.
        fresh: Whether to delete an earlier training in the folder first.
        progress: Whether to show a progress bar on stderr.
        tensorboard: Whether to write TensorBoard logs as well.
        cluster: The Ray cluster that counts soft labels.

    Returns:
        The measurements of each epoch.

    Raises:
        UsageError: If the recipe is inconsistent, or the folder holds another training.
        DataError: If the data is missing.
        SmoothcertError: If the loss is not finite.
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
        return models.load_model(folder.parent / other.name / LAST)

    labels = None
    if method.needs_soft_labels:
        assert recipe.soft_labels is not None
        teacher = find(recipe.soft_labels.recipe)
        if teacher.build_method().needs_soft_labels or teacher.dataset != recipe.dataset:
            raise UsageError(f"{teacher.name} cannot make soft labels for {recipe.name}: use a Gaussian recipe.")
        voter = trained_model(teacher, "the soft labels").to(fabric.device)
        place = folder.parent / SOFT_LABELS / f"{teacher.name}-{recipe.soft_labels.sigma:g}-{recipe.soft_labels.n}"
        labels = _soft_labels(recipe, voter, dataset, place, fabric, progress, cluster)
    model, info = _model(recipe, dataset)
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
        noise,
        method,
        recipe,
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


def _model(recipe: Recipe, dataset: data.Dataset) -> tuple[nn.Module, models.CheckpointInfo]:
    expected = models.find_model(recipe.model).input_shape
    if dataset.shape[1:] != expected[1:]:
        raise UsageError(
            f"{recipe.model} accepts images of {expected[1]}×{expected[2]}, but {recipe.dataset} has "
            f"{dataset.shape[1]}×{dataset.shape[2]}; set another model."
        )
    options: dict[str, Any] = {"num_classes": dataset.num_classes, "in_channels": dataset.shape[0]}
    options["normalize"] = recipe.normalize
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = models.build(recipe.model, **options)
    extra = {"recipe": recipe.model_dump(mode="json")}
    return model, models.CheckpointInfo.of(recipe.model, noise=recipe.build_noise().config(), extra=extra, **options)


def _soft_labels(
    recipe: Recipe,
    model: nn.Module,
    dataset: data.Dataset,
    folder: Path,
    fabric: Fabric,
    progress: bool,
    cluster: Cluster | None,
) -> Tensor:
    """Count soft labels in one process, and read them in all."""
    assert recipe.soft_labels is not None
    x = dataset.arrays()[0] if isinstance(dataset, data.ArrayDataset) else dataset
    noise, n = Gaussian(recipe.soft_labels.sigma), recipe.soft_labels.n
    options: dict[str, Any] = {"n": n, "num_classes": dataset.num_classes, "folder": folder, "cluster": cluster}
    if fabric.is_global_zero:
        soft_labels(model, x, noise, progress=progress, **options)
    fabric.barrier()
    return soft_labels(model, x, noise, progress=False, **options)
