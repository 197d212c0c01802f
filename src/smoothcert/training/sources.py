"""Sources of training batches: a dataset in memory, or images read ahead from disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from smoothcert.data import ArrayDataset, Dataset, ImageFolder
from smoothcert.types import UsageError

Batch = tuple[Tensor, Tensor]


class MemorySource:
    """A dataset on the device of training."""

    def __init__(self, x: Tensor, y: Tensor, device: torch.device) -> None:
        if len(x) != len(y):
            raise UsageError(f"training needs as many labels as inputs, got {len(y)} labels and {len(x)} inputs.")
        self._x, self._y = x.to(device), y.to(device)

    def __len__(self) -> int:
        return len(self._x)

    def batches(self, parts: Sequence[Tensor], seed: int) -> Iterator[Batch]:
        """Yield inputs and labels of each part, a tensor of indices."""
        for part in parts:
            rows = part.to(self._x.device)
            yield self._x[rows], self._y[rows]


class FolderSource:
    """Images read from disk in threads, a few batches ahead.

    Args:
        folder: The images.
        device: The device of training.
        crop: Whether to crop and flip at random, as usual for ImageNet.
    """

    def __init__(self, folder: Dataset, device: torch.device, *, crop: bool) -> None:
        self._folder, self._device, self._crop = folder, device, crop

    def __len__(self) -> int:
        return len(self._folder)

    def batches(self, parts: Sequence[Tensor], seed: int) -> Iterator[Batch]:
        """Yield inputs and labels of each part, a tensor of indices; random crops depend on the seed and the index."""
        ahead: deque[list[Future[tuple[Tensor, int]]]] = deque()
        with ThreadPoolExecutor(8) as threads:
            for part in parts:
                ahead.append([threads.submit(self._read, index, seed) for index in part.tolist()])
                if len(ahead) > 2:
                    yield self._stacked(ahead.popleft())
            while ahead:
                yield self._stacked(ahead.popleft())

    def _read(self, index: int, seed: int) -> tuple[Tensor, int]:
        if self._crop and isinstance(self._folder, ImageFolder):
            return self._folder.random_crop(index, np.random.default_rng((seed, index)))
        return self._folder[index]

    def _stacked(self, reading: list[Future[tuple[Tensor, int]]]) -> Batch:
        items = [future.result() for future in reading]
        return torch.stack([x for x, _ in items]).to(self._device), torch.tensor([y for _, y in items]).to(self._device)


Source = MemorySource | FolderSource


def source_of(dataset: Dataset | tuple[Tensor, Tensor], device: torch.device, *, crop: bool = False) -> Source:
    """Return the source of a dataset, or of a pair of all inputs and all labels."""
    if isinstance(dataset, ArrayDataset):
        dataset = dataset.arrays()
    return MemorySource(*dataset, device) if isinstance(dataset, tuple) else FolderSource(dataset, device, crop=crop)
