"""Select inputs of a dataset, and make a fingerprint of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from smoothcert.data.images import image_tensor
from smoothcert.types import UsageError


class Indexable(Protocol):
    """A dataset: a length, and pairs (input, label) by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


def as_tensor(x: Any) -> Tensor:
    """Convert an input to a tensor: an array of any byte order and strides, or an image of Pillow, scaled to [0, 1]."""
    if isinstance(x, Image.Image):
        return image_tensor(x)
    if isinstance(x, np.ndarray):
        x = np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))
    try:
        return torch.as_tensor(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"an input is a {type(x).__name__}, not a tensor or an array; convert it to one.") from error


def labelled_input(dataset: Indexable, index: int) -> tuple[Any, int]:
    """Return an input of a dataset and its label; refuse a dataset that does not return such a pair."""
    try:
        found: Any = dataset[index]
    except TypeError as error:
        kind = type(dataset).__name__
        more = "; give its .dataset" if hasattr(dataset, "dataset") else ""
        raise UsageError(f"a {kind} does not give (input, label) pairs by index{more} ({error}).") from error
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        parts = f" of {len(found)} parts" if isinstance(found, (tuple, list)) else ""
        raise UsageError(
            f"input {index} of the dataset is a {type(found).__name__}{parts}, not an (input, label) pair; wrap the "
            "dataset so that it gives pairs."
        )
    try:
        return found[0], int(found[1])
    except (TypeError, ValueError) as error:
        raise UsageError(f"the label of input {index} is {found[1]!r}, not the number of a class.") from error


def select(size: int, *, every: int, start: int, stop: int | None) -> range:
    """Return the indices ``start``, ``start + every``, … below ``stop`` of ``size`` inputs; refuse an empty range."""
    if every < 1 or start < 0:
        raise UsageError(f"every must be at least 1 and start at least 0, got every={every}, start={start}.")
    indices = range(start, size if stop is None else min(stop, size), every)
    if not indices:
        raise UsageError(f"no input selected: the dataset has {size} inputs, start is {start}, stop is {stop}.")
    return indices


def take_shard(indices: range, number: int, count: int) -> range:
    """Return the inputs of shard ``number`` of ``count``, numbered from 1: every ``count``-th input.

    Example:
        >>> list(take_shard(range(0, 70, 10), 2, 3))
        [10, 40]
    """
    if not 1 <= number <= count:
        raise UsageError(f"there is no shard {number}/{count}; shards are numbered from 1/{count} to {count}/{count}.")
    if count > len(indices):
        raise UsageError(f"{len(indices)} inputs cannot fill {count} shards; use at most {len(indices)}.")
    return indices[number - 1 :: count]


def whole_selection(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of :func:`select` from the configuration of a run, for all its shards."""
    return {name: value for name, value in config["inputs"].items() if name != "shard"}


def data_fingerprint(dataset: Indexable, indices: Sequence[int]) -> dict[str, Any]:
    """Return name, size and a hash of three selected inputs, to notice another dataset on resume."""
    digest = hashlib.sha256()
    for index in sorted({indices[0], indices[len(indices) // 2], indices[-1]}):
        x, label = labelled_input(dataset, index)
        digest.update(np.ascontiguousarray(as_tensor(x).cpu().numpy()).tobytes())
        digest.update(str(label).encode())
    return {
        "name": getattr(dataset, "name", type(dataset).__name__),
        "split": getattr(dataset, "split", None),
        "size": len(dataset),
        "sha256": digest.hexdigest(),
    }
