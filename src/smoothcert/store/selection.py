"""Which inputs of a dataset a run holds, and how shards share them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smoothcert.types import UsageError


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
