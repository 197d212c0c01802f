"""The rows of a run: column types, checks, and the conversion of certificates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from smoothcert.store.logs import LOG_TYPES
from smoothcert.types import ABSTAIN, LARGEST_RADIUS, Arithmetic, Certificate, Guarantee, Norm

Row = dict[str, Any]

ANSWERS = ("index", "label", "predict", "radius")  # the columns that certified accuracy needs

_votes = pa.list_(pa.int64())
SCHEMA = pa.schema(
    [
        ("index", pa.int64()),
        ("label", pa.int64()),
        ("predict", pa.int64()),
        ("radius", pa.float64()),
        ("correct", pa.bool_()),
        ("p_lower", pa.float64()),
        ("alpha", pa.float64()),
        ("alpha_split", pa.list_(pa.struct([("bound", pa.string()), ("alpha", pa.float64())]))),
        ("norm", pa.string()),
        ("guarantee", pa.string()),
        ("n", pa.int64()),
        ("counts", _votes),
        ("n0", pa.int64()),
        ("selection", _votes),
        ("checkpoints", pa.list_(pa.struct([("n", pa.int64()), ("counts", _votes)]))),
        ("outcome", pa.string()),
        ("decisions", pa.list_(pa.struct([("radius", pa.float64()), ("outcome", pa.string())]))),
        ("stages", pa.list_(pa.struct([("n", pa.int64()), ("counts", _votes)]))),
        ("seconds", pa.float64()),
        ("consensus", pa.float64()),
        ("sigma", pa.float64()),
        ("choice", pa.int64()),
        ("choice_radius", pa.float64()),
        ("selector", _votes),
        ("selector0", _votes),
        ("core", pa.int64()),
        ("seed", pa.int64()),
        ("arithmetic", pa.string()),
        ("offset", pa.float64()),
        ("runtime", pa.string()),
        ("model", pa.string()),
        ("input", pa.string()),
        ("p_upper", pa.float64()),
        ("original", _votes),
        ("original_n", pa.int64()),
        ("changed", _votes),
    ]
)
"""The columns of a certification run; parts of earlier versions lack the last ones.

