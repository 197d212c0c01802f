"""Datasets of Hugging Face ``datasets``: from the hub, or saved in a folder."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothcert.data.base import check_labels
from smoothcert.data.classes import number_labels, read_classes
from smoothcert.data.images import ImageForm, Images
from smoothcert.types import DataError, UsageError

LABELS = ("label", "labels", "class", "target", "fine_label")
SAME = {"val": ("val", "validation", "valid"), "test": ("test",), "train": ("train",)}


def is_saved(folder: Path) -> bool:
    """Return whether ``save_to_disk`` of ``datasets`` wrote a folder."""
    files = ("dataset_info.json", "state.json")
    return (folder / "dataset_dict.json").is_file() or all((folder / name).is_file() for name in files)


class HubImages(Images):
    """Images of a dataset of Hugging Face; their files are decoded as those of a folder are.

    Args:
        text: ``hf:NAME``, or the folder of a saved dataset.
        split: The part of the dataset; ``val`` also finds ``validation``.
        image: The column of the images; by default the only one.
        label: The column of the classes; by default the only one with names, or one named ``label``.
        name: The configuration of a dataset on the hub.
        revision: Its version.
        classes: The classes in order, see :func:`smoothcert.data.classes.read_classes`.
        size: See :class:`smoothcert.data.images.ImageForm`, and also for ``channels``.
    """

    def __init__(
        self,
        text: str,
        split: str,
        *,
        image: Any = None,
        label: Any = None,
        name: Any = None,
        revision: Any = None,
        classes: Any = None,
        size: Any = None,
        channels: Any = None,
    ) -> None:
        form = ImageForm.of(size, channels)
        try:
            self._package = importlib.import_module("datasets")
        except ImportError as error:
            raise UsageError('these datasets need datasets; pip install "smoothcert[hf]".') from error
        self._text = text
        if text.startswith("hf:"):
            rows = self._open(split, lambda: self._package.load_dataset(text[3:], name, revision=revision))
        elif (name, revision) != (None, None):
            raise UsageError(f"{text} is a folder; name and revision are for datasets on the hub, as hf:NAME.")
        else:
            rows = self._open(split, lambda: self._package.load_from_disk(str(Path(text).resolve())))
        self._column = self._chosen(rows, image, self._package.Image, ("image", "img"), "image")
        target = self._chosen(rows, label, self._package.ClassLabel, LABELS, "label")
        try:
            labels, names, by_name = self._numbered(rows, target, classes)
            # Not decoded by Pillow alone, which would start programs for some formats and follow addresses.
            self._rows = rows.cast_column(self._column, self._package.Image(decode=False))
        except (DataError, UsageError):
            raise
        except Exception as error:  # damaged tables fail in many ways
            raise DataError(f"'{text}' cannot be read ({_said(error)}).") from error
        short = text.rstrip("/").rpartition("/")[2].removeprefix("hf:")
        super().__init__(labels, names, form, name=short, split=split, by_name=by_name)

    def _open(self, split: str, load: Any) -> Any:
        try:
            found = load()
            parts = dict(found) if isinstance(found, dict) else {split: found}
            known = next((each for each in SAME.get(split, (split,)) if each in parts), None)
            rows = None if known is None else parts[known].with_format(None)
        except Exception as error:  # the hub, the configuration and the files fail in many ways
            raise DataError(f"'{self._text}' is not a dataset that can be loaded: {_said(error)}") from error
        if rows is None:
            raise DataError(f"{self._text} has no split '{split}', only {', '.join(parts)}; use one of these.")
        if not len(rows):
            raise DataError(f"{self._text} has no rows in the split '{split}'.")
        return rows

    def _chosen(self, rows: Any, given: Any, kind: type, usual: tuple[str, ...], option: str) -> str:
        """Return the column given, the only one of a kind, or one with a usual name."""
        features: dict[str, Any] = dict(rows.features)
        fitting = [name for name, feature in features.items() if isinstance(feature, kind)]
        if given is not None:
            found = [name for name in features if name == str(given)]
        elif len(fitting) == 1:
            found = fitting
        else:
            found = [name for name in usual if name in (fitting or features)]
        if option == "image" and found and not isinstance(features[found[0]], kind):
            found = []
        if not found:
            columns = ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items())
            raise DataError(
                f"{self._text} needs a column of {option}s; its columns are {columns}: choose with {option}=COLUMN."
            )
        return found[0]

    def _numbered(self, rows: Any, column: str, classes: Any) -> tuple[NDArray[np.int64], tuple[str, ...], bool]:
        feature, values = rows.features[column], list(rows[column])
        listed = None if classes is None else read_classes(str(classes))
        if not all(type(value) in (int, str) for value in values):
            raise DataError(f"{self._text} has labels in '{column}' that are missing or not classes; choose another.")
        if not isinstance(feature, self._package.ClassLabel):
            return number_labels([str(value) for value in values], listed, self._text)
        numbers, names = np.array(values, dtype=np.int64), tuple(feature.names)
        check_labels(numbers, len(names), self._text)
        if listed is None:
            return numbers, names, True
        return number_labels([names[number] for number in numbers], listed, self._text)

    def _content(self, index: int) -> tuple[bytes, str]:
        where = f"image {index} of {self._text}"
        try:
            stored = self._rows[index][self._column]
            if stored["bytes"] is not None:
                return stored["bytes"], where
            if self._text.startswith("hf:"):  # a dataset of files, which were downloaded
                return Path(stored["path"]).read_bytes(), where
        except Exception as error:  # damaged tables fail in many ways
            raise DataError(f"{where} cannot be read ({_said(error)}).") from error
        raise DataError(f"{where} is stored outside of the dataset; save it again with its images.")


def _said(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]
