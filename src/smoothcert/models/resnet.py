"""Residual networks (He et al., 2016): the CIFAR sizes of Cohen et al. (2019) and the ImageNet sizes.

Parameters are named as in the published checkpoints: ``conv1``, ``bn1``, ``layer1.0.conv1``,
``layer2.0.downsample.0``, ``fc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch.nn.functional as F
from torch import Tensor, nn


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class Padded(nn.Module):
    """A shortcut without parameters: every second pixel, between channels of zeros (option A of He et al.)."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.channels, self.stride = channels, stride

    def forward(self, x: Tensor) -> Tensor:
        missing = self.channels - x.shape[1]
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, missing // 2, missing - missing // 2))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.downsample(x))


class Bottleneck(nn.Module):
    """A 1×1, a 3×3 (with the stride) and a 1×1 convolution around a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = _conv(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + self.downsample(x))


Block: TypeAlias = type[BasicBlock] | type[Bottleneck]


class ResNet(nn.Module):
    """A stem, stages ``layer1``, ``layer2``, … that halve the image and double the width, and one linear layer.

    ``depths`` are the numbers of blocks of the stages, ``width`` the channels of the stem and of the first stage, and
    ``stem`` the layers ``conv1`` and ``maxpool``.
    """

    def __init__(
        self, block: Block, depths: Sequence[int], *, width: int, stem: tuple[nn.Conv2d, nn.Module], num_classes: int
    ) -> None:
        super().__init__()
        self.conv1, self.maxpool = stem
        self.bn1 = nn.BatchNorm2d(width)
        self.stages = [f"layer{stage}" for stage in range(1, len(depths) + 1)]
        channels = width
        for stage, (name, depth) in enumerate(zip(self.stages, depths, strict=True)):
            blocks = []
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(channels, width * 2**stage, stride))
                channels = width * 2**stage * block.expansion
            self.add_module(name, nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            # Initialising meta tensors does nothing but load slow parts of PyTorch.
            if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        logits: Tensor = self.fc(x.mean(dim=(2, 3)))
        return logits


def cifar_resnet(depth: int, num_classes: int, in_channels: int) -> ResNet:
    """Build a ResNet for CIFAR with 1×1 convolutions as shortcuts."""
    stem = (_conv(in_channels, 16, 3), nn.Identity())
    return ResNet(BasicBlock, [(depth - 2) // 6] * 3, width=16, stem=stem, num_classes=num_classes)


def padded_resnet(depth: int, num_classes: int, in_channels: int) -> ResNet:
    """Build a ResNet for CIFAR with shortcuts without parameters, as in the original paper (§4.2)."""
    network = cifar_resnet(depth, num_classes, in_channels)
    for module in network.modules():
        if isinstance(module, BasicBlock) and not isinstance(module.downsample, nn.Identity):
            module.downsample = Padded(module.conv1.out_channels, module.conv1.stride[0])
    return network


def imagenet_resnet(block: Block, depths: Sequence[int], num_classes: int, in_channels: int) -> ResNet:
    """Build a ResNet for ImageNet."""
    stem = (_conv(in_channels, 64, 7, stride=2), nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
    return ResNet(block, depths, width=64, stem=stem, num_classes=num_classes)
