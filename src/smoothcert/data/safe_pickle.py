"""Pickles of plain data and byte arrays, read without running anything they ask for.

The globals that NumPy arrays need are answered by stand-ins of our own, every other one is refused; not even the
unpickling code of NumPy sees the file.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothcert.types import DataError


class PickledArray:
    """What a pickled array of bytes becomes; ``array`` is its value."""

    array: NDArray[np.uint8]

    def __init__(self, *_: object) -> None:
        self.array = np.empty(0, dtype=np.uint8)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", b"u1") or not isinstance(content, bytes):
            raise pickle.UnpicklingError("it holds an array of another type than uint8")
        self.array = np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


class _Dtype:
    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment say nothing about bytes."""


class _Latin1:
    """Bytes written by Python 3 in an old protocol: text to be encoded, always as latin1."""

    def __new__(cls, text: str, _encoding: object) -> Any:
        return text.encode("latin1")

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it gives a state to bytes")


# Each stand-in is a class with __setstate__, so that a pickle can set no attribute on the stand-in itself.
_ALLOWED: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): PickledArray,
    ("_codecs", "encode"): _Latin1,
}


class _RestrictedUnpickler(pickle.Unpickler):
    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> type:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise DataError(
                f"{self._path} asks for {module}.{name}, which no dataset needs; it was not run: "
                "do not use this file, download the dataset again."
            ) from None


_CALLS = ("REDUCE", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "BUILD")
_PLACES = ("PUT", "BINPUT", "LONG_BINPUT")
MOST_CALLS = 20
"""Calls of stand-ins that a pickle may ask for; one array takes five, and each may copy as much as the file holds."""


def _check_demands(content: bytes) -> None:
    """Refuse a pickle that would take far more memory than its size; nothing is built for this.

    Raises:
        ValueError: If it is no pickle, keeps values in places beyond its length, or calls too often.
    """
    calls = 0
    for opcode, argument, _ in pickletools.genops(content):
        calls += opcode.name in _CALLS
        if calls > MOST_CALLS or (opcode.name in _PLACES and int(argument or 0) > len(content)):
            raise ValueError("it asks for more than its size")


def read_pickle(path: Path) -> Any:
    """Read a pickle of plain Python data and uint8 arrays.

    Args:
        path: The file.

    Returns:
        The data; each array is a :class:`PickledArray`.

    Raises:
        DataError: If the file is damaged or asks for anything else.
    """
    try:
        content = path.read_bytes()
        _check_demands(content)
        return _RestrictedUnpickler(content, path).load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise DataError(f"{path} is no readable pickle of a dataset ({error}): download it again.") from error
