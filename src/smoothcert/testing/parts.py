"""The contracts of architectures, denoisers and datasets."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from smoothcert.classifiers.sealed import COPIES, Sealed
from smoothcert.data import Dataset
from smoothcert.models import ModelInfo


def check_model(info: ModelInfo) -> None:
    """Check that an architecture maps a batch of images to logits, each a fixed function of one image.

    Raises:
        AssertionError: The architecture violates the contract.
        UsageError: The network is random, or its rows depend on each other.
    """
    channels = info.input_shape[0]
    for classes in (info.num_classes, 2):
        network, x = _network(info, classes)
        logits = network(x)
        assert logits.shape == (2, classes), f"{info.name} returned logits of the shape {tuple(logits.shape)}"
        assert logits.isfinite().all(), f"{info.name} returned logits that are not finite"
    first, second = info.builder(classes, channels).state_dict(), network.state_dict()
    assert first.keys() == second.keys(), f"{info.name} has other weights when it is built again"
    Sealed(network).verify(torch.rand(COPIES, *info.input_shape))


def check_denoiser(info: ModelInfo) -> None:
    """Check that a denoiser maps images to images of the same shape, also of another size, and can be trained.

    Raises:
        AssertionError: The denoiser violates the contract.
    """
    for size in ((), (20, 24)):
        network, x = _network(info, info.num_classes)
        x = torch.rand(2, info.input_shape[0], *size) if size else x
        denoised = network(x)
        assert denoised.shape == x.shape, f"{info.name} maps {tuple(x.shape)} to {tuple(denoised.shape)}"
        assert denoised.isfinite().all(), f"{info.name} returned values that are not finite"
    assert any(weight.requires_grad for weight in network.parameters()), f"{info.name} has no weights to train"


def check_dataset(dataset: Dataset, *, items: int = 32) -> None:
    """Check that a dataset has the attributes of ``data.Dataset``, and that its first items match them.

    Raises:
        AssertionError: The dataset violates the contract.
    """
    for name in ("name", "split", "num_classes", "shape", "class_names", "levels"):
        assert hasattr(dataset, name), f"the dataset has no attribute {name}"
    assert len(dataset) > 0, "the dataset is empty"
    assert len(dataset.class_names) in (0, dataset.num_classes), "class_names must have one name for each class"
    for index in range(min(items, len(dataset))):
        (x, label), (again, _) = dataset[index], dataset[index]
        assert x.dtype == torch.float32, f"image {index} is {x.dtype}, not float32"
        assert tuple(x.shape) == tuple(dataset.shape), f"image {index} has the shape {tuple(x.shape)}"
        assert torch.equal(x, again), f"image {index} differs between two readings"
        assert 0 <= float(x.min()) <= float(x.max()) <= 1, f"image {index} has values outside of [0, 1]"
        assert type(label) is int, f"the label of image {index} is a {type(label).__name__}, not an int"
        assert 0 <= label < dataset.num_classes, f"image {index} has the label {label}"
        if dataset.levels is not None:
            steps = x.double() * dataset.levels
            assert (steps - steps.round()).abs().max() < 1e-3, (
                f"image {index} is not on a grid of {dataset.levels} steps"
            )
    try:
        dataset[len(dataset)]
    except IndexError:
        return
    raise AssertionError(f"item {len(dataset)} of {len(dataset)} must raise an IndexError")


def _network(info: ModelInfo, classes: int) -> tuple[nn.Module, Tensor]:
    network = info.builder(classes, info.input_shape[0])
    assert isinstance(network, nn.Module), f"the builder of {info.name} returned a {type(network).__name__}"
    return network.eval(), torch.rand(2, *info.input_shape)
