"""The architectures by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from smoothcert.models.dncnn import dncnn, dncnn_small, dncnn_wide
from smoothcert.models.normalize import Normalize, NormalizeSpec, normalization
from smoothcert.models.resnet import cifar_resnet20, cifar_resnet110, resnet18, resnet50
from smoothcert.models.small import DigitsCNN, LeNet
from smoothcert.types import UsageError, unknown_name


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """An architecture.

    Attributes:
        name: The name in ``MODELS``.
        builder: A function of the number of classes and of input channels that returns the network.
        input_shape: The (channels, height, width) of one input.
        num_classes: The number of classes unless told otherwise.
        note: One line for a listing.
    """

    name: str
    builder: Callable[[int, int], nn.Module]
    input_shape: tuple[int, int, int]
    num_classes: int
    note: str


_ALL = (
    ModelInfo(
        name="digits-cnn",
        builder=DigitsCNN,
        input_shape=(1, 8, 8),
        num_classes=10,
        note="two convolutions for 8×8 digits",
    ),
    ModelInfo(
        name="lenet",
        builder=LeNet,
        input_shape=(1, 28, 28),
        num_classes=10,
        note="LeNet for MNIST (LeCun et al., 1998)",
    ),
    ModelInfo(
        name="cifar-resnet20",
        builder=cifar_resnet20,
        input_shape=(3, 32, 32),
        num_classes=10,
        note="20-layer ResNet for CIFAR (He et al., 2016)",
    ),
    ModelInfo(
        name="cifar-resnet110",
        builder=cifar_resnet110,
        input_shape=(3, 32, 32),
        num_classes=10,
        note="110-layer ResNet for CIFAR (He et al., 2016), as in Cohen et al. (2019)",
    ),
    ModelInfo(
        name="resnet18",
        builder=resnet18,
        input_shape=(3, 224, 224),
        num_classes=1000,
        note="ResNet-18 for ImageNet (He et al., 2016)",
    ),
    ModelInfo(
        name="resnet50",
        builder=resnet50,
        input_shape=(3, 224, 224),
        num_classes=1000,
        note="ResNet-50 for ImageNet (He et al., 2016), as in Cohen et al. (2019)",
    ),
)

MODELS: dict[str, ModelInfo] = {info.name: info for info in _ALL}

_DENOISERS = (
    ModelInfo(
        name="dncnn",
        builder=dncnn,
        input_shape=(3, 32, 32),
        num_classes=10,
        note="DnCNN, 17 layers of width 64 (Zhang et al., 2017)",
    ),
    ModelInfo(
        name="dncnn-wide",
        builder=dncnn_wide,
        input_shape=(3, 32, 32),
        num_classes=10,
        note="DnCNN, 17 layers of width 128 (Salman et al., 2020)",
    ),
    ModelInfo(
        name="dncnn-small",
        builder=dncnn_small,
        input_shape=(1, 28, 28),
        num_classes=10,
        note="DnCNN, 5 layers of width 32, for digits on a CPU",
    ),
)

DENOISERS: dict[str, ModelInfo] = {info.name: info for info in _DENOISERS}
"""Networks from images to images of the same shape, of any height and width.

They have no classes: ``num_classes`` is that of the data they are usually trained on, and enters no weight.
"""

# What earlier systems call them: our name and their number of classes.
ALIASES: dict[str, tuple[str, int]] = {
    "cifar_resnet20": ("cifar-resnet20", 10),
    "cifar_resnet110": ("cifar-resnet110", 10),
    "cifar_resnet110_binary": ("cifar-resnet110", 2),
    "cifar100_resnet110": ("cifar-resnet110", 100),
}


def find_model(name: str) -> ModelInfo:
    """The architecture of this name, or of this name in an earlier system.

    Args:
        name: A key of ``MODELS``, of ``ALIASES`` or of ``DENOISERS``.

    Returns:
        The architecture; for an alias with the number of classes that goes with it.

    Raises:
        UsageError: The name is unknown.
    """
    if name in ALIASES:
        own, num_classes = ALIASES[name]
        return dataclasses.replace(MODELS[own], num_classes=num_classes)
    known = MODELS | DENOISERS
    if name not in known:
        raise unknown_name("architecture", name, known)
    return known[name]


def build(
    name: str, *, num_classes: int | None = None, in_channels: int | None = None, normalize: NormalizeSpec = None
) -> nn.Module:
    """Build a network with fresh weights.

    Args:
        name: A key of ``MODELS``, or the name of an earlier system such as ``cifar_resnet110``.
        num_classes: The number of classes; by default the architecture's own.
        in_channels: The number of input channels; by default the architecture's own.
        normalize: A preset's name, a (mean, std) pair per channel, or None for no normalisation.

    Returns:
        The network; with ``normalize``, a ``Sequential`` of a ``Normalize`` layer and the network.

    Raises:
        UsageError: An unknown name or that of a denoiser, fewer than two classes, no channel, or a normalisation that
            does not fit.

    Example:
        >>> sum(p.numel() for p in build("cifar-resnet20").parameters())
        272474
    """
    info = find_model(name)
    if info.name in DENOISERS:
        raise UsageError(f"{name} is a denoiser and has no classes; make it with build_denoiser({name!r}).")
    classes = info.num_classes if num_classes is None else num_classes
    channels = info.input_shape[0] if in_channels is None else in_channels
    if classes < 2:
        raise UsageError(f"num_classes must be at least 2, not {classes}.")
    if channels < 1:
        raise UsageError(f"in_channels must be at least 1, not {channels}.")
    values = normalization(normalize, channels)
    network = info.builder(classes, channels)
    return network if values is None else nn.Sequential(Normalize(*values), network)


def build_denoiser(name: str, *, in_channels: int | None = None) -> nn.Module:
    """Build a network that removes noise from images, with fresh weights.

    Args:
        name: A key of ``DENOISERS``.
        in_channels: The number of channels of an image; by default the architecture's own.

    Returns:
        The network, from images in [0, 1] with noise to images of the same shape; fresh, it leaves them as they are.

    Raises:
        UsageError: An unknown name or no channel.

    Example:
        >>> sum(p.numel() for p in build_denoiser("dncnn", in_channels=1).parameters())
        556096
    """
    if name not in DENOISERS:
        raise unknown_name("denoiser", name, DENOISERS)
    info = DENOISERS[name]
    channels = info.input_shape[0] if in_channels is None else in_channels
    if channels < 1:
        raise UsageError(f"in_channels must be at least 1, not {channels}.")
    return info.builder(info.num_classes, channels)
