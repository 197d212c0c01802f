"""The IDX files of MNIST and Fashion-MNIST, compressed or not, with pixels as stored or rounded to 0 and 1."""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from smoothcert.data.base import Arrays, check_labels
from smoothcert.data.registry import DatasetInfo, Variant
from smoothcert.files import unpacked_limit
from smoothcert.types import DataError

PREFIX = {"train": "train", "test": "t10k"}
UNSIGNED_BYTE = 0x08
CHUNK = 1 << 20


def idx_files(info: DatasetInfo, split: str) -> list[Variant]:
    """Return the image file and the label file of a split."""
    return [[_spellings(f"{PREFIX[split]}-images", 3), _spellings(f"{PREFIX[split]}-labels", 1)]]


def read_idx(info: DatasetInfo, paths: Sequence[Path]) -> Arrays:
    """Read an image file and a label file."""
    image_path, label_path = paths
    images, labels = _read(image_path, info.shape[1:])[:, None], _read(label_path, ())
    if len(images) != len(labels):
        raise DataError(f"{label_path} has {len(labels)} labels for {len(images)} images: use files of one split.")
    check_labels(labels, info.num_classes, label_path)
    return (images >= 128).astype(np.uint8) if info.binary else images, labels


def _read(path: Path, item: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, whose items have the shape ``item``; decompress it if it ends in ``.gz``.

    It reads in chunks, so that a false header allocates no memory, and only up to the limit for unpacked files.
    """
    dimensions = 1 + len(item)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            header = stream.read(4 * (1 + dimensions))
            if len(header) < 4 * (1 + dimensions):
                raise DataError(f"{path} is truncated within its header: download it again.")
            magic, count, *shape = struct.unpack(f">{1 + dimensions}I", header)
            if magic != (UNSIGNED_BYTE << 8) + dimensions:
                raise DataError(
                    f"{path} is not an IDX file of bytes in {dimensions} dimensions: its magic number is {magic}, "
                    f"not {(UNSIGNED_BYTE << 8) + dimensions}; use the right file."
                )
            if tuple(shape) != item:
                raise DataError(f"{path} has items of shape {tuple(shape)}, not {item}: use the right file.")
            claimed = count * math.prod(item)
            content = _read_up_to(stream, 1 + min(claimed, unpacked_limit(path.stat().st_size)))
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is truncated or damaged ({error}): download it again.") from error
    if len(content) != claimed or claimed == 0:
        size = "more" if len(content) > claimed else str(len(content))
        raise DataError(f"{path} claims {claimed} bytes of content and has {size}: download it again.")
    return np.frombuffer(content, dtype=np.uint8).reshape((count, *item))


def _spellings(stem: str, dimensions: int) -> list[str]:
    return [f"{stem}{dot}idx{dimensions}-ubyte{end}" for end in (".gz", "") for dot in "-."]


def _read_up_to(stream: io.BufferedIOBase, size: int) -> bytearray:
    content = bytearray()
    while len(content) < size and (chunk := stream.read(min(size - len(content), CHUNK))):
        content += chunk
    return content
