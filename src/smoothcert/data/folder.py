"""A folder of images: one subfolder for each class, or a CSV file with the label of each image."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothcert.data.classes import WNID, ClassList, imagenet_classes, near, number_labels, read_classes, shown
from smoothcert.data.images import EXTENSIONS, ImageForm, Images
from smoothcert.data.registry import subfolders
from smoothcert.types import DataError

SPLITS = ("train", "val", "test")
LABELS = "labels.csv"
FILE_COLUMNS = ("file", "filename", "file_name", "image", "path")
LABEL_COLUMNS = ("label", "class", "target")
FOLDERS = "folders"  # the value of ``classes`` for classes in the sorted order of the folders

Labelled = tuple[list[Path], NDArray[np.int64], tuple[str, ...], bool]


class ImageFolder(Images):
    """Images read from disk on access, without resizing unless a size is given.

    Args:
        path: A folder with one subfolder for each class, or with images and a CSV file of their labels; or a folder
            with a folder of that kind for each split.
        classes: The classes in order, see :func:`smoothcert.data.classes.read_classes`, or ``folders`` for the sorted
            names of the subfolders. By default the classes of ImageNet if all subfolders are named by their WordNet
            identifiers, or else the sorted names.
        labels: The CSV file; by default ``labels.csv``, if the images are not in subfolders.
        size: See :class:`smoothcert.data.images.ImageForm`, and also for ``channels``.
    """

    def __init__(
        self,
        path: Path,
        split: str,
        *,
        classes: str | None = None,
        labels: str | None = None,
        size: Any = None,
        channels: Any = None,
    ) -> None:
        form, top = ImageForm.of(size, channels), _split_folder(path, split)
        listed = None if classes in (None, FOLDERS) else read_classes(str(classes), path)
        table = near(str(labels), top) if labels is not None else _own_labels(top)
        if table is not None:
            found = _from_table(top, table, listed)
        else:
            found = _from_folders(path, top, listed, as_they_are=classes == FOLDERS)
        self._files, numbers, names, by_name = found
        super().__init__(numbers, names, form, name=path.resolve().name, split=split, by_name=by_name)
        self._require_one_size()

    def _content(self, index: int) -> tuple[bytes, str]:
        path = self._files[index]
        try:
            return path.read_bytes(), str(path)
        except OSError as error:
            raise DataError(f"{path} is not a readable image ({error}): replace it or remove it.") from error


def has_images(folder: Path) -> bool:
    """Return whether a folder holds images directly."""
    return any(_is_image(file) for file in folder.iterdir())


def _from_folders(path: Path, top: Path, listed: ClassList | None, *, as_they_are: bool) -> Labelled:
    """Return the images of the subfolders; those of other splits are classes too."""
    folders = subfolders(top)
    found = [(file, folder.name) for folder in folders for file in _images(folder)]
    if not found:
        raise DataError(
            f"{top} has no images in subfolders; give a folder with one subfolder for each class, or add {LABELS} with "
            "the columns file and label."
        )
    names = sorted({folder.name for place in [top, *_splits(path)] for folder in subfolders(place)})
    if listed is None and not as_they_are:
        imagenet = imagenet_classes()
        if all(WNID.fullmatch(name) and imagenet.number(name) is not None for name in names):
            listed = imagenet
        elif all(name.isdecimal() for name in names) and names != sorted(names, key=int):
            raise DataError(
                f"the subfolders of {top} are numbers, whose order is not that of their text ({', '.join(names[:3])}, "
                f"…): add classes=FILE with the classes in order, or classes={FOLDERS} for the order of the text."
            )
    if listed is None:
        numbers = {name: number for number, name in enumerate(names)}
        labels = np.array([numbers[name] for _, name in found], dtype=np.int64)
        return [file for file, _ in found], labels, tuple(names), not as_they_are
    labels, class_names, by_name = number_labels([name for _, name in found], listed, top)
    return [file for file, _ in found], labels, class_names, by_name


def _from_table(top: Path, table: Path, listed: ClassList | None) -> Labelled:
    """Return the images that a CSV file lists; their paths are relative to the folder and stay in it."""
    files, labels = [], []
    inside = top.resolve()
    for line, name, label in _rows(table):
        path = top / name
        if not name or not label:
            raise DataError(f"{table} has no {'label' if name else 'file'} in line {line}; write one or remove it.")
        given = PureWindowsPath(name)  # parses / and \\ and drive letters
        leaves = bool(given.drive or given.root or ".." in given.parts)
        try:
            missing = not path.is_file()
            leaves = leaves or not path.resolve().is_relative_to(inside)  # by a link
        except (OSError, ValueError):  # too long, or with a null character
            missing = True
        if leaves:
            raise DataError(f"{table} names '{shown(name)}' in line {line}, which is not in {top}; use its own files.")
        if missing:
            raise DataError(f"{table} names '{shown(name)}' in line {line}, which does not exist in {top}.")
        files.append(path)
        labels.append(label)
    if not files:
        raise DataError(f"{table} lists no images; write one per line, as a file and its label.")
    return (files, *number_labels(labels, listed, table))


def _rows(table: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the line, file and label of each row."""
    try:
        with table.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            header = [name.strip().lower() for name in next(reader, [])]
            file, label = (_column(header, known, table) for known in (FILE_COLUMNS, LABEL_COLUMNS))
            for row in reader:
                if row:
                    cells = [row[i].strip() if i < len(row) else "" for i in (file, label)]
                    yield reader.line_num, cells[0], cells[1]
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{table} is not a CSV file in UTF-8 ({error}): save it again.") from error


def _column(header: Sequence[str], known: Sequence[str], table: Path) -> int:
    found = [name for name in known if name in header]
    if not found:
        columns = shown(", ".join(header)) or "none"
        raise DataError(
            f"{table} needs a column named {', '.join(known[:-1])} or {known[-1]}; its columns are {columns}."
        )
    return header.index(found[0])


def _own_labels(top: Path) -> Path | None:
    return top / LABELS if (top / LABELS).is_file() and has_images(top) else None


def _splits(path: Path) -> list[Path]:
    places = [path / name for name in SPLITS if (path / name).is_dir()]
    return [place for place in places if subfolders(place) or (place / LABELS).is_file()]


def _split_folder(path: Path, split: str) -> Path:
    present = [place.name for place in _splits(path)]
    if split in present:
        return path / split
    if present:
        raise DataError(f"{path} has no split '{split}', only {', '.join(present)}; use one of these.")
    return path


def _images(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*") if _is_image(f))


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in EXTENSIONS and file.is_file()
