"""CIFAR-10 and CIFAR-100, in the binary version and in the pickled one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from smoothcert.data.base import Arrays, check_labels
from smoothcert.data.layout import Variant
from smoothcert.data.registry import DatasetInfo
from smoothcert.data.safe_pickle import PickledArray, read_pickle
from smoothcert.types import DataError

FILES = {
    "cifar10": {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
    "cifar100": {"train": ["train"], "test": ["test"]},
}
LABEL_BYTES = {"cifar10": 1, "cifar100": 2}
"""Bytes before the pixels of each binary record; the last one is the class."""

LABEL_KEY = {"cifar10": "labels", "cifar100": "fine_labels"}
"""The key of the classes in a pickled file."""

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


def cifar_files(info: DatasetInfo, split: str) -> list[Variant]:
    """Return the files of a split: the binary version, or the pickled one."""
    stems = FILES[info.name][split]
    return [[[f"{stem}.bin"] for stem in stems], [[stem] for stem in stems]]


def read_cifar(info: DatasetInfo, paths: Sequence[Path]) -> Arrays:
    """Read and join the files of a split."""
    batches = []
    for path in paths:
        read = _read_binary if path.suffix == ".bin" else _read_pickled
        batches.append(read(path, info.name))
        check_labels(batches[-1][1], info.num_classes, path)
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return images, labels


def _read_binary(path: Path, name: str) -> Arrays:
    """Read records of label bytes and 3072 pixels, channel by channel."""
    record = LABEL_BYTES[name] + PIXELS
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): make it readable.") from error
    if content.size == 0 or content.size % record:
        raise DataError(
            f"{path} has {content.size} bytes, not a multiple of the {record} bytes of a {name} record: "
            "download it again."
        )
    records = content.reshape(-1, record)
    return records[:, LABEL_BYTES[name] :].reshape(-1, *SHAPE), records[:, LABEL_BYTES[name] - 1]


def _read_pickled(path: Path, name: str) -> Arrays:
    """Read a file of the "python" version without running anything in it."""
    content = read_pickle(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a {name} file: it has no dictionary; use the right file.")
    # Python 2 wrote the keys as bytes, Python 3 as text.
    data, labels = (content.get(key.encode(), content.get(key)) for key in ("data", LABEL_KEY[name]))
    if not isinstance(data, PickledArray) or data.array.shape[1:] != (PIXELS,):
        raise DataError(f"{path} is not a {name} file: it has no images of {PIXELS} bytes under 'data'.")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(f"{path} is not a {name} file: it has no list of integers under '{LABEL_KEY[name]}'.")
    if len(labels) != len(data.array) or not labels:
        raise DataError(f"{path} has {len(labels)} labels for {len(data.array)} images: download it again.")
    return data.array.reshape(-1, *SHAPE), np.array(labels, dtype=object)
