"""The certified answers of a run or a log as arrays, with what is known about how they were made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from smoothcert.store.rows import ANSWERS, check_rows, typed
from smoothcert.types import ABSTAIN, Norm, UsageError

METADATA_COLUMNS = ("guarantee", "arithmetic", "runtime", "model", "seed")
"""The columns of runs and logs that become :class:`Metadata`; norm and alpha are kept separately."""

_SHORT_HASH = 8
_MOST_VALUES = 5


@dataclass(frozen=True)
class Metadata:
    """The distinct values of some columns of a run in order, and None last where rows do not record one."""

    guarantee: tuple[str | None, ...] = (None,)
    arithmetic: tuple[str | None, ...] = (None,)
    runtime: tuple[str | None, ...] = (None,)
    model: tuple[str | None, ...] = (None,)
    seed: tuple[int | None, ...] = (None,)
    chosen: tuple[str, ...] = ()  # settings that were chosen after sampling, such as "n = 10,000"

    def text(self, name: str, *, short: bool = True) -> str:
        """Write an attribute as text; ``short`` cuts the identity of a classifier, and counts many values.

        Example:
            >>> Metadata(runtime=("compiled", "eager", None)).text("runtime")
            'compiled+eager+unknown'
        """
        values = getattr(self, name)
        if short and len(values) > _MOST_VALUES:
            return f"{len(values)} values"
        cut = _SHORT_HASH if name == "model" and short else None
        return "+".join("unknown" if value is None else str(value)[:cut] for value in values)

    @property
    def known(self) -> bool:
        """Whether anything is known."""
        return any(value is not None for name in METADATA_COLUMNS for value in getattr(self, name))


UNKNOWN = Metadata()


def read_metadata(table: pa.Table, *, seed: int | None = None) -> Metadata:
    """Read the metadata of rows; ``seed`` is that of the run, for rows of earlier versions."""
    found = {name: _distinct(table, name) for name in METADATA_COLUMNS}
    if seed is not None:
        found["seed"] = {seed if value is None else value for value in found["seed"]}
    return Metadata(**{name: _ordered(values) for name, values in found.items()})


def read_norm(table: pa.Table) -> Norm | None:
    """Read the norm of the radii; None where not all rows record it. Refuse rows in several norms."""
    values = _distinct(table, "norm")
    known = sorted(value for value in values if value is not None)
    if len(known) > 1:
        raise UsageError(f"the radii are in several norms ({', '.join(known)}); put each norm into a separate run.")
    return None if None in values else Norm(known[0])


def merged_metadata(found: Iterable[Metadata]) -> Metadata:
    """Combine the metadata of several runs that are shown as one."""
    listed = list(found)
    merged = {name: _ordered({value for each in listed for value in getattr(each, name)}) for name in METADATA_COLUMNS}
    return Metadata(**merged, chosen=tuple(dict.fromkeys(text for each in listed for text in each.chosen)))


def _distinct(table: pa.Table, name: str) -> set[Any]:
    exists = name in table.column_names and len(table)
    return set(table[name].unique().to_pylist()) if exists else {None}


def _ordered(values: set[Any]) -> tuple[Any, ...]:
    return (*sorted(value for value in values if value is not None), *([None] if None in values else []))


@dataclass(frozen=True)
class Origin:
    """How a run was made, as far as it matters where runs are shown together."""

    noise: str | None = None  # the name of the noise, if it is the same for all inputs
    scale: float | None = None  # its σ, λ or share of pixels kept
    data: str | None = None  # the dataset and its split
    sample: str | None = None  # a hash of some of its inputs
    n: int | None = None  # the number of estimation samples, if it was fixed
    alpha: float | None = None
    bound: str | None = None  # of smoothcert's certificates: plain or runner-up
    seeds: tuple[int | None, ...] = ()  # the seed of the noise, then those of the trainings
    alike: str | None = None  # the settings shared by runs that differ in seeds only
    recipe: str | None = None  # the recipe that trained the model


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The answers of one run; the arrays are checked, copied and read-only."""

    name: str
    index: NDArray[np.int64]  # of every input in its dataset, each once
    label: NDArray[np.int64]
    predict: NDArray[np.int64]  # the certified classes, ABSTAIN where there is none
    radius: NDArray[np.float64]  # 0 for abstentions
    norm: Norm | None = None
    origin: Origin | None = None
    natural: int | None = None  # the number of inputs that PREDICT answers correctly
    alpha: NDArray[np.float64] | None = None  # the probability of a wrong statement for every input, or one for all
    metadata: Metadata = UNKNOWN

    def __post_init__(self) -> None:
        columns: dict[str, ArrayLike] = {name: np.asarray(getattr(self, name)) for name in ANSWERS}
        if len({np.shape(values) for values in columns.values()}) > 1:
            raise UsageError(f"{self.name}: index, label, predict and radius must have equal lengths.")
        if np.ndim(columns["index"]) != 1 or not np.size(columns["index"]):
            raise UsageError(f"{self.name}: there are no inputs to measure.")
        if self.alpha is not None:
            columns["alpha"] = np.broadcast_to(self.alpha, np.shape(columns["index"])).astype(np.float64)
        try:
            table = typed(pa.table(columns))
            check_rows(table)
        except (pa.ArrowException, ValueError) as error:
            raise UsageError(f"{self.name}: {str(error).splitlines()[0]}.") from error
        for name in columns:
            array = np.array(table[name].to_numpy())
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "norm", None if self.norm is None else Norm(self.norm))

    @classmethod
    def from_table(
        cls,
        name: str,
        table: pa.Table,
        *,
        origin: Origin | None = None,
        natural: int | None = None,
        seed: int | None = None,
    ) -> Outcomes:
        """Make outcomes of the columns of an Arrow table; optional attributes without a column are unknown."""
        missing = [column for column in ANSWERS if column not in table.column_names]
        if missing:
            raise UsageError(
                f"{name} has no {' and no '.join(missing)}; certified accuracy needs {', '.join(ANSWERS)}."
            )
        try:
            norm = read_norm(table)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None
        known = "alpha" in table.column_names and not table["alpha"].null_count
        alpha = table["alpha"].to_numpy() if known else None
        index, label, predict, radius = (table[column].to_numpy() for column in ANSWERS)
        return cls(name, index, label, predict, radius, norm, origin, natural, alpha, read_metadata(table, seed=seed))

    def at(self, places: NDArray[np.int64]) -> Outcomes:
        """Select rows by their positions, in that order."""
        arrays = {name: getattr(self, name)[places] for name in ANSWERS}
        return replace(self, **arrays, alpha=None if self.alpha is None else self.alpha[places], natural=None)

    def restrict(self, index: NDArray[np.int64]) -> Outcomes:
        """Select inputs, in the order given."""
        order = np.argsort(self.index)
        return self.at(order[np.searchsorted(self.index, index, sorter=order)])

    def __len__(self) -> int:
        return len(self.index)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Where the certified class is the true one; never for an abstention."""
        return np.equal(self.predict, self.label)

    @property
    def abstained(self) -> NDArray[np.bool_]:
        """Where there is no certified class."""
        return np.equal(self.predict, ABSTAIN)
