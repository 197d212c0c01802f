"""The dataset protocol, and datasets in memory."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray

from smoothcert.types import DataError, UsageError

Arrays = tuple[NDArray[Any], NDArray[Any]]  # images (count, channels, height, width) and labels


class Dataset(Protocol):
    """Labelled images: item ``i`` is a float32 tensor (channels, height, width) in [0, 1] and its class."""

    name: str
    split: str
    num_classes: int
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    levels: int | None  # n if all values are multiples of 1/n: 255 for 8-bit images; None if unknown

    def __len__(self) -> int: ...
    def __getitem__(self, index: SupportsIndex) -> tuple[torch.Tensor, int]: ...


class ArrayDataset:
    """Images (count, channels, height, width) in memory, uint8 or float32; items are float32, divided by ``scale``."""

    def __init__(
        self,
        images: NDArray[Any],
        labels: NDArray[Any],
        *,
        name: str,
        split: str,
        class_names: Sequence[str],
        scale: float = 255.0,
    ) -> None:
        if images.ndim != 4 or labels.shape != (len(images),):
            raise UsageError(
                f"images {images.shape} and labels {labels.shape} do not match; use (N, C, H, W) and (N,)."
            )
        self._images, self._labels, self._scale = images, labels.astype(np.int64), scale
        self.name, self.split = name, split
        self.class_names = tuple(class_names)
        self.num_classes = len(self.class_names)
        self.levels = int(scale) if images.dtype == np.uint8 and scale == int(scale) else None
        _, channels, height, width = images.shape
        self.shape: tuple[int, int, int] = (channels, height, width)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: SupportsIndex) -> tuple[torch.Tensor, int]:
        i = checked_index(index, len(self))
        return self._scaled(self._images[i]), int(self._labels[i])

    def arrays(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all images (float32, NCHW, in [0, 1]) and all labels (int64)."""
        return self._scaled(self._images), torch.tensor(self._labels)

    def _scaled(self, images: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(images.astype(np.float32)).div_(self._scale)


def checked_index(index: SupportsIndex, length: int) -> int:
    """Return the index as an int, or raise an IndexError; negative ones too, so that each image has one index."""
    i = operator.index(index)
    if not 0 <= i < length:
        raise IndexError(f"index {i} is not among the {length} images")
    return i


def check_labels(labels: NDArray[Any], num_classes: int, path: Path) -> None:
    """Raise a DataError unless all labels are in ``range(num_classes)``."""
    invalid = (labels < 0) | (labels >= num_classes)
    if invalid.any():
        first = int(np.argmax(invalid))
        raise DataError(
            f"{path} has label {int(labels[first])} at image {first}, but classes are 0 to {num_classes - 1}; "
            "replace the file with an intact copy."
        )
