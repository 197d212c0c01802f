"""Find the files of a dataset."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pooch

from smoothcert.data.registry import DatasetInfo
from smoothcert.types import DataError

StrPath = str | os.PathLike[str]
Variant = Sequence[Sequence[str]]
"""A set of files; each is a list of accepted names, the preferred one first."""


def default_root() -> Path:
    """Return the folder of all datasets: ``$SMOOTHCERT_DATA``, or a folder in the user's cache."""
    return Path(os.environ.get("SMOOTHCERT_DATA") or pooch.os_cache("smoothcert")).expanduser()


def resolve_root(root: StrPath | None) -> Path:
    """Return the given folder, or the default one."""
    return default_root() if root is None else Path(root).expanduser()


def locate(info: DatasetInfo, split: str, root: Path, variants: Sequence[Variant]) -> list[Path]:
    """Return the files of the first variant that is complete in one folder.

    The search covers ``root/name`` and its subfolders for each folder name of the dataset, and ``root`` if it has such
    a name itself.
    """
    tops = [root / name for name in info.folders] + ([root] if root.name in info.folders else [])
    for folder in [f for top in tops if top.is_dir() for f in (top, *subfolders(top))]:
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


def subfolders(folder: Path) -> list[Path]:
    """Return the visible subfolders in sorted order."""
    return sorted(f for f in folder.iterdir() if f.is_dir() and not f.name.startswith("."))
