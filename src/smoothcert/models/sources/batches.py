"""Run a model that was exported for one batch size on batches of any size."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FixedBatch(nn.Module):
    """A model that takes batches of exactly ``size`` rows; the last batch is filled up with copies of its last row."""

    def __init__(self, model: nn.Module, size: int) -> None:
        super().__init__()
        self.model, self.size = model, size

    def forward(self, x: Tensor) -> Tensor:
        missing = -len(x) % self.size
        padded = torch.cat([x, x[-1:].expand(missing, *x.shape[1:])]) if missing else x
        return torch.cat([self.model(part) for part in torch.split(padded, self.size)])[: len(x)]


class ChannelsLast(nn.Module):
    """A model that takes images as (height, width, channels)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x.permute(0, 2, 3, 1).contiguous())
        return logits
