"""Training batches from a dataset in memory or on disk, and their augmentation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from smoothcert.data import ArrayDataset, Dataset, ImageFolder
from smoothcert.types import UsageError

Batch = tuple[Tensor, Tensor]
SHIFT = 4


class Source:
    """Batches on the device of training, from memory or read from disk a few batches ahead.

    Args:
        dataset: A dataset, or a pair of all inputs and all labels.
        device: The device of training.
        crop: Whether to crop and flip images from disk at random, as usual for ImageNet.
    """

    def __init__(self, dataset: Dataset | Batch, device: torch.device, *, crop: bool = False) -> None:
        if isinstance(dataset, ArrayDataset):
            dataset = dataset.arrays()
        if isinstance(dataset, tuple):
            x, y = dataset
            if len(x) != len(y):
                raise UsageError(f"training needs as many labels as inputs, got {len(y)} labels and {len(x)} inputs.")
            dataset = x.to(device), y.to(device)
        self._data, self._device, self._crop = dataset, device, crop

    def __len__(self) -> int:
        return len(self._data[0] if isinstance(self._data, tuple) else self._data)

    def batches(self, parts: Sequence[Tensor], seed: int) -> Iterator[Batch]:
        """Yield inputs and labels of each part, a tensor of indices; random crops depend on the seed and the index."""
        if isinstance(self._data, tuple):
            for part in parts:
                rows = part.to(self._device)
                yield self._data[0][rows], self._data[1][rows]
            return
        ahead: deque[list[Future[tuple[Tensor, int]]]] = deque()
        with ThreadPoolExecutor(8) as threads:
            for part in parts:
                ahead.append([threads.submit(self._read, index, seed) for index in part.tolist()])
                if len(ahead) > 2:
                    yield self._stacked(ahead.popleft())
            while ahead:
                yield self._stacked(ahead.popleft())

    def _read(self, index: int, seed: int) -> tuple[Tensor, int]:
        assert not isinstance(self._data, tuple)
        if self._crop and isinstance(self._data, ImageFolder):
            return self._data.random_crop(index, np.random.default_rng((seed, index)))
        return self._data[index]

    def _stacked(self, reading: list[Future[tuple[Tensor, int]]]) -> Batch:
        items = [future.result() for future in reading]
        return torch.stack([x for x, _ in items]).to(self._device), torch.tensor([y for _, y in items]).to(self._device)


def flip_and_shift(x: Tensor, draws: Tensor) -> Tensor:
    """Flip and shift images at random by up to four pixels with zero padding, as usual for CIFAR.

    Args:
        x: Images (batch, channels, height, width).
        draws: Uniform numbers in [0, 1), of shape (3, batch).
    """
    count, channels, height, width = x.shape
    flip = draws[0] < 0.5
    down, right = (draws[1:] * (2 * SHIFT + 1)).long().clamp(max=2 * SHIFT)
    rows = torch.arange(height, device=x.device) + down[:, None]
    columns = torch.arange(width, device=x.device).expand(count, width)
    columns = torch.where(flip[:, None], width - 1 - columns, columns) + right[:, None]
    padded = F.pad(x, [SHIFT] * 4)
    images = torch.arange(count, device=x.device)[:, None, None, None]
    planes = torch.arange(channels, device=x.device)[None, :, None, None]
    return padded[images, planes, rows[:, None, :, None], columns[:, None, None, :]]
