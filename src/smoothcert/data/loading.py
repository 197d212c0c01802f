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
from smoothcert.data.published import cifar_c_files, load_published, mnist_c_files
from smoothcert.data.registry import DATASETS, IDENTITY, DatasetInfo
from smoothcert.types import DataError, UsageError, unknown_name, wrong_path

SPLITS = ("train", "test")
DIGITS_SEED = 0


def load(name: StrPath, *, split: str = "test", root: StrPath | None = None) -> Dataset:
    """Load a dataset.

    Args:
        name: A named dataset (see ``DATASETS``), one set of a published suite of corruptions (``mnist-c/fog``,
            ``cifar10-c/fog/3``), the path of an ``.npz`` file (keys ``x`` or ``images``, ``y`` or ``labels``,
            optionally ``class_names``; see :func:`smoothcert.data.npz.load_npz`), or an existing folder with one
            subfolder of images for each class, or ``train``, ``val`` and ``test`` folders of such.
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
    top, *part = text.split("/")
    if top in DATASETS and DATASETS[top].types:
        info = DATASETS[top]
        _check_split(split, info.splits)
        if info.severities and part == [IDENTITY]:  # such a suite leaves out the clean set
            return load(info.clean or "", split=split, root=root)
        return load_published(info, part, split, resolve_root(root))
    if text in DATASETS:
        info = DATASETS[text]
        _check_split(split, info.splits)
        return READERS[info.layout](info, split, resolve_root(root))
    if path.suffix == ".npz" and not path.exists():
        raise wrong_path(DataError(f"{path} is not there; give the path of an .npz file."))
    if path.suffix == ".npz":
        _check_split(split, SPLITS)
        return load_npz(path, split)
    if path.is_dir():
        _check_split(split, folder.SPLITS)
        return folder.ImageFolder(path, split)
    if path.is_file():
        raise UsageError(
            f"{path} is one file; give an .npz file, or a folder with a subfolder of images for each class."
        )
    if path.name != text:
        raise wrong_path(DataError(f"{path} is not there: give the path of an .npz file or of a folder of images."))
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
        for split in info.splits:
            if info.layout in FILES:
                locate(info, split, resolve_root(root), FILES[info.layout](info, split))
    except DataError:
        return False
    return True


def parts(info: DatasetInfo) -> list[tuple[str, str]]:
    """The name and the split of everything that a download of a named dataset must bring."""
    names = [info.name]
    if info.types:
        ends = [f"/{severity}" for severity in info.severities] or [""]
        kinds = info.types if info.severities else (IDENTITY, *info.types)
        names = [f"{info.name}/{kind}{end}" for kind in kinds for end in ends]
    return [(name, split) for name in names for split in info.splits]


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

FILES: dict[str, Callable[[DatasetInfo, str], list[Variant]]] = {
    "idx": idx_files,
    "cifar": cifar_files,
    "mnist-c": mnist_c_files,
    "cifar-c": cifar_c_files,
}
"""The files of each layout that has any."""


def _check_split(split: str, known: tuple[str, ...]) -> None:
    if split not in known:
        raise UsageError(f"unknown split {split!r}; use {' or '.join(known)}.")
