"""Images of the report page: verified against the runs, and packed into sheets that the page decodes when needed."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from smoothcert.data.inputs import Indexable, data_fingerprint
from smoothcert.report.page.groups import Group
from smoothcert.store import Result
from smoothcert.store.selection import select
from smoothcert.types import SmoothcertError, UsageError

BUDGET = 11_000_000
"""The most bytes of all images of a report, about 15 MB in the file."""

_LARGEST = 64  # pixels along the longer side; larger images are scaled down
_PER_SHEET = 400
_ACROSS = 20
_PROBE = 100
_QUALITIES = (None, 90, 75, 50, 25)  # None: lossless


class ImageDataset(Indexable, Protocol):
    """A dataset of images, as ``smoothcert.data.load`` returns."""

    @property
    def class_names(self) -> tuple[str, ...]: ...


FindDataset = Callable[[Mapping[str, Any]], ImageDataset]
"""Finds the dataset that the configuration of a run describes (``name``, ``split``); raises a SmoothcertError."""


@dataclass(frozen=True)
class Images:
    """The images of a group: sizes and class names or None, sheets as base64, and a note or why there are none."""

    payload: dict[str, Any] | None = None
    sheets: tuple[str, ...] = ()
    note: str = ""


def group_images(
    group: Group, find: FindDataset | None, override: ImageDataset | None = None, budget: int = BUDGET
) -> Images:
    """Pack the images of a group's inputs, if the dataset found (or ``override``) is the one that was certified."""
    if find is None and override is None:
        return Images(note="This report was made without images.")
    try:
        dataset = _find(group, find) if override is None else override
        return _packed(group, dataset, _check(group, dataset), budget)
    except (SmoothcertError, IndexError) as error:
        return Images(note=f"There are no images: {error}")


def _find(group: Group, find: FindDataset | None) -> ImageDataset:
    for result in group.results:
        if result.settings.data is not None and find is not None:
            return find(result.config["data"])
    raise UsageError("logs do not record their dataset. Name it with --data.")


def _check(group: Group, dataset: ImageDataset) -> str:
    """Refuse a dataset that was not certified; return a note about the check."""
    recorded = [result for result in group.results if result.settings.data is not None]
    for result in recorded:
        if not _certified_on(result, dataset):
            raise UsageError(
                f"the dataset found here is not the one that {result.name} was certified on. Name the right one with "
                "--data."
            )
    if not recorded and not _same_labels(group, dataset):
        raise UsageError("the labels of the dataset named by --data are not those of the logs.")
    return "" if recorded else "The images were matched to the logs by their labels only."


def _certified_on(result: Result, dataset: Indexable) -> bool:
    chosen, data = result.settings.inputs, result.settings.data
    if data is None or data.size != len(dataset) or chosen.every is None or chosen.start is None:
        return False
    indices = select(len(dataset), every=chosen.every, start=chosen.start, stop=chosen.stop)
    return bool(data_fingerprint(dataset, indices)["sha256"] == data.sha256)


def _same_labels(group: Group, dataset: Indexable) -> bool:
    if int(group.index.max()) >= len(dataset):
        return False
    pairs = zip(group.index.tolist(), group.label.tolist(), strict=True)
    return all(int(dataset[index][1]) == label for index, label in pairs)


def _packed(group: Group, dataset: ImageDataset, note: str, budget: int) -> Images:
    count = len(group.index)
    first = np.asarray(dataset[int(group.index[0])][0])
    if first.ndim != 3 or first.shape[0] not in (1, 3):
        raise UsageError(f"inputs of shape {first.shape} are not images.")
    tiles = [_tile(np.asarray(dataset[index][0])) for index in group.index[:_PROBE].tolist()]
    quality = _quality(tiles, count, budget)
    sheets = []
    for start in range(0, count, _PER_SHEET):
        chunk = [_tile(np.asarray(dataset[index][0])) for index in group.index[start : start + _PER_SHEET].tolist()]
        sheets.append(base64.b64encode(_encode(_sheet(chunk, tiles[0].shape), quality)).decode())
    height, width = tiles[0].shape[:2]
    payload = {
        "width": width,
        "height": height,
        "across": _ACROSS,
        "perSheet": _PER_SHEET,
        "classes": [str(name) for name in getattr(dataset, "class_names", ())],
        "grey": tiles[0].ndim == 2,
        "smaller": (height, width) != first.shape[1:],
        "lossy": quality is not None,
    }
    return Images(payload, tuple(sheets), note)


def _tile(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Convert an image to bytes, (height, width) or (height, width, 3), scaled down where it is large."""
    pixels: NDArray[np.uint8] = np.rint(255 * np.clip(x, 0.0, 1.0)).astype(np.uint8).transpose(1, 2, 0)
    pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    longer = max(pixels.shape[:2])
    if longer <= _LARGEST:
        return pixels
    height, width = (max(1, round(side * _LARGEST / longer)) for side in pixels.shape[:2])
    smaller: NDArray[np.uint8] = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))
    return smaller


def _sheet(tiles: Sequence[NDArray[np.uint8]], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    height, width = shape[:2]
    sheet = np.zeros((-(-len(tiles) // _ACROSS) * height, _ACROSS * width, *shape[2:]), dtype=np.uint8)
    for place, tile in enumerate(tiles):
        if tile.shape != shape:
            raise UsageError("the images are not all of one size.")
        row, column = divmod(place, _ACROSS)
        sheet[row * height : (row + 1) * height, column * width : (column + 1) * width] = tile
    return sheet


def _quality(tiles: Sequence[NDArray[np.uint8]], count: int, budget: int) -> int | None:
    """Choose the best quality at which all images fit the budget, estimated from the first ones."""
    sheet = _sheet(tiles, tiles[0].shape)
    fitting = (quality for quality in _QUALITIES if len(_encode(sheet, quality)) * count / len(tiles) <= budget)
    return next(fitting, _QUALITIES[-1])


def _encode(sheet: NDArray[np.uint8], quality: int | None) -> bytes:
    file = io.BytesIO()
    options = {"lossless": True, "quality": 60, "method": 2} if quality is None else {"quality": quality, "method": 4}
    Image.fromarray(sheet).save(file, "WEBP", **options)
    return file.getvalue()
