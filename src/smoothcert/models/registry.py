"""Architectures by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from smoothcert.models.dncnn import DnCNN
from smoothcert.models.normalize import Normalize, NormalizeSpec, normalization
from smoothcert.models.resnet import BasicBlock, Bottleneck, cifar_resnet, imagenet_resnet, padded_resnet
from smoothcert.models.small import DigitsCNN, LeNet
from smoothcert.models.unet import unet
from smoothcert.plugins import Registry
from smoothcert.types import UsageError


@dataclass(frozen=True)
class ModelInfo:
    """An architecture."""

    name: str
    builder: Callable[[int, int], nn.Module]  # from the numbers of classes and of input channels
    input_shape: tuple[int, int, int]  # channels, height, width
    num_classes: int  # the default


MODELS: Registry[ModelInfo] = Registry(
    "models",
    "architecture",
    ModelInfo,
    {
        info.name: info
        for info in (
            ModelInfo("digits-cnn", DigitsCNN, (1, 8, 8), 10),
            ModelInfo("lenet", LeNet, (1, 28, 28), 10),
            ModelInfo("cifar-resnet20", partial(cifar_resnet, 20), (3, 32, 32), 10),
            ModelInfo("cifar-resnet110", partial(cifar_resnet, 110), (3, 32, 32), 10),
            *(
                ModelInfo(f"padded-resnet{depth}", partial(padded_resnet, depth), (3, 32, 32), 10)
                for depth in (20, 32, 44, 56, 110)
            ),
            ModelInfo("resnet18", partial(imagenet_resnet, BasicBlock, (2, 2, 2, 2)), (3, 224, 224), 1000),
            ModelInfo("resnet50", partial(imagenet_resnet, Bottleneck, (3, 4, 6, 3)), (3, 224, 224), 1000),
        )
    },
)

DENOISERS: Registry[ModelInfo] = Registry(
    "denoisers",
    "denoiser",
    ModelInfo,
    {
        info.name: info
        for info in (
            # the sizes of Zhang et al. (2017) and of Salman et al. (2020), and one for digits on a CPU
            ModelInfo("dncnn", lambda _, channels: DnCNN(channels, depth=17, width=64), (3, 32, 32), 10),
            ModelInfo("dncnn-wide", lambda _, channels: DnCNN(channels, depth=17, width=128), (3, 32, 32), 10),
            ModelInfo("dncnn-small", lambda _, channels: DnCNN(channels, depth=5, width=32), (1, 28, 28), 10),
        )
    },
    reserved=MODELS.own,
)
"""Networks from images to images of the same shape, of any height and width.

They have no classes: ``num_classes`` is that of the usual training data, and no weight depends on it.
"""

DIFFUSION: dict[str, ModelInfo] = {"diffusion": ModelInfo("diffusion", unet, (1, 8, 8), 10)}
"""Networks that predict the noise in an image and are told its level: diffusion models in training."""

ALIASES: dict[str, tuple[str, int]] = {
    "cifar_resnet20": ("cifar-resnet20", 10),
    "cifar_resnet110": ("cifar-resnet110", 10),
    "cifar_resnet110_binary": ("cifar-resnet110", 2),
    "cifar100_resnet110": ("cifar-resnet110", 100),
}
"""Names in earlier systems: our name and the number of classes."""


def find_model(name: str) -> ModelInfo:
    """Find an architecture by a key of ``MODELS``, ``DENOISERS``, ``DIFFUSION`` or ``ALIASES``."""
    if name in ALIASES:
        own, num_classes = ALIASES[name]
        return dataclasses.replace(MODELS[own], num_classes=num_classes)
    known = MODELS | DENOISERS | DIFFUSION
    if name not in known:
        raise MODELS.unknown(name, *DENOISERS)
    return known[name]


def build(
    name: str, *, num_classes: int | None = None, in_channels: int | None = None, normalize: NormalizeSpec = None
) -> nn.Module:
    """Build a classifier with new weights.

    Args:
        name: A key of ``MODELS`` or ``ALIASES``; the architecture also has the default numbers of classes and channels.
        normalize: A preset's name, a (mean, std) pair per channel, or None for no normalisation.

    Returns:
        The network; with ``normalize``, a ``Sequential`` of a ``Normalize`` layer and the network.

    Example:
        >>> sum(p.numel() for p in build("cifar-resnet20").parameters())
        272474
    """
    info = find_model(name)
    if info.name not in MODELS:
        raise UsageError(f"{name} is a denoiser and has no classes; build it with build_denoiser({name!r}).")
    classes = info.num_classes if num_classes is None else num_classes
    if classes < 2:
        raise UsageError(f"num_classes must be at least 2, not {classes}.")
    channels = _channels(info, in_channels)
    values = normalization(normalize, channels)
    network = info.builder(classes, channels)
    return network if values is None else nn.Sequential(Normalize(*values), network)


def build_denoiser(name: str, *, in_channels: int | None = None) -> nn.Module:
    """Build a network with new weights that is trained to denoise.

    Args:
        name: A key of ``DENOISERS``, whose new networks leave images unchanged, or of ``DIFFUSION``.

    Example:
        >>> sum(p.numel() for p in build_denoiser("dncnn", in_channels=1).parameters())
        556096
    """
    known = DENOISERS | DIFFUSION
    if name not in known:
        raise DENOISERS.unknown(name, *DIFFUSION)
    info = known[name]
    return info.builder(info.num_classes, _channels(info, in_channels))


def registered_name(network: nn.Module, num_classes: int, in_channels: int) -> str | None:
    """Return the architecture that ``build`` made this network of, without normalisation; None for other networks."""
    for name in MODELS if type(network).__module__.startswith("smoothcert.models.") else ():
        same = skeleton(name, num_classes, in_channels)
        if type(same) is type(network) and repr(same) == repr(network):
            return name
    return None


def _channels(info: ModelInfo, in_channels: int | None) -> int:
    channels = info.input_shape[0] if in_channels is None else in_channels
    if channels < 1:
        raise UsageError(f"in_channels must be at least 1, not {channels}.")
    return channels


def skeleton(architecture: str, num_classes: int, in_channels: int) -> nn.Module:
    """Build the bare network on the meta device: without memory and without random numbers."""
    with torch.device("meta"):
        return find_model(architecture).builder(num_classes, in_channels)
