"""Loading outcomes: a run with a damaged row says which run and which input."""

from __future__ import annotations

import pyarrow as pa
import pytest

from smoothcert.report.recompute import load_outcomes
from smoothcert.store import write_run
from smoothcert.store.rows import SCHEMA
from smoothcert.store.run import load_run
from smoothcert.types import RunError, UsageError

CONFIG = {
    "kind": "certification",
    "procedure": {"name": "cohen", "n": 100, "n0": 10, "alpha": 0.001},
    "noise": {"name": "gaussian", "sigma": 0.5},
    "seed": 0,
    "model": {"name": "Linear", "sha256": "0"},
    "num_classes": 2,
    "data": {"name": "digits", "split": "test", "size": 500, "sha256": "0"},
    "inputs": {"every": 1, "start": 0, "stop": None},
}


def stored(path, count=3, **change):
    """A run of three inputs 0, 10 and 20, the middle one with other values."""
    rows = [
        {"index": 10 * i, "label": 1, "predict": 1, "radius": 0.5, "norm": "l2", "counts": [2, 98], "p_lower": 0.9}
        for i in range(count)
    ]
    if rows:
        rows[1].update(change)
    return write_run(path, pa.Table.from_pylist(rows, schema=SCHEMA), CONFIG, {}).path


def test_whole_runs(tmp_path):
    (run,) = load_outcomes([stored(tmp_path / "fine")])
    assert (run.name, len(run), run.natural, run.origin.scale, run.origin.data) == ("fine", 3, 3, 0.5, "digits test")
    (mixed,) = load_outcomes([stored(tmp_path / "mixed", counts=[50, 50])])
    assert mixed.natural == 2  # of 50 to 50 votes PREDICT is not sure
    (unknown,) = load_outcomes([stored(tmp_path / "unknown", counts=None)])
    assert unknown.natural is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"radius": float("nan")}, "input 10 has a radius that is not a number"),
        ({"radius": None}, "input 10 has no radius"),
        ({"radius": -1.0}, "input 10 has a radius that is not a number"),
        ({"label": None}, "input 10 has no label"),
        ({"label": -1}, "input 10 has a negative label"),
        ({"predict": -3}, "input 10 has a negative predict"),
        ({"predict": -1}, "input 10 abstains, but has a radius above 0"),
        ({"index": 0}, "the row of input 0 appears twice"),
        ({"norm": None}, "input 10 has an invalid norm"),
        ({"norm": "l7"}, "input 10 has an invalid norm"),
        ({"guarantee": "all"}, "input 10 has an invalid guarantee"),
        ({"arithmetic": "double"}, "input 10 has an invalid arithmetic"),
    ],
)
def test_damaged_rows(tmp_path, change, said):
    path = stored(tmp_path / "run-7", **change)
    with pytest.raises(RunError, match=f"run-7/part-000000.parquet is damaged: .*{said}"):
        load_outcomes([path])


def test_runs_without_rows_or_with_several_norms(tmp_path):
    with pytest.raises(RunError, match="empty holds no rows yet"):
        load_outcomes([stored(tmp_path / "empty", count=0)])
    with pytest.raises(RunError, match=r"several is damaged: .* the radii are in several norms \(l1, l2\)"):
        load_outcomes([stored(tmp_path / "several", norm="l1")])


def test_runs_without_certificates(tmp_path):
    predictions = pa.table({"index": [0], "predict": [1]})
    path = write_run(tmp_path / "core", predictions, {"kind": "imported prediction"}, {}).path
    with pytest.raises(UsageError, match="core has no label and no radius; certified accuracy needs"):
        load_outcomes([path])
    assert load_run(path).config["kind"] == "imported prediction"
