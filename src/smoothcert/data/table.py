"""Tables of numbers: ``.csv`` and ``.parquet`` files with a label and features in each row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from smoothcert.data.base import ArrayDataset
from smoothcert.data.classes import number_labels, read_classes, shown
from smoothcert.data.folder import SPLITS
from smoothcert.files import unpacked_limit
from smoothcert.types import DataError

SUFFIXES = (".csv", ".parquet")
LABELS = ("label", "target", "class", "y")
_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
LARGEST_BLOCK = 1 << 30  # bytes; Arrow decides the type of a column from the first block


def split_tables(folder: Path) -> dict[str, Path]:
    """Return the tables of a folder that are named by splits, such as ``train.csv``."""
    found = {split: [folder / f"{split}{suffix}" for suffix in SUFFIXES] for split in SPLITS}
    return {split: file for split, files in found.items() for file in files[::-1] if file.is_file()}


def load_table(path: Path, split: str, *, label: Any = None, features: Any = None, classes: Any = None) -> ArrayDataset:
    """Read a table; its values are used as they are.

    Args:
        path: A file with a row of names, which is one split; or a folder with a file for each split.
        label: The column of the classes, numbers from 0 or names; by default ``label``, ``target``, ``class`` or ``y``.
        features: The columns of the input, as ``a:b:c``; by default all others.
        classes: The classes in order, see :func:`smoothcert.data.classes.read_classes`; by default sorted by name.

    Raises:
        DataError: The file is damaged, or a column is missing, has missing values or is not numeric.
    """
    others: list[Path] = []
    if path.is_dir():
        files = split_tables(path)
        if split not in files:
            raise DataError(f"{path} has no split '{split}', only {', '.join(files)}; use one of these.")
        path, others = files[split], [file for name, file in files.items() if name != split]
    table = _read(path)
    target = _label_column(table.column_names, label, path)
    wanted = [name for name in table.column_names if name != target] if features is None else str(features).split(":")
    for name in wanted:
        if name not in table.column_names or name == target:
            raise DataError(
                f"{path} has no feature '{shown(name)}'; its columns are {_listed(table.column_names)}, and the label "
                f"is '{shown(target)}'."
            )
    if not wanted or not table.num_rows:
        raise DataError(f"{path} has {len(wanted)} features and {table.num_rows} rows; give at least one of each.")
    values = np.stack([_numbers(table[name], name, path) for name in wanted], axis=1)
    listed = None if classes is None else read_classes(str(classes), path.parent)
    known = {value for file in others for value in _labels(_column(_read(file), target, file), target, file)}
    labels, names, by_name = number_labels(_labels(table[target], target, path), listed, path, known)
    name = path.parent.resolve().name if others else path.stem
    about: dict[str, Any] = {"by_name": by_name, "input_range": None, "scale": 1.0}
    return ArrayDataset(values, labels, name=name, split=split, class_names=names, **about)


def _read(path: Path) -> Any:
    try:
        table = _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)
        names = [str(name) for name in table.column_names]
    except Exception as error:  # Arrow's readers raise many kinds of errors on damaged files
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} is not a table that can be read ({shown(said)}): save it again.") from error
    double = [name for name in names if names.count(name) > 1] if len(set(names)) < len(names) else []
    if double:
        raise DataError(f"{path} has two columns named '{shown(double[0])}'; rename one.")
    return table


def _read_csv(path: Path) -> Any:
    block = min(max(path.stat().st_size, 1 << 20), LARGEST_BLOCK)
    return pa.csv.read_csv(path, pa.csv.ReadOptions(use_threads=False, block_size=block))


def _read_parquet(path: Path) -> Any:
    # Neither threads nor buffering ahead: Arrow's threads can abort the process while the interpreter ends.
    with pa.parquet.ParquetFile(path, pre_buffer=False) as file:
        about = file.metadata
        size = sum(about.row_group(number).total_byte_size for number in range(about.num_row_groups))
        if max(size, 8 * about.num_rows * about.num_columns) > unpacked_limit(path.stat().st_size):
            raise ValueError(f"it claims {about.num_rows} rows and {size} bytes")
        return file.read(use_threads=False)


def _label_column(names: Sequence[str], given: Any, path: Path) -> str:
    wanted = LABELS if given is None else (str(given),)
    found = [name for each in wanted for name in names if name == each or (given is None and name.lower() == each)]
    if not found:
        what = f"no column '{shown(str(given))}'" if given is not None else f"no column named {', '.join(LABELS)}"
        raise DataError(f"{path} has {what}; its columns are {_listed(names)}: choose the label with label=COLUMN.")
    return found[0]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(shown(name) for name in names[:20]) + (", …" if len(names) > 20 else "")


def _column(table: Any, name: str, path: Path) -> Any:
    if name not in table.column_names:
        raise DataError(f"{path} has no column '{shown(name)}', as the other split has; use the same columns.")
    return table[name]


def _complete(column: Any, name: str, path: Path) -> None:
    if column.null_count:
        row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(
            f"{path} has no value in column '{shown(name)}' of row {row + 1}; fill it in or remove the row."
        )


def _numbers(column: Any, name: str, path: Path) -> NDArray[np.float32]:
    kind = column.type
    if not any(is_kind(kind) for is_kind in _NUMBERS):
        raise DataError(
            f"{path} has the column '{shown(name)}' of type {kind}, not of numbers; encode it, or choose the other "
            "columns with features=a:b:c."
        )
    _complete(column, name, path)
    with np.errstate(over="ignore"):
        values = np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.float32)
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise DataError(
            f"{path} has NaN or an infinite value in column '{shown(name)}' of row {row + 1}; fill it in or remove the "
            "row."
        )
    return values


def _labels(column: Any, name: str, path: Path) -> list[str]:
    """Return the labels as text."""
    _complete(column, name, path)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    values = column.to_pylist()
    if pa.types.is_boolean(kind) or (pa.types.is_floating(kind) and all(map(float.is_integer, values))):
        values = [int(value) for value in values]
    elif not any(is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)):
        raise DataError(f"{path} has labels of type {kind} in column '{shown(name)}'; use whole numbers or names.")
    texts = [str(value).strip() for value in values]
    if "" in texts:
        raise DataError(f"{path} has no label in column '{shown(name)}' of row {texts.index('') + 1}; write one.")
    return texts
