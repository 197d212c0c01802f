"""The rows of a certification run: one per input, with its certificate and its votes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from smoothcert.store.logs import LOG_TYPES
from smoothcert.types import Certificate, Routing

Row = dict[str, Any]

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
    ]
)
"""The columns of a certification run.

``checkpoints`` are cumulative counts at powers of ten below ``n``; ``consensus`` is the share of noisy copies that the
first members of a consensus decided, null for other models; ``sigma`` the scale of a noise chosen for the input alone.
Where a selector chose who answers: its certified ``choice`` (-1: none) and how far it holds, the votes of the
estimation and the selection samples (for ACES, copies per threshold), and the class of a core that was asked.
``seed``, ``arithmetic``, ``offset``, ``runtime``, ``model`` and ``input`` are those of the certificate. Parts of
earlier versions lack the last columns: there the values are unknown.
"""

_KNOWN = LOG_TYPES | {field.name: field.type for field in SCHEMA}
"""The types of all columns that have one: those of certification runs and of imported logs."""


def fitting(table: pa.Table) -> pa.Table:
    """A table with the types of a run, so that nobody who reads rows meets another type than expected.

    Returns:
        The table; numbers of another width, and columns of nothing but gaps, are given their type.

    Raises:
        ValueError: If a column is there twice or of another type, an entry of a list is missing, or the index is.
    """
    for name in table.column_names:
        if table.column_names.count(name) > 1:
            raise ValueError(f"it has two columns {name}")
        column, known = table[name], _KNOWN.get(name, table[name].type)
        if column.type != known:
            if not (_is_number(column.type) and _is_number(known)) and not _is_gap(column.type):
                raise ValueError(f"its column {name} holds {column.type} and not {known}")
            column = column.cast(known)
            table = table.set_column(table.column_names.index(name), name, column)
        if pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type):
            entries = column.combine_chunks().flatten()
            if entries.null_count or any(part.null_count for part in entries.flatten()):
                raise ValueError(f"its column {name} has gaps")
    if "index" not in table.column_names:
        raise ValueError("it has no column index")
    return table


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_gap(kind: Any) -> bool:
    return bool(pa.types.is_null(kind) or (pa.types.is_list(kind) and pa.types.is_null(kind.value_type)))


def unfit_row(rows: Sequence[Row]) -> int | None:
    """The place of the first row that is none of a certification run; None where all of them are."""
    if _fits(rows):
        return None
    return next((place for place, row in enumerate(rows) if not _fits([row])), 0)


def _fits(rows: Sequence[Row]) -> bool:
    try:
        table = fitting(pa.Table.from_pylist(rows, schema=SCHEMA))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return not table["index"].null_count


def certificate_row(
    certificate: Certificate,
    label: int,
    seconds: float,
    consensus: float | None = None,
    sigma: float | None = None,
) -> Row:
    """One row of a run: the certificate of an input whose true class is ``label``."""
    c = certificate
    return {
        "index": c.index,
        "label": label,
        "predict": c.label,
        "radius": c.radius,
        "correct": c.label == label,
        "p_lower": c.p_lower,
        "alpha": c.alpha,
        "alpha_split": [{"bound": bound, "alpha": alpha} for bound, alpha in c.alpha_split.items()],
        "norm": c.norm.value,
        "guarantee": c.guarantee.value,
        "n": c.n,
        "counts": list(c.counts),
        "n0": c.n0,
        "selection": list(c.selection),
        "checkpoints": [{"n": n, "counts": list(counts)} for n, counts in c.checkpoints.items()],
        "outcome": c.outcome.value,
        "decisions": [{"radius": radius, "outcome": outcome.value} for radius, outcome in c.decisions.items()],
        "stages": [{"n": stage.n, "counts": list(stage.counts)} for stage in c.stages],
        "seconds": seconds,
        "consensus": consensus,
        "sigma": sigma,
        **_routing_columns(c.routing),
        "seed": c.seed,
        "arithmetic": c.arithmetic.value,
        "offset": c.offset,
        "runtime": c.runtime,
        "model": c.model,
        "input": c.input,
    }


def _routing_columns(routing: Routing | None) -> Row:
    if routing is None:
        return dict.fromkeys(("choice", "choice_radius", "selector", "selector0", "core"))
    return {
        "choice": routing.choice,
        "choice_radius": routing.radius,
        "selector": list(routing.counts),
        "selector0": list(routing.selection),
        "core": routing.core,
    }
