"""What is kept with every radius: read from rows, unknown where it is not recorded, never assumed."""

from __future__ import annotations

import doctest

import pyarrow as pa
import pytest
import torch

from smoothcert import Cohen, Gaussian, Smoothed, certify_dataset
from smoothcert.report.recompute import load_outcomes, outcomes_of
from smoothcert.store import Outcomes, load_run, merge_runs, write_run
from smoothcert.store import outcomes as module
from smoothcert.store.logs import write_log
from smoothcert.store.outcomes import METADATA_COLUMNS, UNKNOWN, Metadata, merged_metadata, read_metadata, read_norm
from smoothcert.types import Norm, UsageError

LATER = ("seed", "arithmetic", "offset", "runtime", "model", "input")
"""Columns that runs of earlier versions lack."""


def table(**columns):
    count = len(next(iter(columns.values())))
    return pa.table({"index": range(count), **columns})


def changed(run, path, **columns):
    """A copy of a run with other values in some columns."""
    rows = run.table()
    for name, values in columns.items():
        column = pa.array([values] * len(rows) if isinstance(values, str) else values, rows.schema.field(name).type)
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return write_run(path, rows, run.config, {}).path


def test_examples():
    assert doctest.testmod(module).failed == 0


def test_rows_that_agree_and_rows_that_do_not():
    found = read_metadata(table(guarantee=["global", "global"], runtime=["eager", "compiled"], seed=[3, None]))
    assert found.guarantee == ("global",)
    assert found.runtime == ("compiled", "eager")
    assert found.seed == (3, None)
    assert found.arithmetic == found.model == (None,)
    assert [found.text(name) for name in METADATA_COLUMNS] == [
        "global",
        "unknown",
        "compiled+eager",
        "unknown",
        "3+unknown",
    ]


def test_nothing_is_known_without_columns():
    assert read_metadata(table(radius=[0.5])) == UNKNOWN
    assert read_norm(table(radius=[0.5])) is None
    assert not UNKNOWN.known
    assert Outcomes("run", [0], [1], [1], [0.5]).norm is None


def test_the_seed_of_a_run_stands_in_for_rows_without_one():
    assert read_metadata(table(seed=[3, None]), seed=7).seed == (3, 7)
    assert read_metadata(table(radius=[0.5]), seed=7).seed == (7,)


def test_norms():
    assert read_norm(table(norm=["l1", "l1"])) is Norm.L1
    assert read_norm(table(norm=pa.array(["l1", None]))) is None  # some rows do not tell
    with pytest.raises(UsageError, match=r"several norms \(l1, l2\)"):
        read_norm(table(norm=["l1", "l2"]))


def test_a_hash_is_cut_where_people_read_it():
    found = Metadata(model=("ab" * 32,))
    assert found.text("model") == "abababab"
    assert found.text("model", short=False) == "ab" * 32


def test_many_values_are_counted():
    found = Metadata(seed=tuple(range(64)))
    assert found.text("seed") == "64 values"
    assert found.text("seed", short=False).startswith("0+1+2+3+4+")


def test_several_runs_shown_as_one():
    one, two = Metadata(runtime=("eager",), seed=(1,)), Metadata(runtime=(None,), seed=(2,), chosen=("n = 100",))
    assert merged_metadata([one, two]) == Metadata(runtime=("eager", None), seed=(1, 2), chosen=("n = 100",))


def test_alpha_must_be_a_probability():
    with pytest.raises(UsageError, match=r"input 8 has an alpha that is not strictly between 0 and 1"):
        Outcomes("run", [7, 8], [1, 1], [1, 1], [0.5, 0.5], alpha=[0.001, 1.5])


def test_runs_know_what_their_rows_say(digits_runs):
    found = outcomes_of(load_run(digits_runs / "small"))
    assert (found.norm, found.metadata.guarantee, found.metadata.arithmetic) == (Norm.L2, ("global",), ("float",))
    assert set(found.alpha.tolist()) == {0.001}
    assert outcomes_of(load_run(digits_runs / "aces")).metadata.guarantee == ("routed",)


def test_runs_of_earlier_versions(digits_runs, tmp_path):
    run = load_run(digits_runs / "small")
    path = write_run(tmp_path / "old", run.table().drop(list(LATER)), run.config, {}).path
    (found,) = load_outcomes([path])
    assert found.norm is Norm.L2  # every version recorded it
    assert found.metadata.arithmetic == found.metadata.runtime == found.metadata.model == (None,)
    assert found.metadata.seed == (run.config["seed"],)


def test_logs_know_only_what_they_tell(digits_runs, tmp_path):
    rows = load_run(digits_runs / "small").rows()
    write_log(tmp_path / "new", rows)
    write_log(tmp_path / "classic", rows, classic=True)
    new, classic = load_outcomes([tmp_path / "new", tmp_path / "classic"])
    assert (new.norm, new.metadata.guarantee, new.metadata.arithmetic) == (Norm.L2, ("global",), ("float",))
    assert new.alpha.tolist() == [0.001] * len(rows)
    assert (classic.norm, classic.metadata, classic.alpha) == (None, UNKNOWN, None)


def test_imported_rows_without_a_norm_are_unknown_and_not_damaged(tmp_path):
    rows = pa.table({"index": [0, 1], "label": [1, 1], "predict": [1, 1], "radius": [0.5, 0.5], "norm": ["l2", None]})
    path = write_run(tmp_path / "imported", rows, {"kind": "imported certification"}, {}).path
    assert load_outcomes([path])[0].norm is None


def test_merged_shards_of_different_runtimes(tmp_path, half_space):
    data = [(torch.tensor([0.1 * i, 0.5]), 1) for i in range(6)]
    for number, runtime in ((1, "eager"), (2, "compiled")):
        run = certify_dataset(
            Smoothed(half_space, Gaussian(0.5)),
            data,
            Cohen(n=100),
            run=tmp_path / "made" / str(number),
            shard=(number, 2),
            progress=False,
        )
        changed(run, tmp_path / str(number), runtime=runtime)
    united = merge_runs([tmp_path / "1", tmp_path / "2"], tmp_path / "united")
    assert outcomes_of(united).metadata.text("runtime") == "compiled+eager"
