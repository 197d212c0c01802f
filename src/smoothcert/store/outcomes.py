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
    """Facts about all radii of a run.

    Each attribute holds the distinct values of the rows in order, and None last where rows do not record it.

    Attributes:
        guarantee: What the certificates cover.
        arithmetic: How noise was added.
        runtime: How the model was run.
        model: The identity of the classifier.
        seed: The seed of the noise.
        chosen: Settings that were chosen after sampling, such as ``n = 10,000``.
    """

    guarantee: tuple[str | None, ...] = (None,)
    arithmetic: tuple[str | None, ...] = (None,)
    runtime: tuple[str | None, ...] = (None,)
    model: tuple[str | None, ...] = (None,)
    seed: tuple[int | None, ...] = (None,)
    chosen: tuple[str, ...] = ()

    def text(self, name: str, *, short: bool = True) -> str:
        """Write an attribute as text: ``eager+compiled`` where rows differ, ``unknown`` where they do not record it.

        Args:
            name: The attribute.
            short: Whether to cut the identity of a classifier, and to count many values.

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
    """Read the norm of the radii; None where not all rows record it.

    Raises:
        UsageError: If rows are in several norms.
    """
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
    """How a run was made, as far as it matters where runs are shown together.

    Attributes:
        noise: The name of the noise, if it is the same for all inputs.
        scale: Its scale: σ, λ or the share of pixels kept.
        data: The dataset and its split.
        n: The number of estimation samples, if it was fixed.
        alpha: The probability of a wrong statement.
        seeds: The seed of the noise, then those of the trainings, if known.
        alike: The settings that a run shares with those that differ from it in seeds only.
        recipe: The recipe that trained its model, if known.
    """

    noise: str | None = None
    scale: float | None = None
    data: str | None = None
    n: int | None = None
    alpha: float | None = None
    seeds: tuple[int | None, ...] = ()
    alike: str | None = None
    recipe: str | None = None


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The answers of one run; the arrays are copied and read-only.

    Attributes:
        name: The name of the run in tables and plots.
        index: The index of every input in its dataset, each once.
        label: The true classes.
        predict: The certified classes, ``ABSTAIN`` (-1) where there is none.
        radius: The certified radii in ``norm``, 0 for abstentions.
        norm: The norm of the radii, if known.
        origin: How the run was made, if known.
        natural: The number of inputs that PREDICT answers correctly, if known.
        alpha: The probability of a false statement for every input, or one for all, if known.
        metadata: Guarantee, arithmetic, runtime, classifier and seed, if known.

    Raises:
        UsageError: If the arrays are empty, differ in length or hold invalid values.
    """

    name: str
    index: NDArray[np.int64]
    label: NDArray[np.int64]
    predict: NDArray[np.int64]
    radius: NDArray[np.float64]
    norm: Norm | None = None
    origin: Origin | None = None
    natural: int | None = None
    alpha: NDArray[np.float64] | None = None
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
        """Make outcomes of the columns of an Arrow table; attributes without a column are unknown.

        Raises:
            UsageError: If a column is missing, or rows are in several norms.
        """
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
        arrays = (table[column].to_numpy() for column in ANSWERS)
        return cls(name, *arrays, norm, origin, natural, alpha, read_metadata(table, seed=seed))

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
