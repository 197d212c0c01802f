"""DnCNN, a residual network that removes noise (Zhang, Zuo, Chen, Meng and Zhang, 2017).

Parameters are named as in the checkpoints of Salman et al. (2020): ``dncnn.0`` is the first convolution, ``dncnn.2``
and ``dncnn.3`` are the second and its normalisation, and so on.
"""

from __future__ import annotations

import math

from torch import Tensor, nn


class DnCNN(nn.Module):
    """A stack of 3×3 convolutions that predicts the noise in an image and subtracts it.

    Zhang et al. (2017), §III-A: a convolution and a ReLU, then ``depth`` − 2 times a convolution, a batch normalisation
    and a ReLU, then a convolution back to the channels of the image. The last convolution starts at zero, so that a new
    network leaves images unchanged.

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
