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

from smoothcert.data.subset import Indexable, data_fingerprint, select
from smoothcert.report.page.groups import Group
from smoothcert.store import Result
from smoothcert.types import SmoothcertError

LARGEST = 64
"""Pixels along the longer side; larger images are made smaller."""

BUDGET = 11_000_000
"""Bytes that all images of a report may take, about 15 MB in the file."""

_PER_SHEET = 400
_ACROSS = 20
_PROBE = 100
_QUALITIES = (None, 90, 75, 50, 25)  # None: nothing is lost


class ImageDataset(Indexable, Protocol):
    """A dataset of images, as ``smoothcert.data.load`` gives."""

    @property
    def class_names(self) -> tuple[str, ...]: ...


FindDataset = Callable[[Mapping[str, Any]], ImageDataset]
"""Finds the dataset that the configuration of a run describes (``name``, ``split``); raises a SmoothcertError."""


@dataclass(frozen=True)
class Images:
    """What the page knows about the images of a group.

    Attributes:
        payload: Sizes and class names, for the page; None where there are no images.
        sheets: The sheets, as base64.
        note: Why there are no images, or what to know about them.
    """

    payload: dict[str, Any] | None = None
    sheets: tuple[str, ...] = ()
    note: str = ""


def group_images(
    group: Group, find: FindDataset | None, override: ImageDataset | None = None, budget: int = BUDGET
) -> Images:
    """The images of a group's inputs.

    Args:
        find: Finds the dataset of a run; None leaves images out.
        override: A dataset to use instead of the one a run names.
        budget: Bytes the images may take.

    Returns:
        The images if the dataset is there and is the one that was certified; else why not.
    """
    if find is None and override is None:
        return Images(note="This report was made without images.")
    dataset, note = _dataset(group, find, override)
    if dataset is None:
        return Images(note=note)
    try:
        return _packed(group, dataset, note, budget)
    except SmoothcertError as error:
        return Images(note=f"There are no images: {error}")


def _dataset(group: Group, find: FindDataset | None, override: ImageDataset | None) -> tuple[ImageDataset | None, str]:
    """The dataset that was certified, or why it cannot be shown."""
    told = [result for result in group.results if result.settings.data is not None]
    if override is None and not told:
        return None, "There are no images: logs do not tell their dataset. Name it with --data."
    try:
        dataset = override
        if dataset is None:
            assert find is not None
            dataset = find(told[0].config["data"])
        for result in told:
            if not _certified_on(result, dataset):
                return None, (
                    f"There are no images: the dataset found here is not the one that {result.name} was certified on. "
                    "Name the right one with --data."
                )
        if not told and not _same_labels(group, dataset):
            return None, "There are no images: the labels of the dataset named by --data are not those of the logs."
    except (SmoothcertError, IndexError) as error:
        return None, f"There are no images: {error}"
    return dataset, "" if told else "The images were matched to the logs by their labels only."


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
    names = [str(name) for name in getattr(dataset, "class_names", ())]
    if first.ndim != 3 or first.shape[0] not in (1, 3):
        return Images(note=f"There are no images: inputs of shape {first.shape} are none.")
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
        "classes": names,
        "grey": tiles[0].ndim == 2,
        "smaller": (height, width) != first.shape[1:],
        "lossy": quality is not None,
    }
    return Images(payload, tuple(sheets), note)


def _tile(x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """An image as bytes, (height, width) or (height, width, 3), made smaller where it is large."""
    pixels: NDArray[np.uint8] = np.rint(255 * np.clip(x, 0.0, 1.0)).astype(np.uint8).transpose(1, 2, 0)
    pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    longer = max(pixels.shape[:2])
    if longer <= LARGEST:
        return pixels
    height, width = (max(1, round(side * LARGEST / longer)) for side in pixels.shape[:2])
    smaller: NDArray[np.uint8] = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))
    return smaller


def _sheet(tiles: Sequence[NDArray[np.uint8]], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    height, width = shape[:2]
    sheet = np.zeros((-(-len(tiles) // _ACROSS) * height, _ACROSS * width, *shape[2:]), dtype=np.uint8)
    for place, tile in enumerate(tiles):
        if tile.shape != shape:
            raise SmoothcertError("the images are not all of one size.")
        row, column = divmod(place, _ACROSS)
        sheet[row * height : (row + 1) * height, column * width : (column + 1) * width] = tile
    return sheet


def _quality(tiles: Sequence[NDArray[np.uint8]], count: int, budget: int) -> int | None:
    """The best quality at which all images keep to the budget, judged by the first ones."""
    sheet = _sheet(tiles, tiles[0].shape)
    for quality in _QUALITIES:
        if len(_encode(sheet, quality)) * count / len(tiles) <= budget:
            return quality
    return _QUALITIES[-1]


def _encode(sheet: NDArray[np.uint8], quality: int | None) -> bytes:
    file = io.BytesIO()
    if quality is None:
        Image.fromarray(sheet).save(file, "WEBP", lossless=True, quality=60, method=2)
    else:
        Image.fromarray(sheet).save(file, "WEBP", quality=quality, method=4)
    return file.getvalue()
