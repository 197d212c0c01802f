"""Load a dataset by its name or its path."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from smoothcert.data import folder
from smoothcert.data.base import ArrayDataset, Dataset
from smoothcert.data.cifar import cifar_files, load_cifar
from smoothcert.data.idx import idx_files, load_idx
from smoothcert.data.layout import StrPath, Variant, locate, resolve_root
from smoothcert.data.npz import load_npz
from smoothcert.data.registry import DATASETS, DatasetInfo
from smoothcert.types import DataError, UsageError, unknown_name

SPLITS = ("train", "test")
DIGITS_SEED = 0


def load(name: StrPath, *, split: str = "test", root: StrPath | None = None) -> Dataset:
    """Load a dataset.

    Args:
        name: A named dataset (see ``DATASETS``), the path of an ``.npz`` file (keys ``x`` or ``images``, ``y`` or
            ``labels``, optionally ``class_names``; see :func:`smoothcert.data.npz.load_npz`), or an existing folder
            with one subfolder of images for each class, or ``train``, ``val`` and ``test`` folders of such.
        split: ``train`` or ``test``; for a folder also ``val``. An ``.npz`` file holds only one split.
        root: Where the named datasets are; :func:`default_root` if not given.

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
    if text in DATASETS:
        _check_split(split, SPLITS)
        info = DATASETS[text]
        return READERS[info.layout](info, split, resolve_root(root))
    if path.suffix == ".npz":
        _check_split(split, SPLITS)
        return load_npz(path, split)
    if path.is_dir():
        _check_split(split, folder.SPLITS)
        return folder.ImageFolder(path, split)
    if path.name != text:
        raise DataError(f"{path} is not there: give the path of an .npz file or of a folder of images.")
    raise unknown_name("dataset", text, DATASETS)


def available(name: str, *, root: StrPath | None = None) -> bool:
    """Whether the files of a named dataset are there; they are not read.

    Raises:
        UsageError: If the name is unknown.
    """
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    info = DATASETS[name]
    try:
        for split in SPLITS:
            if info.layout in FILES:
                locate(info, split, resolve_root(root), FILES[info.layout](info, split))
    except DataError:
        return False
    return True


def load_digits(info: DatasetInfo, split: str, root: Path) -> ArrayDataset:
    """The digits bundled with scikit-learn, split by a fixed permutation."""
    from sklearn import datasets  # slow to import, and needed for this dataset only

    bunch = datasets.load_digits()
    # RandomState and not Generator: its stream is frozen, so the split is the same with every NumPy.
    order = np.random.RandomState(DIGITS_SEED).permutation(len(bunch.target))
    chosen = order[: info.train_size] if split == "train" else order[info.train_size :]
    images = bunch.images[chosen, None].astype(np.uint8)
    labels = bunch.target[chosen]
    return ArrayDataset(images, labels, name=info.name, split=split, class_names=info.class_names, scale=16.0)


READERS: dict[str, Callable[[DatasetInfo, str, Path], ArrayDataset]] = {
    "bundled": load_digits,
    "idx": load_idx,
    "cifar": load_cifar,
}
"""How each layout is read."""

FILES: dict[str, Callable[[DatasetInfo, str], list[Variant]]] = {"idx": idx_files, "cifar": cifar_files}
"""The files of each layout that has any."""


def _check_split(split: str, known: tuple[str, ...]) -> None:
    if split not in known:
        raise UsageError(f"unknown split {split!r}; use {' or '.join(known)}.")
