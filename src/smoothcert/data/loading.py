"""Load a dataset by its name or its path."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from smoothcert.data import folder
from smoothcert.data.base import ArrayDataset, Arrays, Dataset, check_labels
from smoothcert.data.cifar import cifar_files, read_cifar
from smoothcert.data.idx import idx_files, read_idx
from smoothcert.data.npz import load_npz
from smoothcert.data.registry import DATASETS, IDENTITY, DatasetInfo, Variant, locate, resolve_root
from smoothcert.types import DataError, StrPath, UsageError, unknown_name, wrong_path


def load(name: StrPath, *, split: str = "test", root: StrPath | None = None) -> Dataset:
    """Load a dataset.

    Args:
        name: A named dataset (see ``DATASETS``), one set of a published suite of corruptions (``mnist-c/fog``,
            ``cifar10-c/fog/3``), the path of an ``.npz`` file (keys ``x`` or ``images``, ``y`` or ``labels``,
            optionally ``class_names``; see :func:`smoothcert.data.npz.load_npz`), or a folder with one subfolder of
            images for each class, or with ``train``, ``val`` and ``test`` folders of that kind.
        split: ``train`` or ``test``; for a folder also ``val``. An ``.npz`` file has only one split.
        root: The folder of the named datasets; :func:`default_root` by default.

    Raises:
        UsageError: If the name or the split is unknown.
        DataError: If files are missing or damaged.

    Example:
        >>> image, label = load("digits")[0]
        >>> image.shape
        torch.Size([1, 8, 8])
    """
    text = os.fspath(name)
    path = Path(text).expanduser()
    top, *part = text.split("/")
    info = DATASETS.get(top)
    if info is not None and info.types:
        _check_split(split, info.splits)
        if info.severities and part == [IDENTITY]:  # such a suite has no clean set
            return load(info.clean or "", split=split, root=root)
        return load_published(info, part, split, resolve_root(root))
    if info is not None and not part:
        _check_split(split, info.splits)
        if info.bundled:
            return _load_digits(info, split)
        paths = locate(info, split, resolve_root(root), FILES[info.layout](info, split))
        images, labels = READERS[info.layout](info, paths)
        scale = 1.0 if info.binary else 255.0
        return ArrayDataset(images, labels, name=info.name, split=split, class_names=info.class_names, scale=scale)
    if path.suffix == ".npz":
        _check_split(split, ("train", "test"))
        if not path.exists():
            raise wrong_path(DataError(f"{path} does not exist; give the path of an .npz file."))
        return load_npz(path, split)
    if path.is_dir():
        _check_split(split, folder.SPLITS)
        return folder.ImageFolder(path, split)
    if path.is_file():
        raise UsageError(
            f"{path} is a single file; give an .npz file, or a folder with a subfolder of images for each class."
        )
    if path.name != text:
        raise wrong_path(DataError(f"{path} does not exist; give the path of an .npz file or of a folder of images."))
    raise unknown_name("dataset", text, DATASETS)


def available(name: str, *, root: StrPath | None = None) -> bool:
    """Return whether the files of a named dataset exist; they are not read."""
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    info = DATASETS[name]
    try:
        for split in info.splits:
            if info.layout in FILES:
                locate(info, split, resolve_root(root), FILES[info.layout](info, split))
    except DataError:
        return False
    return True


def _load_digits(info: DatasetInfo, split: str) -> ArrayDataset:
    """Load the digits bundled with scikit-learn, split by a fixed permutation."""
    from sklearn import datasets  # slow to import, and needed for this dataset only

    bunch = datasets.load_digits()
    # RandomState and not Generator: its stream is frozen, so the split is the same with every NumPy.
    order = np.random.RandomState(0).permutation(len(bunch.target))
    chosen = order[: info.train_size] if split == "train" else order[info.train_size :]
    images, labels = bunch.images[chosen, None].astype(np.uint8), bunch.target[chosen]
    return ArrayDataset(images, labels, name=info.name, split=split, class_names=info.class_names, scale=16.0)


def _check_split(split: str, known: tuple[str, ...]) -> None:
    if split not in known:
        raise UsageError(f"unknown split {split!r}; use {' or '.join(known)}.")


def _mnist_c_files(info: DatasetInfo, split: str) -> list[Variant]:
    """Return the images and labels of every type."""
    return [[[name] for kind in (IDENTITY, *info.types) for name in _mnist_c(kind, split)]]


def _cifar_c_files(info: DatasetInfo, split: str) -> list[Variant]:
    """Return the images of every type, and their common labels."""
    return [[["labels.npy"], *([f"{kind}.npy"] for kind in info.types)]]


def load_published(info: DatasetInfo, part: Sequence[str], split: str, root: Path) -> ArrayDataset:
    """Map one set of a suite into memory; ``part`` is its type and, if the suite has severities, its severity."""
    kind, severity = _parse_part(info, part)
    size = info.train_size if split == "train" else info.test_size
    names = _mnist_c(kind, split) if severity is None else [f"{kind}.npy", "labels.npy"]
    images_path, labels_path = locate(info, split, root, [[[name] for name in names]])
    total = size * max(len(info.severities), 1)
    channels, height, width = info.shape
    images = _map_array(images_path, (total, height, width, channels), "uint8")
    labels = _map_array(labels_path, (total,), "whole numbers")
    if severity is not None:  # one block after the other for each severity
        block = slice((severity - 1) * size, severity * size)
        images, labels = images[block], labels[block]
    check_labels(labels, info.num_classes, labels_path)
    name = "-".join([info.name, *part])
    return ArrayDataset(np.moveaxis(images, 3, 1), labels, name=name, split=split, class_names=info.class_names)


def _mnist_c(kind: str, split: str) -> list[str]:
    return [f"{kind}/{split}_images.npy", f"{kind}/{split}_labels.npy"]


def _parse_part(info: DatasetInfo, part: Sequence[str]) -> tuple[str, int | None]:
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


def _map_array(path: Path, shape: tuple[int, ...], numbers: Literal["uint8", "whole numbers"]) -> NDArray[Any]:
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


READERS: dict[str, Callable[[DatasetInfo, Sequence[Path]], Arrays]] = {"idx": read_idx, "cifar": read_cifar}
FILES: dict[str, Callable[[DatasetInfo, str], list[Variant]]] = {
    "idx": idx_files,
    "cifar": cifar_files,
    "mnist-c": _mnist_c_files,
    "cifar-c": _cifar_c_files,
}
