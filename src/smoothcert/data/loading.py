"""Load a dataset by its name or its path."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from smoothcert.data import folder
from smoothcert.data.base import ArrayDataset, Arrays, Dataset
from smoothcert.data.cifar import cifar_files, read_cifar
from smoothcert.data.idx import idx_files, read_idx
from smoothcert.data.layout import StrPath, Variant, locate, resolve_root
from smoothcert.data.npz import load_npz
from smoothcert.data.published import cifar_c_files, load_published, mnist_c_files
from smoothcert.data.registry import DATASETS, IDENTITY, DatasetInfo
from smoothcert.types import DataError, UsageError, unknown_name, wrong_path


def load(name: StrPath, *, split: str = "test", root: StrPath | None = None) -> Dataset:
    """Load a dataset.

    Args:
        name: A named dataset (see ``DATASETS``), one set of a published suite of corruptions (``mnist-c/fog``,
            ``cifar10-c/fog/3``), the path of an ``.npz`` file (keys ``x`` or ``images``, ``y`` or ``labels``,
            optionally ``class_names``; see :func:`smoothcert.data.npz.load_npz`), or a folder with one subfolder of
            images for each class, or with ``train``, ``val`` and ``test`` folders of that kind.
        split: ``train`` or ``test``; for a folder also ``val``. An ``.npz`` file has only one split.
        root: The folder of the named datasets; :func:`default_root` by default.

    Returns:
        The dataset; named ones and ``.npz`` files are an :class:`ArrayDataset`.

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
    """Return whether the files of a named dataset exist; they are not read.

    Raises:
        UsageError: If the name is unknown.
    """
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


READERS: dict[str, Callable[[DatasetInfo, Sequence[Path]], Arrays]] = {"idx": read_idx, "cifar": read_cifar}
FILES: dict[str, Callable[[DatasetInfo, str], list[Variant]]] = {
    "idx": idx_files,
    "cifar": cifar_files,
    "mnist-c": mnist_c_files,
    "cifar-c": cifar_c_files,
}


def _check_split(split: str, known: tuple[str, ...]) -> None:
    if split not in known:
        raise UsageError(f"unknown split {split!r}; use {' or '.join(known)}.")
