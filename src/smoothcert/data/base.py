"""What a dataset is, and the one kept in memory."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray

from smoothcert.types import DataError, UsageError


class Dataset(Protocol):
    """Labelled images: item ``i`` is a float32 tensor (channels, height, width) in [0, 1] and its class."""

    @property
    def name(self) -> str: ...

    @property
    def split(self) -> str: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def shape(self) -> tuple[int, int, int]: ...

    @property
    def class_names(self) -> tuple[str, ...]: ...

    @property
    def levels(self) -> int | None:
        """The number of steps from 0 to 1 whose multiples all values are: 255 for 8-bit images; None if unknown."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: SupportsIndex) -> tuple[torch.Tensor, int]: ...


class ArrayDataset:
    """Images held in memory as they were stored, and turned into float32 when asked for.

    Args:
        images: Images (count, channels, height, width), uint8 or float32.
        labels: One class per image.
        name: The name of the dataset.
        split: The split the images belong to.
        class_names: The name of each class; their number is the number of classes.
        scale: The stored value that stands for 1.

    Raises:
        UsageError: If images and labels do not fit each other.
    """

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
            raise UsageError(f"images {images.shape} and labels {labels.shape} do not fit: use (N, C, H, W) and (N,).")
        self._images = images
        self._labels = labels.astype(np.int64)
        self._scale = scale
        self.name = name
        self.split = split
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
        """All images (float32, NCHW, in [0, 1]) and all labels (int64)."""
        return self._scaled(self._images), torch.tensor(self._labels)

    def _scaled(self, images: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(images.astype(np.float32)).div_(self._scale)


def checked_index(index: SupportsIndex, length: int) -> int:
    """The index as an int; negative ones are refused, so that an index always names one image.

    Raises:
        IndexError: If the index is not in ``range(length)``.
    """
    i = operator.index(index)
    if not 0 <= i < length:
        raise IndexError(f"index {i} is not among the {length} images")
    return i


def check_labels(labels: NDArray[Any], num_classes: int, path: Path) -> None:
    """Refuse labels that are no class.

    Raises:
        DataError: If a label is negative or not below ``num_classes``.
    """
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise DataError(
            f"{path} has label {int(labels[first])} at image {first}, where only 0 to {num_classes - 1} are classes; "
            "replace the file by a good copy."
        )
