"""The IDX files of MNIST and Fashion-MNIST, compressed or not; their pixels as they are, or rounded to 0 and 1."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smoothcert.data.base import ArrayDataset, check_labels
from smoothcert.data.layout import Variant, locate
from smoothcert.data.registry import DatasetInfo
from smoothcert.files import unpacked_limit
from smoothcert.types import DataError

PREFIX = {"train": "train", "test": "t10k"}
UNSIGNED_BYTE = 0x08
CHUNK = 1 << 20


def idx_files(info: DatasetInfo, split: str) -> list[Variant]:
    """The image file and the label file of a split."""
    return [[_spellings(PREFIX[split], "images", 3), _spellings(PREFIX[split], "labels", 1)]]


def load_idx(info: DatasetInfo, split: str, root: Path) -> ArrayDataset:
    """Read one split from its image file and its label file.

    Raises:
        DataError: If a file is missing, damaged or does not fit the dataset.
    """
    image_path, label_path = locate(info, split, root, idx_files(info, split))
    images = read_idx(image_path, info.shape[1:])[:, None]
    labels = read_idx(label_path, ())
    if len(images) != len(labels):
        raise DataError(f"{label_path} has {len(labels)} labels for {len(images)} images: use files of one split.")
    check_labels(labels, info.num_classes, label_path)
    scale = 255.0
    if info.binary:
        images, scale = (images >= 128).astype(np.uint8), 1.0
    return ArrayDataset(images, labels, name=info.name, split=split, class_names=info.class_names, scale=scale)


def read_idx(path: Path, item: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes.

    The content is read in pieces, so that a header that claims too much costs no memory, and no further than a file of
    its size can hold in earnest.

    Args:
        path: The file; it is decompressed if its name ends in ``.gz``.
        item: The shape of each of its items.

    Returns:
        All items.

    Raises:
        DataError: If the file is no such file, or holds less or more than its header claims.
    """
    dimensions = 1 + len(item)
    try:
        with _open(path) as stream:
            header = stream.read(4 * (1 + dimensions))
            if len(header) < 4 * (1 + dimensions):
                raise DataError(f"{path} is truncated within its header: download it again.")
            magic, count, *shape = struct.unpack(f">{1 + dimensions}I", header)
            if magic != (UNSIGNED_BYTE << 8) + dimensions:
                raise DataError(
                    f"{path} is no IDX file of bytes in {dimensions} dimensions: its magic number is {magic}, "
                    f"not {(UNSIGNED_BYTE << 8) + dimensions}; use the right file."
                )
            if tuple(shape) != item:
                raise DataError(f"{path} has items of shape {tuple(shape)}, not {item}: use the right file.")
            claimed = count * math.prod(item)
            content = _read_up_to(stream, 1 + min(claimed, unpacked_limit(path.stat().st_size)))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read, it is truncated or damaged ({error}): download it again.") from error
    if len(content) != claimed or claimed == 0:
        held = "more" if len(content) > claimed else str(len(content))
        raise DataError(f"{path} claims {claimed} bytes of content and holds {held}: download it again.")
    return np.frombuffer(content, dtype=np.uint8).reshape((count, *item))


def _spellings(prefix: str, kind: str, dimensions: int) -> list[str]:
    return [f"{prefix}-{kind}{dot}idx{dimensions}-ubyte{end}" for end in (".gz", "") for dot in "-."]


def _open(path: Path) -> io.BufferedIOBase:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _read_up_to(stream: io.BufferedIOBase, size: int) -> bytearray:
    content = bytearray()
    while len(content) < size and (piece := stream.read(min(size - len(content), CHUNK))):
        content += piece
    return content
