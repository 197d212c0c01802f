"""What is kept with every radius: guarantee, arithmetic, runtime, classifier and seed, as far as they are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from smoothcert.types import Arithmetic, Guarantee, Norm, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("guarantee", "arithmetic", "runtime", "model", "seed")
"""The columns of runs and logs that hold it; norm and alpha are kept apart."""

KINDS: dict[str, frozenset[str]] = {
    name: frozenset(each.value for each in kind)
    for name, kind in (("norm", Norm), ("guarantee", Guarantee), ("arithmetic", Arithmetic))
}
"""The values that exist, of the columns that do not hold just any text."""

_SHORT_HASH = 8


@dataclass(frozen=True)
class Metadata:
    """What a run says about all its radii.

    Each attribute holds the different values of the rows in order, and None last where rows do not tell. A run whose
    rows agree has one value; one whose shards ran in different ways has several.

    Attributes:
        guarantee: What the certificates cover.
        arithmetic: How noise was added.
        runtime: How the model was run.
        model: The identity of the classifier.
        seed: The seed of the noise.
        chosen: Settings that were chosen after the votes were drawn, with their values, such as ``n = 10,000``.
    """

    guarantee: tuple[str | None, ...] = (None,)
    arithmetic: tuple[str | None, ...] = (None,)
    runtime: tuple[str | None, ...] = (None,)
    model: tuple[str | None, ...] = (None,)
    seed: tuple[int | None, ...] = (None,)
    chosen: tuple[str, ...] = ()

    def text(self, name: str, *, short: bool = True) -> str:
        """An attribute as text: ``eager+compiled`` where rows differ, ``unknown`` where they do not tell.

        Args:
            name: The attribute.
            short: Whether the identity of a classifier is cut to its first characters.

        Example:
            >>> Metadata(runtime=("compiled", "eager", None)).text("runtime")
            'compiled+eager+unknown'
        """
        values = getattr(self, name)
        cut = _SHORT_HASH if name == "model" and short else None
        return "+".join("unknown" if value is None else str(value)[:cut] for value in values)

    @property
    def known(self) -> bool:
        """Whether anything is."""
        return any(value is not None for name in COLUMNS for value in getattr(self, name))


UNKNOWN = Metadata()
"""What is known of a run that tells nothing."""


def read_metadata(table: pa.Table, *, seed: int | None = None) -> Metadata:
    """What the rows of a run or a log say about their radii.

    Args:
        table: The rows.
        seed: The seed of the whole run, for rows of earlier versions, which lack it.

    Returns:
        What they say.

    Raises:
        UsageError: If a guarantee or an arithmetic is not one that exists; the input is named.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for name in COLUMNS:
        values = _distinct(table, name)
        if name == "seed" and seed is not None:
            values = {seed if value is None else value for value in values}
        found[name] = _ordered(values)
    return Metadata(**found)


def read_norm(table: pa.Table) -> Norm | None:
    """The norm of the radii in the rows of a run or a log; None where not all rows tell it.

    Raises:
        UsageError: If rows are in several norms, or in one that does not exist.
    """
    values = _distinct(table, "norm")
    known = sorted(value for value in values if value is not None)
    if len(known) > 1:
        raise UsageError(f"the radii are in several norms ({', '.join(known)}); put each norm into a separate run.")
    return None if None in values else Norm(known[0])


def together(found: Iterable[Metadata]) -> Metadata:
    """What several runs say that are shown as one."""
    listed = list(found)
    merged = {name: _ordered({value for each in listed for value in getattr(each, name)}) for name in COLUMNS}
    return Metadata(**merged, chosen=tuple(dict.fromkeys(text for each in listed for text in each.chosen)))


def _distinct(table: pa.Table, name: str) -> set[Any]:
    if name not in table.column_names or not len(table):
        return {None}
    values = set(table[name].unique().to_pylist())
    wrong = values - KINDS[name] - {None} if name in KINDS else set()
    if wrong:
        index = table["index"][pc.index(table[name], min(wrong)).as_py()].as_py()
        raise UsageError(f"input {index} has the {name} {min(wrong)[:60]!r}, which does not exist.")
    return values


def _ordered(values: set[Any]) -> tuple[Any, ...]:
    return (*sorted(value for value in values if value is not None), *([None] if None in values else []))
