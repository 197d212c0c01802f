"""Where the files of a dataset are looked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pooch

from smoothcert.data.registry import DatasetInfo
from smoothcert.types import DataError

StrPath = str | os.PathLike[str]
Variant = Sequence[Sequence[str]]
"""The files of one layout; each is given by the names it may have, the preferred one first."""


def default_root() -> Path:
    """The folder of all datasets: ``$SMOOTHCERT_DATA``, else a folder in the cache of the user."""
    return Path(os.environ.get("SMOOTHCERT_DATA") or pooch.os_cache("smoothcert")).expanduser()


def resolve_root(root: StrPath | None) -> Path:
    """The folder given, or the default one."""
    return default_root() if root is None else Path(root).expanduser()


def locate(info: DatasetInfo, split: str, root: Path, variants: Sequence[Variant]) -> list[Path]:
    """Find the files of one split.

    Each folder name of the dataset is tried under ``root``, itself and one level below; ``root`` itself is tried
    if it has such a name.

    Args:
        info: The dataset.
        split: The split, for the error.
        root: The folder of all datasets.
        variants: The layouts to accept, the preferred one first.

    Returns:
        The files of the first variant that is complete in one folder.

    Raises:
        DataError: If no folder holds a complete variant.
    """
    tops = [root / name for name in info.folders] + ([root] if root.name in info.folders else [])
    for folder in [f for top in tops for f in (top, *_subfolders(top))]:
        for variant in variants:
            found = [next((folder / name for name in names if (folder / name).is_file()), None) for names in variant]
            paths = [path for path in found if path is not None]
            if len(paths) == len(variant):
                return paths
    wanted = " or ".join(", ".join(names[0] for names in variant) for variant in variants)
    raise DataError(
        f"the {split} files of {info.name} are missing: looked for {wanted} in {root / info.folder} and its "
        f"subfolders; run `smoothcert data fetch {info.name}` or name another folder."
    )


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))
