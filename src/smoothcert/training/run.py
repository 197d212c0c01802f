"""From a recipe to a trained model in a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from smoothcert import data, models
from smoothcert.evaluate.cluster import Cluster
from smoothcert.noise import Gaussian
from smoothcert.training.loop import BEST, LAST, make_fabric, train
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
    find: Callable[[str], Recipe] | None = None,
    root: str | os.PathLike[str] | None = None,
    fabric: Fabric | None = None,
    fresh: bool = False,
    progress: bool = True,
    tensorboard: bool = False,
    cluster: Cluster | None = None,
) -> list[dict[str, float]]:
    """Train as a recipe says, continuing what the folder holds.

    Soft labels, and the model that votes for them, are made where they are missing, in a folder beside this one that
    other trainings with the same labels share.

    Args:
        recipe: The recipe.
        folder: Where checkpoints and logs go.
        find: How to find the recipe of the model that makes soft labels; by name among ours by default.
        root: Where the datasets are; the default place if not given.
        fabric: Devices and processes, launched; one device by default.
        fresh: Whether to delete what the folder holds of an earlier training first.
        progress: Whether to show a progress bar on stderr.
        tensorboard: Whether to write TensorBoard logs too.
        cluster: The Ray cluster that counts soft labels, where the method needs them.

    Returns:
        What was measured in each epoch.

    Raises:
        UsageError: If something in the recipe does not fit, or the folder holds another training.
        DataError: If the data is missing.
        SmoothcertError: If the loss is no longer a number.
    """
    folder = Path(folder)
    fabric = fabric or make_fabric(recipe.precision)
    recipe.build_method().check(recipe.build_noise())
    dataset = data.load(recipe.dataset, split="train", root=root)
    for image in range(min(len(dataset), 10)):
        recipe.build_noise().check(dataset[image][0])
    if fresh and fabric.is_global_zero:
        clear(folder)
    fabric.barrier()
    if find is None:
        from smoothcert.training.recipes import load_recipe

        find = load_recipe

    def trained(name: str, use: str) -> Path:
        """The folder of another recipe's training, beside this one."""
        other = find(name)
        try:
            train_recipe(other, folder.parent / other.name, find=find, root=root, fabric=fabric, progress=progress)
        except UsageError as error:
            raise UsageError(f"{use} of {recipe.name} need the model of {other.name}, but {error}") from error
        return folder.parent / other.name

    labels = None
    if recipe.build_method().needs_soft_labels:
        labels = _soft_labels(recipe, find, trained, dataset, folder, fabric, progress, cluster)
    model, info = _model(recipe, dataset)
    if recipe.start is not None:
        _start(model, recipe, find(recipe.start), trained)
    return train(
        model,
        dataset,
        recipe.build_noise(),
        recipe.build_method(),
        recipe,
        folder=folder,
        info=info,
        soft_labels=labels,
        fabric=fabric,
        progress=progress,
        tensorboard=tensorboard,
    )


def clear(folder: Path) -> None:
    """Delete what a training wrote to its folder, and nothing else."""
    for name in (BEST, LAST, SIGMAS, "history.csv", "training.safetensors"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)


def _model(recipe: Recipe, dataset: data.Dataset) -> tuple[torch.nn.Module, models.CheckpointInfo]:
    expected = models.find_model(recipe.model).input_shape
    if dataset.shape[1:] != expected[1:]:
        raise UsageError(
            f"{recipe.model} takes images of {expected[1]}×{expected[2]}, but {recipe.dataset} has "
            f"{dataset.shape[1]}×{dataset.shape[2]}; set another model."
        )
    noise = recipe.build_noise()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = models.build(
            recipe.model,
            num_classes=dataset.num_classes,
            in_channels=dataset.shape[0],
            normalize=recipe.normalize,
        )
    info = models.CheckpointInfo.of(
        recipe.model,
        num_classes=dataset.num_classes,
        in_channels=dataset.shape[0],
        normalize=recipe.normalize,
        noise=noise.config(),
        extra={"recipe": recipe.model_dump(mode="json")},
    )
    return model, info


def _start(model: torch.nn.Module, recipe: Recipe, other: Recipe, trained: Callable[[str, str], Path]) -> None:
    """Give a model the weights of another recipe's, which is trained if it is not there."""
    assert recipe.start is not None
    alike = ("dataset", "model", "normalize")
    if other.start is not None or any(getattr(other, key) != getattr(recipe, key) for key in alike):
        raise UsageError(
            f"{recipe.name} cannot start from {other.name}: use a recipe with the same dataset, model and "
            "normalisation that starts from fresh weights."
        )
    model.load_state_dict(models.load_model(trained(recipe.start, "the first weights") / LAST).state_dict())


def _soft_labels(
    recipe: Recipe,
    find: Callable[[str], Recipe],
    trained: Callable[[str, str], Path],
    dataset: data.Dataset,
    folder: Path,
    fabric: Fabric,
    progress: bool,
    cluster: Cluster | None,
) -> Tensor:
    """Soft labels for every training input, from a model that is trained if it is not there."""
    wanted = recipe.soft_labels
    assert wanted is not None
    teacher = find(wanted.recipe)
    if teacher.build_method().needs_soft_labels or teacher.dataset != recipe.dataset:
        raise UsageError(f"the recipe {wanted.recipe} cannot make soft labels for {recipe.name}: use a Gaussian one.")
    place = trained(wanted.recipe, "the soft labels")
    store = folder.parent / SOFT_LABELS / f"{teacher.name}-{wanted.sigma:g}-{wanted.n}"
    model = models.load_model(place / LAST).to(fabric.device)
    x = dataset.arrays()[0] if isinstance(dataset, data.ArrayDataset) else dataset

    def labels(shown: bool) -> Tensor:
        noise, classes = Gaussian(wanted.sigma), dataset.num_classes
        return soft_labels(
            model, x, noise, n=wanted.n, num_classes=classes, folder=store, progress=shown, cluster=cluster
        )

    if fabric.is_global_zero:
        labels(progress)
    fabric.barrier()
    return labels(False)
