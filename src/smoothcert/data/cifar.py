"""CIFAR-10 and CIFAR-100, in the binary version and in the pickled one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothcert.data.base import ArrayDataset, check_labels
from smoothcert.data.layout import Variant, locate
from smoothcert.data.registry import DatasetInfo
from smoothcert.data.safe_pickle import PickledArray, read_pickle
from smoothcert.types import DataError

FILES = {
    "cifar10": {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
    "cifar100": {"train": ["train"], "test": ["test"]},
}
"""The files of each split; the binary ones end in ``.bin``."""

LABEL_BYTES = {"cifar10": 1, "cifar100": 2}
"""Bytes before the pixels of each binary record; the last one is the class."""

LABEL_KEY = {"cifar10": "labels", "cifar100": "fine_labels"}
"""The key of the classes in a pickled file."""

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32

Batch = tuple[NDArray[np.uint8], NDArray[Any]]


def cifar_files(info: DatasetInfo, split: str) -> list[Variant]:
    """The files of a split: the binary version, or the pickled one."""
    stems = FILES[info.name][split]
    return [[[f"{stem}.bin"] for stem in stems], [[stem] for stem in stems]]


def load_cifar(info: DatasetInfo, split: str, root: Path) -> ArrayDataset:
    """Read one split, the binary version preferred.

    Raises:
        DataError: If a file is missing or damaged.
    """
    paths = locate(info, split, root, cifar_files(info, split))
    batches = []
    for path in paths:
        read = read_binary if path.suffix == ".bin" else read_pickled
        images, labels = read(path, info.name)
        check_labels(labels, info.num_classes, path)
        batches.append((images, labels))
    images = np.concatenate([batch[0] for batch in batches])
    labels = np.concatenate([batch[1] for batch in batches])
    return ArrayDataset(images, labels, name=info.name, split=split, class_names=info.class_names)


def read_binary(path: Path, name: str) -> Batch:
    """Read a binary file: records of label bytes and 3072 pixels, channel by channel.

    Raises:
        DataError: If the file is no whole number of records.
    """
    record = LABEL_BYTES[name] + PIXELS
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): make it readable.") from error
    if content.size == 0 or content.size % record:
        raise DataError(
            f"{path} has {content.size} bytes, no whole number of {name} records of {record} bytes: download it again."
        )
    records = content.reshape(-1, record)
    return records[:, LABEL_BYTES[name] :].reshape(-1, *SHAPE), records[:, LABEL_BYTES[name] - 1]


def read_pickled(path: Path, name: str) -> Batch:
    """Read a file of the "python" version without running anything in it.

    Raises:
        DataError: If the file is damaged, asks for code, or is no such file.
    """
    content = read_pickle(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no dictionary: it is no {name} file, use the right one.")
    data, labels = _entry(content, "data"), _entry(content, LABEL_KEY[name])
    if not isinstance(data, PickledArray) or data.array.shape[1:] != (PIXELS,):
        raise DataError(f"{path} holds no images of {PIXELS} bytes under 'data': it is no {name} file.")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(f"{path} holds no list of integers under '{LABEL_KEY[name]}': it is no {name} file.")
    if len(labels) != len(data.array) or not labels:
        raise DataError(f"{path} holds {len(labels)} labels for {len(data.array)} images: download it again.")
    return data.array.reshape(-1, *SHAPE), np.array(labels, dtype=object)


def _entry(content: dict[Any, Any], key: str) -> Any:
    """The entry, whether Python 2 (bytes) or Python 3 (text) wrote the key."""
    return content.get(key.encode(), content.get(key))
