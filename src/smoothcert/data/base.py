"""The dataset protocol, and datasets in memory."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from smoothcert.data.classes import ClassList
from smoothcert.tensors import array_tensor
from smoothcert.types import DataError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

Arrays = tuple[NDArray[Any], NDArray[Any]]  # images (count, channels, height, width) and labels


class Dataset(Protocol):
    """Labelled inputs: item ``i`` is a float32 tensor and its class; images are (channels, height, width) in [0, 1].

    A dataset may also have ``input_range``, the range of its values: (0, 1) by default, None for any values.
    """

    @property
    def name(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def num_classes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def class_names(self) -> tuple[str, ...]: ...
    @property
    def levels(self) -> int | None:
        """n if all values are multiples of 1/n: 255 for 8-bit images; None if unknown."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: SupportsIndex) -> tuple[Tensor, int]: ...


class NumberedClasses:
    """The labels of a dataset and the names of its classes.

    Attributes:
        class_names: The names, in the order of the labels.
        by_name: Whether the classes were numbered by sorting their names, so that a model may number them differently.
        complete: Whether the names are all classes that a model of this data has.
    """

    def __init__(self, labels: NDArray[Any], class_names: Sequence[str], *, by_name: bool = False) -> None:
        self._labels = labels.astype(np.int64)
        self.class_names = tuple(class_names)
        self.by_name, self.complete = by_name, False

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def use_classes(self, classes: ClassList) -> None:
        """Number the classes as in a list that has all their names."""
        numbers = np.array([classes.number(name) for name in self.class_names], dtype=np.int64)
        self._labels = numbers[self._labels]
        self.class_names, self.by_name = classes.names, False

    def name_classes(self, classes: ClassList) -> None:
        """Name the classes in the order of the labels."""
        if len(classes.names) < self.num_classes or (self.complete and len(classes.names) != self.num_classes):
            raise DataError(
                f"{classes.origin} lists {len(classes.names)} classes, but the dataset has {self.num_classes}; list "
                "each once, in the order of the labels."
            )
        self.class_names = classes.names


class ArrayDataset(NumberedClasses):
    """Inputs (count, …) in memory, uint8 or float32; items are float32, divided by ``scale``.

    Images are (count, channels, height, width).
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
        by_name: bool = False,
        input_range: tuple[float, float] | None = (0.0, 1.0),
    ) -> None:
        if images.ndim not in (2, 4) or labels.shape != (len(images),):
            raise UsageError(
                f"images {images.shape} and labels {labels.shape} do not match; use (N, C, H, W) and (N,)."
            )
        super().__init__(labels, class_names, by_name=by_name)
        self._images, self._scale = images, scale
        self.name, self.split, self.input_range = name, split, input_range
        self.levels = int(scale) if images.dtype == np.uint8 and scale == int(scale) else None
        self.shape: tuple[int, ...] = images.shape[1:]

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: SupportsIndex) -> tuple[Tensor, int]:
        i = checked_index(index, len(self))
        return self._scaled(self._images[i]), int(self._labels[i])

    def arrays(self) -> tuple[Tensor, Tensor]:
        """Return all inputs (float32) and all labels (int64)."""
        return self._scaled(self._images), array_tensor(self._labels.copy())

    def _scaled(self, images: NDArray[Any]) -> Tensor:
        return array_tensor(images.astype(np.float32)).div_(self._scale)


def checked_index(index: SupportsIndex, length: int) -> int:
    """Return the index as an int, or raise an IndexError; negative ones too, so that each image has one index."""
    i = operator.index(index)
    if not 0 <= i < length:
        raise IndexError(f"index {i} is not among the {length} images")
    return i


def check_labels(labels: NDArray[Any], num_classes: int, path: Path | str) -> None:
    """Raise a DataError unless all labels are in ``range(num_classes)``."""
    invalid = (labels < 0) | (labels >= num_classes)
    if invalid.any():
        first = int(np.argmax(invalid))
        raise DataError(
            f"{path} has label {int(labels[first])} at image {first}, but classes are 0 to {num_classes - 1}; "
            "replace the file with an intact copy."
        )
