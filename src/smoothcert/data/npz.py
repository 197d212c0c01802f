"""Datasets in a NumPy ``.npz`` file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from smoothcert.data.base import ArrayDataset, check_labels
from smoothcert.data.classes import MAX_CLASSES
from smoothcert.data.folder import SPLITS
from smoothcert.files import unpacked_limit
from smoothcert.types import DataError

CHANNELS = (1, 3)
KEYS = (("x", "y"), ("images", "labels"))
SPLIT_KEYS = (("x_{}", "y_{}"), ("{}_images", "{}_labels"))
NAMES = "class_names"
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def load_npz(path: Path, split: str) -> ArrayDataset:
    """Read a dataset from an ``.npz`` file; pickled objects in it are never loaded.

    Keys of the file:
        ``x`` or ``images``: uint8, or float in [0, 1]; (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels.
        ``y`` or ``labels``: one integer class per image.
        ``class_names`` (optional): text; without it the classes are 0 to the largest label.
        A file with several splits has ``x_train`` and ``y_train`` (Keras), or ``train_images`` and ``train_labels``
        (MedMNIST), and so on for the others; without names their classes are 0 to the largest label of all splits.
    """
    arrays = _read(path, split)
    images, labels = arrays["x"], arrays["y"]
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise DataError(f"{path} has {labels.shape[1]} labels for each image; certification needs a single class.")
    labels = labels[:, 0] if labels.shape[1:] == (1,) else labels
    if images.dtype != np.uint8:
        if images.dtype.kind != "f":
            raise DataError(f"{path} has images of type {images.dtype}; store them as uint8 or as float in [0, 1].")
        if not ((images >= 0) & (images <= 1)).all():
            raise DataError(f"{path} has float images with values outside [0, 1]; scale them to [0, 1].")
        images = images.astype(np.float32)
    images = _channels_first(images, path)
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),) or len(images) == 0:
        raise DataError(
            f"{path} has labels of type {labels.dtype} and shape {labels.shape} for {len(images)} images; "
            "store one integer for each image."
        )
    check_labels(labels, MAX_CLASSES, path)
    names = arrays.get(NAMES, np.arange(max(int(labels.max()), arrays["largest"]) + 1).astype(str))
    try:
        class_names = names.tolist()
    except (SystemError, ValueError):  # invalid code points
        class_names = None
    if names.ndim != 1 or names.dtype.kind != "U" or class_names is None:
        raise DataError(f"{path} has class_names that are not a list of text; store one string for each class.")
    check_labels(labels, len(names), path)
    scale = 255.0 if images.dtype == np.uint8 else 1.0
    return ArrayDataset(images, labels, name=path.stem, split=split, class_names=class_names, scale=scale)


def _read(path: Path, split: str) -> dict[str, Any]:
    """Return the arrays of a split as ``x``, ``y`` and ``class_names``, and the ``largest`` label of other splits."""
    try:
        with path.open("rb") as start:
            single = start.read(6) == b"\x93NUMPY"
        if single:
            raise DataError(f"{path} is a single array, not an .npz file; save it with np.savez(path, x=..., y=...).")
        with np.load(path, allow_pickle=False) as file:
            (x, y), others = _keys(list(file), split, path)
            names = [NAMES] if NAMES in file else []
            _check_sizes(file, [x, y, *others, *names], unpacked_limit(path.stat().st_size))
            numbers = [labels.ravel() for labels in (file[key] for key in others) if labels.dtype.kind in "iu"]
            for labels in numbers:
                check_labels(labels, MAX_CLASSES, path)
            known = [int(labels.max()) for labels in numbers if labels.size]
            return {"x": file[x], "y": file[y], "largest": max(known, default=0), **{key: file[key] for key in names}}
    except DataError:
        raise
    except Exception as error:  # the parsers of zip files and of array headers raise nearly anything
        raise DataError(
            f"{path} cannot be read ({error}); use an .npz file of plain arrays, without pickled objects."
        ) from error


def _keys(keys: list[str], split: str, path: Path) -> tuple[tuple[str, str], list[str]]:
    """Return the keys of the images and labels of a split, and those of the labels of other splits."""
    for x, y in SPLIT_KEYS:
        present = {each: (x.format(each), y.format(each)) for each in SPLITS if x.format(each) in keys}
        if present:
            if split not in present:
                raise DataError(f"{path} has no split '{split}', only {', '.join(present)}; use one of these.")
            wanted = present[split]
            if wanted[1] not in keys:
                raise DataError(f"{path} has no key '{wanted[1]}' for the labels of '{wanted[0]}'; add it.")
            return wanted, [label for _, label in present.values() if label in keys and label != wanted[1]]
    found = []
    for first, second in zip(*KEYS, strict=True):
        if first not in keys and second not in keys:
            raise DataError(f"{path} has no key '{first}' or '{second}'; save it with np.savez(path, x=..., y=...).")
        found.append(first if first in keys else second)
    return (found[0], found[1]), []


def _check_sizes(file: Any, keys: list[str], limit: int) -> None:
    """Refuse arrays that unpack to too much, or whose header claims more than they have: NumPy allocates that first."""
    members = {name.removesuffix(".npy"): name for name in file.zip.namelist()}
    sizes = [file.zip.getinfo(members[key]).file_size for key in keys]
    if sum(sizes) > limit:
        raise ValueError(f"it would unpack to {sum(sizes)} bytes")
    for key, size in zip(keys, sizes, strict=True):
        with file.zip.open(members[key]) as stream:
            version = npy.read_magic(stream)
            if version not in _HEADERS:  # needed by arrays of named fields only
                raise ValueError(f"an array has the format version {version}")
            shape, _, dtype = _HEADERS[version](stream)
        if any(side < 0 for side in shape) or math.prod(shape) * max(dtype.itemsize, 1) > size:
            raise ValueError(f"an array claims the shape {shape}, but has {size} bytes")


def _channels_first(images: NDArray[Any], path: Path) -> NDArray[Any]:
    """Find the channel axis: the one of length 1 or 3, or if both are, the one that leaves square images."""
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4:
        _, a, b, c = images.shape
        first, last = a in CHANNELS, c in CHANNELS
        if first and last and (a == b) != (b == c):
            first, last = b == c, a == b
        if first != last:
            return images if first else np.moveaxis(images, 3, 1)
    raise DataError(
        f"{path} has images of shape {images.shape}, which has no clear channel axis; store them as (N, H, W), or as "
        "(N, C, H, W) or (N, H, W, C) with 1 or 3 channels."
    )
