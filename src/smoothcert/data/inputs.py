"""Labelled inputs of any dataset, and a fingerprint of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from smoothcert.tensors import as_tensor
from smoothcert.types import UsageError


class Indexable(Protocol):
    """A dataset: a length, and pairs (input, label) by index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


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
