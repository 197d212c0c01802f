"""Find, read and write the files of checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

from smoothcert.files import replacing
from smoothcert.types import CheckpointError, wrong_path

_PREFERRED = ("best.safetensors", "last.safetensors")
_EARLIER = "checkpoint.pth.tar"


def resolve(path: str | os.PathLike[str]) -> Path:
    """The file that a path means: itself, or in a folder the best, the last or the only checkpoint.

    Args:
        path: A file or a folder.

    Returns:
        The file.

    Raises:
        CheckpointError: There is no such file, or the folder holds none or several.
    """
    path = Path(path)
    if not path.is_dir():
        if not path.is_file():
            raise wrong_path(CheckpointError(f"there is no checkpoint at '{path}'."))
        return path
    found = {file.name: file for file in [*path.glob("*.safetensors")] or path.glob(_EARLIER)}
    for name in _PREFERRED:
        if name in found:
            return found[name]
    if len(found) == 1:
        return next(iter(found.values()))
    what = f"{len(found)} checkpoints, none of them {' or '.join(_PREFERRED)}" if found else "no checkpoint"
    raise wrong_path(CheckpointError(f"folder '{path}' holds {what}; name the file itself."))


def read_bytes(path: Path) -> bytes:
    """The whole file, so that what is hashed is what is loaded.

    Raises:
        CheckpointError: The file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"checkpoint '{path}' cannot be read: {error.strerror}.") from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file or nothing.

    Raises:
        CheckpointError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise CheckpointError(f"checkpoint '{path}' cannot be written: {error.strerror}.") from error
