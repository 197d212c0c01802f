"""Arrays in NumPy's format, whose header is not believed before it was compared with the size of the file."""

from __future__ import annotations

import math
from typing import IO, Any

from numpy.lib import format as npy

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def check_claim(stream: IO[bytes], size: int) -> None:
    """Refuse an array that claims more values than there are bytes for; NumPy asks for its memory first.

    Args:
        stream: The array, read up to the end of its header.
        size: How many bytes it has, header included.

    Raises:
        ValueError: If it claims more, or is of a format that only arrays of named fields need.
    """
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"an array has the format version {version}")
    header: Any = _HEADERS[version](stream)
    shape, _, dtype = header
    if any(side < 0 for side in shape) or math.prod(shape) * max(dtype.itemsize, 1) > size:
        raise ValueError(f"an array claims the shape {shape}, and has {size} bytes")