``checkpoints`` are cumulative counts at powers of ten below ``n``; ``consensus`` is the share of noisy copies that the
first members of a consensus decided; ``sigma`` is the noise scale of this input, where each input has one. With a
selector: its certified ``choice`` (-1: none) and the radius of the choice, its votes over the estimation and the
selection samples (for ACES, copies per threshold), and the class of the core. ``p_upper`` is null where the radius
follows from ``p_lower`` alone. After recertification: the votes of the original model, their number, and the ``n``
copies by change of the vote (see ``sampling.statistics.Changed``).
"""

_TYPES = LOG_TYPES | {field.name: field.type for field in SCHEMA}
_KINDS: dict[str, type[Enum]] = {"norm": Norm, "guarantee": Guarantee, "arithmetic": Arithmetic}


def typed(table: pa.Table) -> pa.Table:
    """Cast a table to the column types of a run; raise ``ValueError`` where that is not possible."""
    names = table.column_names
    if "index" not in names:
        raise ValueError("it has no column index")
    for place, name in enumerate(names):
        if names.count(name) > 1:
            raise ValueError(f"it has two columns {name}")
        column, known = table[name], _TYPES.get(name, table[name].type)
        if column.type != known:
            if not (_is_number(column.type) and _is_number(known)) and not _is_empty(column.type):
                raise ValueError(f"its column {name} holds {column.type} and not {known}")
            try:
                column = column.cast(known)
            except pa.ArrowInvalid:
                raise ValueError(f"its column {name} has a value that is not {known}") from None
            table = table.set_column(place, name, column)
        if pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type):
            entries = column.combine_chunks().flatten()
            if entries.null_count or any(part.null_count for part in entries.flatten()):
                raise ValueError(f"its column {name} has gaps")
    return table


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_empty(kind: Any) -> bool:
    return bool(pa.types.is_null(kind) or (pa.types.is_list(kind) and pa.types.is_null(kind.value_type)))


def mistyped_row(rows: Sequence[Row]) -> int | None:
    """Return the position of the first row whose values do not have the types of a run."""
    try:
        if not typed(pa.Table.from_pylist(rows, schema=SCHEMA))["index"].null_count:
            return None
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        pass
    return next((place for place, row in enumerate(rows) if len(rows) > 1 and mistyped_row([row]) is not None), 0)


def check_rows(table: pa.Table, *, num_classes: int | None = None, needs_norm: bool = False) -> None:
    """Raise ``ValueError`` if a row of :func:`typed` rows is invalid; columns that are missing are not checked.

    ``needs_norm`` is whether every row must have a norm; rows of imported logs may lack it.
    """
    if not len(table):
        return
    for wrong, problem in _problems(table, num_classes, needs_norm):
        if wrong.any():
            place = int(np.argmax(wrong))
            index = table["index"][place].as_py()
            row = f"row {place + 1}" if index is None else f"the row of input {index}"
            raise ValueError(f"{row} {problem}")


def _problems(table: pa.Table, num_classes: int | None, needs_norm: bool) -> Iterator[tuple[NDArray[np.bool_], str]]:
    """Yield the checks one by one; later checks rely on earlier ones."""
    there = set(table.column_names)
    for name in ANSWERS:
        if name in there:
            yield _array(pc.is_null(table[name])), f"has no {name}"
    index = _array(table["index"])
    order = np.argsort(index, kind="stable")
    repeated = np.zeros(len(index), dtype=bool)
    repeated[order[1:]] = index[order[1:]] == index[order[:-1]]
    yield repeated, "appears twice"
    for name, lowest in (("index", 0), ("label", 0), ("predict", ABSTAIN), ("seed", 0)):
        if name in there:
            values = _array(pc.fill_null(table[name], 0))  # a seed may be unknown
            yield values < lowest, f"has a negative {name}"
            if num_classes is not None and name == "predict":  # labels may be classes that the model does not have
                yield values >= num_classes, f"has a {name} beyond the {num_classes} classes"
    for name in ("radius", "p_lower", "p_upper", "sigma", "seconds", "choice_radius", "offset"):
        if name in there:
            values = _array(pc.fill_null(table[name], 0.0))
            yield ~((values >= 0) & (values < LARGEST_RADIUS)), f"has a {name} that is not a number from 0 to 1e15"
    if {"predict", "radius"} <= there:
        abstained = _array(table["predict"]) == ABSTAIN
        yield abstained & (_array(table["radius"]) > 0), "abstains, but has a radius above 0"
    if "alpha" in there:
        alpha = _array(pc.fill_null(table["alpha"], 0.5))
        yield ~((alpha > 0) & (alpha < 1)), "has an alpha that is not strictly between 0 and 1"
    for name, kinds in _KINDS.items():
        if name in there:
            unknown = [] if name == "norm" and needs_norm else [None]
            allowed = pa.array([*(kind.value for kind in kinds), *unknown], pa.string())
            yield ~_array(pc.is_in(table[name], value_set=allowed)), f"has an invalid {name}"
    pairs = (("counts", "n"), ("selection", "n0"), ("selector", None), ("selector0", None))
    for votes, samples in (*pairs, ("original", "original_n"), ("changed", "n")):
        if votes in there:
            n = _array(pc.fill_null(table[samples], 2**62)) if samples in there else None  # null: unknown
            yield _miscounted(table[votes], n), f"has {votes} that are negative or more than its samples"


def _miscounted(column: pa.ChunkedArray, n: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    """Find the rows whose counts are missing, negative, or more than the samples."""
    lists = column.combine_chunks()
    rows, counts = _array(pc.list_parent_indices(lists)), lists.flatten()
    wrong = np.zeros(len(column), dtype=bool)
    wrong[rows[_array(pc.is_null(counts))]] = True
    values = _array(pc.fill_null(counts, 0))
    wrong[rows[values < 0]] = True
    if n is not None:
        wrong |= np.bincount(rows, values.astype(np.float64), len(column)) > n
    return wrong


def _array(values: Any) -> NDArray[Any]:
    return np.asarray(values.to_numpy(zero_copy_only=False) if isinstance(values, pa.Array) else values.to_numpy())


def certificate_row(
    certificate: Certificate, label: int, seconds: float, consensus: float | None = None, sigma: float | None = None
) -> Row:
    """Make the row of an input whose true class is ``label``."""
    c, routing = certificate, certificate.routing
    same = ("index", "radius", "p_lower", "p_upper", "alpha", "n", "n0", "seed", "offset", "runtime", "model", "input")
    row = {name: getattr(c, name) for name in same}
    row |= {name: getattr(c, name).value for name in ("norm", "guarantee", "outcome", "arithmetic")}
    row |= {
        "label": label,
        "predict": c.label,
        "correct": c.label == label,
        "alpha_split": [{"bound": bound, "alpha": alpha} for bound, alpha in c.alpha_split.items()],
        "counts": list(c.counts),
        "selection": list(c.selection),
        "checkpoints": [{"n": n, "counts": list(counts)} for n, counts in c.checkpoints.items()],
        "decisions": [{"radius": radius, "outcome": outcome.value} for radius, outcome in c.decisions.items()],
        "stages": [{"n": stage.n, "counts": list(stage.counts)} for stage in c.stages],
        "seconds": seconds,
        "consensus": consensus,
        "sigma": sigma,
    }
    if routing is not None:
        row |= {"choice": routing.choice, "choice_radius": routing.radius, "core": routing.core}
        row |= {"selector": list(routing.counts), "selector0": list(routing.selection)}
    if c.original is not None:
        row |= {"original": list(c.original.counts), "original_n": c.original.n}
        row |= {"changed": None if c.changed is None else list(c.changed.counts)}
    return {name: row.get(name) for name in SCHEMA.names}
