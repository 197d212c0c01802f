"""CIFAR-10 and CIFAR-100, in the binary version and in the pickled one.

Pickles are read without running code from them: harmless stand-ins replace the globals that NumPy arrays need, and
every other global is refused; even the unpickling code of NumPy never sees the file.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothcert.data.base import Arrays, check_labels
from smoothcert.data.registry import DatasetInfo, Variant
from smoothcert.types import DataError

FILES = {
    "cifar10": {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
    "cifar100": {"train": ["train"], "test": ["test"]},
}
LABEL_BYTES = {"cifar10": 1, "cifar100": 2}  # bytes before the pixels of each binary record; the last one is the class
LABEL_KEY = {"cifar10": "labels", "cifar100": "fine_labels"}  # the key of the classes in a pickled file

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


def cifar_files(info: DatasetInfo, split: str) -> list[Variant]:
    """Return the files of a split: the binary version, or the pickled one."""
    stems = FILES[info.name][split]
    return [[[f"{stem}.bin"] for stem in stems], [[stem] for stem in stems]]


def read_cifar(info: DatasetInfo, paths: Sequence[Path]) -> Arrays:
    """Read and join the files of a split."""
    batches = []
    for path in paths:
        read = _read_binary if path.suffix == ".bin" else _read_pickled
        batches.append(read(path, info.name))
        check_labels(batches[-1][1], info.num_classes, path)
    images, labels = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    return images, labels


def _read_binary(path: Path, name: str) -> Arrays:
    """Read records of label bytes and 3072 pixels, channel by channel."""
    record = LABEL_BYTES[name] + PIXELS
    try:
        content = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error}): make it readable.") from error
    if content.size == 0 or content.size % record:
        raise DataError(
            f"{path} has {content.size} bytes, not a multiple of the {record} bytes of a {name} record: "
            "download it again."
        )
    records = content.reshape(-1, record)
    return records[:, LABEL_BYTES[name] :].reshape(-1, *SHAPE), records[:, LABEL_BYTES[name] - 1]


def _read_pickled(path: Path, name: str) -> Arrays:
    """Read a file of the "python" version without running anything in it."""
    content = _load_pickle(path)
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a {name} file: it has no dictionary; use the right file.")
    # Python 2 wrote the keys as bytes, Python 3 as text.
    data, labels = (content.get(key.encode(), content.get(key)) for key in ("data", LABEL_KEY[name]))
    if not isinstance(data, _PickledArray) or data.array.shape[1:] != (PIXELS,):
        raise DataError(f"{path} is not a {name} file: it has no images of {PIXELS} bytes under 'data'.")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(f"{path} is not a {name} file: it has no list of integers under '{LABEL_KEY[name]}'.")
    if len(labels) != len(data.array) or not labels:
        raise DataError(f"{path} has {len(labels)} labels for {len(data.array)} images: download it again.")
    return data.array.reshape(-1, *SHAPE), np.array(labels, dtype=object)


class _PickledArray:
    """The stand-in for a pickled array of bytes; ``array`` is its value."""

    array: NDArray[np.uint8]

    def __init__(self, *_: object) -> None:
        self.array = np.empty(0, dtype=np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", b"u1") or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it has an array of another type than uint8")
        self.array = np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


class _Dtype:
    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore byte order and alignment, which bytes do not have."""


class _Latin1:
    """Bytes that Python 3 wrote in an old protocol: text to encode, always as latin1."""

    def __new__(cls, text: str, _encoding: object) -> Any:
        return text.encode("latin1")

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it sets the state of bytes")


# Each stand-in is a class with __setstate__, so that a pickle cannot set attributes of the stand-in itself.
_ALLOWED: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _PickledArray,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
    ("_codecs", "encode"): _Latin1,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it calls {module}.{name}, which no dataset needs and which was not run")
        return _ALLOWED[module, name]


_CALLS = ("REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD")
_PLACES = ("PUT", "BINPUT", "LONG_BINPUT")
MOST_CALLS = 20
"""The largest number of calls in a pickle; an array needs five, and each may copy as much as the file contains."""


def _check_demands(content: bytes) -> None:
    """Refuse a pickle that would need far more memory than its size, without building anything."""
    calls = 0
    for opcode, argument, _ in pickletools.genops(content):
        calls += opcode.name in _CALLS
        if calls > MOST_CALLS or (opcode.name in _PLACES and int(argument or 0) > len(content)):
            raise ValueError("it would need far more memory than its size")


def _load_pickle(path: Path) -> Any:
    """Read a pickle of plain Python data and uint8 arrays; each array becomes a :class:`_PickledArray`."""
    try:
        content = path.read_bytes()
        _check_demands(content)
        return _RestrictedUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise DataError(f"{path} is not a pickle of a dataset ({error}): delete it and download it again.") from error
