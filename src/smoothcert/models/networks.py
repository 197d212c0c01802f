"""The networks: small ones for digits, residual networks, and denoisers.

Parameters are named as in the published checkpoints of Cohen et al. (2019), Salman et al. (2020) and others: ``conv1``,
``bn1``, ``layer1.0.conv1``, ``layer2.0.downsample.0``, ``fc``; in a DnCNN, ``dncnn.0`` is the first convolution,
``dncnn.2`` and ``dncnn.3`` are the second and its normalisation, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch.nn.functional as F
from torch import Tensor, nn


class DigitsCNN(nn.Module):
    """Two convolutions and two linear layers for 8×8 digits; trains in seconds on a CPU."""

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits


class LeNet(nn.Module):
    """The LeNet variant that the smoothing papers train on MNIST (Zhai et al., 2020; Jeong and Shin, 2020).

    After LeCun et al. (1998): convolutions 20@5×5 and 50@5×5, each pooled by 2, then 500 hidden units.
    """

    def __init__(self, num_classes: int, in_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 20, kernel_size=5)
        self.conv2 = nn.Conv2d(20, 50, kernel_size=5)
        self.fc1 = nn.Linear(50 * 4 * 4, 500)
        self.fc2 = nn.Linear(500, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut (He et al., 2016)."""

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


def imagenet_resnet(block: Block, depths: Sequence[int], num_classes: int, in_channels: int) -> ResNet:
    """Build a ResNet for ImageNet."""
    stem = (_conv(in_channels, 64, 7, stride=2), nn.MaxPool2d(kernel_size=3, stride=2, padding=1))
    return ResNet(block, depths, width=64, stem=stem, num_classes=num_classes)


class DnCNN(nn.Module):
    """A stack of 3×3 convolutions that predicts the noise in an image and subtracts it.

    Zhang, Zuo, Chen, Meng and Zhang (2017), §III-A: a convolution and a ReLU, then ``depth`` − 2 times a convolution,
    a batch normalisation and a ReLU, then a convolution back to the channels of the image. The last convolution starts
    at zero, so that a new network leaves images unchanged.

    Example:
        >>> import torch
        >>> images = torch.rand(2, 1, 8, 8)
        >>> torch.equal(DnCNN(1, depth=5, width=8)(images), images)
        True
    """

    def __init__(self, in_channels: int, depth: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(in_channels, width, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
        for _ in range(depth - 2):
            # The published weights were trained with this epsilon.
            normalization = nn.BatchNorm2d(width, eps=1e-4)
            layers += [nn.Conv2d(width, width, kernel_size=3, padding=1, bias=False), normalization]
            layers.append(nn.ReLU(inplace=True))
        layers.append(nn.Conv2d(width, in_channels, kernel_size=3, padding=1, bias=False))
        self.dncnn = nn.Sequential(*layers)
        # Initialising meta tensors does nothing but load slow parts of PyTorch.
        if not self.dncnn[0].weight.is_meta:
            self._initialize(width)

    def _initialize(self, width: int) -> None:
        convolutions = [module for module in self.dncnn if isinstance(module, nn.Conv2d)]
        for convolution in convolutions[:-1]:
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        for weight in (convolutions[0].bias, convolutions[-1].weight):
            assert weight is not None
            nn.init.zeros_(weight)
        # The last convolution sums 9·width features of mean square gain²/2. With a gain of 1 the sum is so large that
        # gradient descent diverges at the learning rates that the earlier layers need; this gain makes it 1.
        for last in [module for module in self.dncnn if isinstance(module, nn.BatchNorm2d)][-1:]:
            nn.init.constant_(last.weight, math.sqrt(2 / (9 * width)))

    def forward(self, x: Tensor) -> Tensor:
        residual: Tensor = self.dncnn(x)
        return x - residual
