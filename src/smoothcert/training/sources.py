"""Training batches from a dataset in memory or on disk, and their augmentation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

from smoothcert.data import ArrayDataset, Dataset, Images
from smoothcert.data.inputs import Indexable, labelled_input
from smoothcert.tensors import as_tensor
from smoothcert.types import UsageError

Batch = tuple[Tensor, Tensor]
TrainingData: TypeAlias = Dataset | Indexable | tuple[Any, Any]
"""A dataset with a length and (input, label) pairs by index, or a pair of all inputs and all labels."""

SHIFT = 4


class Source:
    """Batches on the device of training, from memory or read from the dataset.

    Image folders are read a few batches ahead by several threads. Other datasets are read in this thread in order, as
    their code may not be thread-safe, and random transforms draw from the generator that the loop seeds.

    Args:
        dataset: A dataset, or a pair of all inputs and all labels.
        device: The device of training.
        crop: Whether to crop and flip images of a folder at random, as usual for ImageNet.
        dtype: The type of the inputs.

    Raises:
        UsageError: If it is not a dataset, or inputs or labels are of other types.
    """

    def __init__(
        self,
        dataset: TrainingData,
        device: torch.device,
        *,
        crop: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.name: str | None = getattr(dataset, "name", None)
        self._classes: int | None = None
        self._device, self._dtype, self._crop = device, dtype, crop
        if isinstance(dataset, ArrayDataset):
            dataset = dataset.arrays()
        elif isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
            dataset = dataset.tensors[0], dataset.tensors[1]
        if isinstance(dataset, tuple) and len(dataset) == 2:
            dataset = self._in_memory(*dataset)
        elif not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            more = "; give its .dataset" if hasattr(dataset, "dataset") else ""
            raise UsageError(
                f"a {type(dataset).__name__} is not a dataset with a length and (input, label) pairs by index{more}."
            )
        self._data: Any = dataset

    def __len__(self) -> int:
        return len(self._data[0] if isinstance(self._data, tuple) else self._data)

    @property
    def is_folder(self) -> bool:
        """Whether the inputs are files of an image folder."""
        return isinstance(self._data, Images)

    def check_labels(self, num_classes: int) -> None:
        """Refuse labels that are not below the number of classes: in memory now, others when they are read."""
        self._classes = num_classes
        if isinstance(self._data, tuple):
            self._checked(self._data[1].cpu(), torch.arange(len(self)))

    def batches(self, parts: Sequence[Tensor], seed: int) -> Iterator[Batch]:
        """Yield inputs and labels of each part, a tensor of indices; random crops depend on the seed and the index."""
        if isinstance(self._data, tuple):
            for part in parts:
                rows = part.to(self._device)
                yield self._data[0][rows], self._data[1][rows]
        elif not self.is_folder:
            for part in parts:
                yield self._stacked([self._item(index) for index in part.tolist()], part)
        else:
            yield from self._ahead(parts, seed)

    def _ahead(self, parts: Sequence[Tensor], seed: int) -> Iterator[Batch]:
        ahead: deque[Any] = deque()
        with ThreadPoolExecutor(8) as threads:
            for part in parts:
                ahead.append(([threads.submit(self._read, index, seed) for index in part.tolist()], part))
                if len(ahead) > 2:
                    reading, first = ahead.popleft()
                    yield self._stacked([future.result() for future in reading], first)
            while ahead:
                reading, first = ahead.popleft()
                yield self._stacked([future.result() for future in reading], first)

    def _read(self, index: int, seed: int) -> tuple[Tensor, int]:
        if self._crop:
            found: tuple[Tensor, int] = self._data.random_crop(index, np.random.default_rng((seed, index)))
            return found
        return self._item(index)

    def _item(self, index: int) -> tuple[Tensor, int]:
        x, label = labelled_input(self._data, index)
        return _floats(as_tensor(x)), label

    def _in_memory(self, x: Any, y: Any) -> Batch:
        x, y = _floats(as_tensor(x)), as_tensor(y)
        if y.ndim != 1 or y.is_floating_point():
            raise UsageError(f"labels must be class numbers, one per input, got {y.dtype} of shape {tuple(y.shape)}.")
        if len(x) != len(y):
            raise UsageError(f"training needs as many labels as inputs, got {len(y)} labels and {len(x)} inputs.")
        return x.detach().to(self._device, self._dtype), y.to(self._device, torch.long)

    def _stacked(self, items: list[tuple[Tensor, int]], part: Tensor) -> Batch:
        shapes = list(dict.fromkeys(tuple(x.shape) for x, _ in items))
        if len(shapes) > 1:
            raise UsageError(
                f"training inputs have different shapes, such as {shapes[0]} and {shapes[1]}; resize them."
            )
        x = torch.stack([x for x, _ in items]).detach().to(self._device, self._dtype)
        return x, self._checked(torch.tensor([y for _, y in items]), part).to(self._device)

    def _checked(self, labels: Tensor, part: Tensor) -> Tensor:
        """Refuse labels that are not among the classes."""
        if self._classes is not None:
            invalid = (labels < 0) | (labels >= self._classes)
            if bool(invalid.any()):
                first = int(invalid.int().argmax())
                raise UsageError(
                    f"input {int(part[first])} has the label {int(labels[first])}, but the model has the classes 0 to "
                    f"{self._classes - 1}; change the labels, or the number of outputs of the model."
                )
        return labels


def _floats(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        raise UsageError(f"training inputs have the type {x.dtype}; scale them to floats in [0, 1], as x / 255.")
    return x


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
