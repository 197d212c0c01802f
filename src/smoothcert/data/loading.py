"""Load a dataset by a specifier: a name, a file, a folder, or code of the user."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from smoothcert.data import folder, hub, table
from smoothcert.data.base import ArrayDataset, Arrays, Dataset, check_labels
from smoothcert.data.cifar import cifar_files, read_cifar
from smoothcert.data.classes import read_classes
from smoothcert.data.factory import make_dataset
from smoothcert.data.idx import idx_files, read_idx
from smoothcert.data.images import EXTENSIONS
from smoothcert.data.npz import load_npz
from smoothcert.data.registry import (
    DATASETS,
    IDENTITY,
    LOADERS,
    DatasetInfo,
    Variant,
    locate,
    resolve_root,
    subfolders,
    tops,
)
from smoothcert.specifiers import Specifier, is_factory, load_object
from smoothcert.types import DataError, StrPath, UsageError, unknown_name, wrong_path


def load(name: StrPath, *, split: str = "test", root: StrPath | None = None) -> Dataset:
    """Load a dataset by a specifier, ``text`` or ``text,option=value,…``; a path object is used as it is.

    - A key of ``DATASETS``, or ``mnist-c/fog``, ``cifar10-c/fog/3``. Options: ``classes``; of imagenet ``size``.
    - A folder of images, see :class:`smoothcert.data.ImageFolder`: ``classes``, ``labels``, ``size``, ``channels``.
    - An ``.npz`` file, see :func:`smoothcert.data.npz.load_npz`: ``classes``.
    - A ``.csv`` or ``.parquet`` file, or a folder with ``train.csv`` and ``test.csv``, see
      :func:`smoothcert.data.table.load_table`: ``label``, ``features``, ``classes``.
    - ``hf:NAME``, or a folder of ``save_to_disk``, see :class:`smoothcert.data.hub.HubImages`: ``image``, ``label``,
      ``name``, ``revision``, ``classes``, ``size``, ``channels``.
    - ``package.module:factory`` or ``file.py:factory``, see :func:`smoothcert.data.factory.load_factory`: arguments of
      the factory, ``num_classes``.

    Args:
        name: The specifier.
        split: ``train`` or ``test``, and ``val`` where the data has it; a single file may be any split.
        root: The folder of the named datasets; :func:`default_root` by default.

    Raises:
        UsageError: If the name, the split or an option is unknown.
        DataError: If files are missing or damaged.

    Example:
        >>> image, label = load("digits")[0]
        >>> image.shape
        torch.Size([1, 8, 8])
    """
    given = Specifier.parse(name) if isinstance(name, str) else Specifier(os.fspath(name))
    text, options = given.text, dict(given.options)
    path = Path(text).expanduser()
    if text.split("/")[0] in DATASETS:
        return _load_named(text, split, resolve_root(root), options)
    if path.name == text and text in LOADERS:
        return make_dataset(LOADERS[text], text, split, options)
    if text.startswith("hf:"):
        return hub.HubImages(text, split, **_checked(options, hub.HubImages))
    if is_factory(text) and not path.exists():
        return make_dataset(load_object(text), text, split, options)
    if path.suffix in (".npz", *table.SUFFIXES):
        _check_split(split, folder.SPLITS)
        if not path.exists():
            raise wrong_path(DataError(f"{path} does not exist; give the path of a {path.suffix} file."))
    if path.suffix == ".npz" and path.is_file():
        return _named(load_npz(path, split), _checked(options, ("classes",)), path.parent)
    if path.suffix in table.SUFFIXES and path.is_file():
        return table.load_table(path, split, **_checked(options, table.load_table))
    if path.is_dir():
        if hub.is_saved(path):
            return hub.HubImages(text, split, **_checked(options, hub.HubImages))
        _check_split(split, folder.SPLITS)
        if "labels" not in options and table.split_tables(path) and not folder.has_images(path):
            return table.load_table(path, split, **_checked(options, table.load_table))
        return folder.ImageFolder(path, split, **_checked(options, folder.ImageFolder))
    if path.is_file() and path.suffix.lower() in EXTENSIONS:
        raise UsageError(
            f"{path} is a single image; put it into a folder with {folder.LABELS}, whose columns are file and label, "
            "and give the folder."
        )
    if path.is_file():
        raise UsageError(f"{path} is not a dataset; give an .npz, .csv or .parquet file, or a folder of images.")
    if path.name != text:
        raise wrong_path(DataError(f"{path} does not exist; give the path of an .npz file or of a folder of images."))
    raise LOADERS.unknown(text, *DATASETS)


def _load_named(text: str, split: str, root: Path, options: dict[str, Any]) -> Dataset:
    top, *part = text.split("/")
    info = DATASETS[top]
    _check_split(split, info.splits)
    if info.layout == "folders":
        if part:
            raise UsageError(f"{text} is not a dataset; {top} has no parts.")
        return _load_imagenet(info, split, root, **_checked(options, ("size",)))
    _checked(options, ("classes",))
    if info.types:
        if info.severities and part == [IDENTITY]:  # such a suite has no clean set
            return _load_named(info.clean or "", split, root, options)
        dataset = load_published(info, part, split, root)
    elif part:
        raise unknown_name("dataset", text, DATASETS)
    elif info.bundled:
        dataset = _load_digits(info, split)
    else:
        paths = locate(info, split, root, FILES[info.layout](info, split))
        images, labels = READERS[info.layout](info, paths)
        scale = 1.0 if info.binary else 255.0
        dataset = ArrayDataset(images, labels, name=info.name, split=split, class_names=info.class_names, scale=scale)
    dataset.complete = True
    return _named(dataset, options, None)


def _load_imagenet(info: DatasetInfo, split: str, root: Path, size: Any = 224) -> folder.ImageFolder:
    """Load ImageNet from class folders named by WordNet identifiers; its test set is the validation set, as usual."""
    part = "train" if split == "train" else "val"
    for top in tops(info, root):
        if (top / part).is_dir() and subfolders(top / part):
            dataset = folder.ImageFolder(top, part, classes=info.name, size=size, channels=3)
            dataset.name, dataset.split, dataset.complete = info.name, split, True
            return dataset
    raise DataError(
        f"{info.name} is not in {root}: it cannot be downloaded without registration at image-net.org; put its images "
        f"into {root / info.folders[0]}/{part}/n01440764/*.JPEG, one folder for each of the 1,000 classes."
    )


def _named(dataset: ArrayDataset, options: Mapping[str, Any], place: Path | None) -> ArrayDataset:
    if "classes" in options:
        dataset.name_classes(read_classes(str(options["classes"]), place))
    return dataset


def _checked(options: dict[str, Any], known: Callable[..., Any] | Sequence[str]) -> dict[str, Any]:
    """Return the options of a loader, or refuse one that it does not have."""
    if callable(known):
        known = [name for name, each in inspect.signature(known).parameters.items() if each.kind is each.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise unknown_name("option of this data", name, known)
    return options


def available(name: str, *, root: StrPath | None = None) -> bool:
    """Return whether the files of a named dataset exist; they are not read."""
    if name not in DATASETS:
        raise unknown_name("dataset", name, DATASETS)
    info = DATASETS[name]
    if info.layout == "folders":
        parts = [top / part for top in tops(info, resolve_root(root)) for part in ("train", "val")]
        return any(part.is_dir() and subfolders(part) for part in parts)
    try:
        for split in info.splits:
            if info.layout in FILES:
                locate(info, split, resolve_root(root), FILES[info.layout](info, split))
    except DataError:
        return False
    return True


def _load_digits(info: DatasetInfo, split: str) -> ArrayDataset:
    """Load the bundled digits, split by a fixed permutation.

    They are the test set of Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine Learning
    Repository, CC BY 4.0, which scikit-learn bundles too.
    """
    images, labels = _bundled_digits()
    # RandomState and not Generator: its stream is frozen, so the split is the same with every NumPy.
    order = np.random.RandomState(0).permutation(len(labels))
    chosen = order[: info.train_size] if split == "train" else order[info.train_size :]
    images, labels = images[chosen, None], labels[chosen].astype(np.int64)
    return ArrayDataset(images, labels, name=info.name, split=split, class_names=info.class_names, scale=16.0)


@cache
def _bundled_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    with (files("smoothcert.data") / "digits.npz").open("rb") as file, np.load(file) as stored:
        return stored["images"], stored["labels"]


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
