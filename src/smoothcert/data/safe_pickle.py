"""Read pickles of plain data and byte arrays without running code from them.

Harmless stand-ins replace the globals that NumPy arrays need, and every other global is refused; even the unpickling
code of NumPy never sees the file.
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
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): PickledArray,
    ("numpy._core.multiarray", "_reconstruct"): PickledArray,
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


def read_pickle(path: Path) -> Any:
    """Read a pickle of plain Python data and uint8 arrays; each array becomes a :class:`PickledArray`."""
    try:
        content = path.read_bytes()
        _check_demands(content)
        return _RestrictedUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise nearly anything
        raise DataError(f"{path} is not a pickle of a dataset ({error}): delete it and download it again.") from error
