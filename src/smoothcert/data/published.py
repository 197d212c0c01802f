"""Published suites of corruptions: MNIST-C and CIFAR-10-C, in their original arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from smoothcert.data.base import ArrayDataset, check_labels
from smoothcert.data.layout import Variant, locate
from smoothcert.data.registry import IDENTITY, DatasetInfo
from smoothcert.types import DataError, UsageError, unknown_name


def mnist_c_files(info: DatasetInfo, split: str) -> list[Variant]:
    """Return the images and labels of every type."""
    return [[[name] for kind in (IDENTITY, *info.types) for name in _mnist_c(kind, split)]]


def cifar_c_files(info: DatasetInfo, split: str) -> list[Variant]:
    """Return the images of every type, and their common labels."""
    return [[["labels.npy"], *([f"{kind}.npy"] for kind in info.types)]]


def load_published(info: DatasetInfo, part: Sequence[str], split: str, root: Path) -> ArrayDataset:
    """Map one set of a suite into memory; ``part`` is its type and, if the suite has severities, its severity."""
    kind, severity = _parse(info, part)
    size = info.train_size if split == "train" else info.test_size
    names = _mnist_c(kind, split) if severity is None else [f"{kind}.npy", "labels.npy"]
    images_path, labels_path = locate(info, split, root, [[[name] for name in names]])
    total = size * max(len(info.severities), 1)
    channels, height, width = info.shape
    images = _read(images_path, (total, height, width, channels), "uint8")
    labels = _read(labels_path, (total,), "whole numbers")
    if severity is not None:  # one block after the other for each severity
        block = slice((severity - 1) * size, severity * size)
        images, labels = images[block], labels[block]
    check_labels(labels, info.num_classes, labels_path)
    name = "-".join([info.name, *part])
    return ArrayDataset(np.moveaxis(images, 3, 1), labels, name=name, split=split, class_names=info.class_names)


def _mnist_c(kind: str, split: str) -> list[str]:
    return [f"{kind}/{split}_images.npy", f"{kind}/{split}_labels.npy"]


def _parse(info: DatasetInfo, part: Sequence[str]) -> tuple[str, int | None]:
    if len(part) != 1 + bool(info.severities):
        raise UsageError(
            f"{'/'.join([info.name, *part])} is not a single dataset: {info.name} is a suite of corruptions; name one "
            f"as {info.name}/fog{'/3' * bool(info.severities)}, or use all with `smoothcert corruptions run`."
        )
    known = (*info.types, *info.more_types, *(() if info.severities else (IDENTITY,)))
    if part[0] not in known:
        raise unknown_name(f"corruption of {info.name}", part[0], known)
    if not info.severities:
        return part[0], None
    if part[1] not in map(str, info.severities):
        raise UsageError(f"{info.name} has no severity {part[1]}; use 1 to {info.severities[-1]}.")
    return part[0], int(part[1])


def _read(path: Path, shape: tuple[int, ...], numbers: Literal["uint8", "whole numbers"]) -> NDArray[Any]:
    """Map an array into memory; refuse it unless it has the shape and the kind of numbers."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # NumPy's parser of headers raises nearly anything
        raise DataError(f"{path} is not a complete .npy file of numbers ({error}): download it again.") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{path} is an .npz file, not a single array: use the published .npy file.")
    if not (array.dtype == np.uint8 if numbers == "uint8" else array.dtype.kind in "iu"):
        raise DataError(f"{path} has numbers of type {array.dtype}, not {numbers}: use the published file.")
    if array.shape != shape:
        raise DataError(f"{path} has an array of shape {array.shape}, not {shape}: use the published file.")
    return array
