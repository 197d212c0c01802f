"""Run folders whose checksums are right and whose content no run can have: an error of ours, whoever reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from smoothcert.report.metrics import default_radii
from smoothcert.report.recompute import outcomes_of
from smoothcert.sampling import BLOCK
from smoothcert.store import load_result, load_run, merge_runs, open_run, pending, run_json, write_run
from smoothcert.store.noisy_copies import noisy_copies
from smoothcert.store.parts import read_part, write_part
from smoothcert.store.rows import SCHEMA
from smoothcert.store.selector_labels import best_of, certifiable
from smoothcert.types import RunError, UsageError

CONFIG = {
    "kind": "certification",
    "procedure": {"name": "cohen", "n0": 10, "n": 100, "alpha": 0.001},
    "noise": {"name": "gaussian", "sigma": 0.5},
    "seed": 0,
}
ROW = {
    **dict.fromkeys(SCHEMA.names),
    "index": 0,
    "label": 1,
    "predict": 1,
    "radius": 0.25,
    "norm": "l2",
    "n": 100,
    "counts": [1, 99],
    "selection": [0, 10],
    "checkpoints": [{"n": 10, "counts": [0, 10]}],
}
DEEP = "[" * 20_000 + "]" * 20_000


def written(path: Path, config: dict = CONFIG, **changes) -> Path:
    table = pa.Table.from_pylist([{**ROW, **changes}], schema=SCHEMA)
    return write_run(path, table, config, {"note": "test"}).path


def sealed(path: Path, **changes) -> None:
    """Give ``run.json`` other content and a checksum that is right."""
    content = json.loads((path / "run.json").read_text())
    del content["sha256"]
    (path / "run.json").write_text(run_json._info_text({**content, **changes}))


def test_the_run_that_is_damaged_here_reads_well(tmp_path):
    run = load_run(written(tmp_path / "run"))
    assert outcomes_of(run).radius.tolist() == [0.25]
    assert outcomes_of(run, n=10).index.tolist() == [0]


@pytest.mark.parametrize("name", ["run.json", "pending.jsonl"])
def test_deep_nesting(tmp_path, name):
    path = written(tmp_path / "run")
    (path / name).write_text(DEEP + "\n")
    with pytest.raises(RunError, match=f"{name} is damaged"):
        load_run(path).table()


@pytest.mark.parametrize("config", [{"kind": 7}, {"kind": ["certification"]}, [], "text"])
def test_a_configuration_without_a_kind(tmp_path, config):
    path = written(tmp_path / "run")
    sealed(path, config=config)
    with pytest.raises(RunError, match=r"run\.json is damaged"):
        load_run(path)


def test_a_format_that_is_no_number_at_all(tmp_path):
    path = written(tmp_path / "run")
    sealed(path, format=float("inf"))
    with pytest.raises(RunError, match=r"run\.json is damaged"):
        load_run(path)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"procedure": "cohen"}, "procedure"),
        ({"procedure": {"name": ["cohen"]}}, r"procedure\.name"),
        ({"procedure": {"name": "cohen", "n": "100"}}, r"procedure\.n"),
        ({"procedure": {"name": "cohen", "n": 10**30}}, r"procedure\.n"),
        ({"procedure": {"name": "cohen", "alpha": 2}}, r"procedure\.alpha"),
        ({"noise": []}, "noise"),
        ({"noise": {"name": "gaussian", "sigma": "0.5"}}, r"noise\.sigma"),
        ({"noise": {"name": "gaussian", "sigma": float("nan")}}, r"noise\.sigma"),
        ({"data": 7}, "data"),
        ({"data": {"name": 7}}, r"data\.name"),
        ({"experts": [None]}, "experts"),
        ({"num_classes": "many"}, "num_classes"),
        ({"inputs": {"shard": [1]}}, r"inputs\.shard"),
        ({"inputs": {"start": None}}, r"inputs\.start"),
        ({"inputs": {"every": None}}, r"inputs\.every"),
    ],
)
def test_settings_of_another_kind(tmp_path, changes, name):
    run = load_run(written(tmp_path / "run", {**CONFIG, **changes}))
    with pytest.raises(RunError, match=rf"run\.json is damaged: {name}"):
        outcomes_of(run)


@pytest.mark.parametrize("missing", ["n", "n0", "alpha"])
def test_settings_that_a_recomputation_misses(tmp_path, missing):
    procedure = {key: value for key, value in CONFIG["procedure"].items() if key != missing}
    run = load_run(written(tmp_path / "run", {**CONFIG, "procedure": procedure}))
    with pytest.raises(RunError, match=f"does not record its {missing}"):
        outcomes_of(run, n=10)


@pytest.mark.parametrize("sessions", [None, 7, "text", [7], [{"source": 7}], [{"source": {"training": [{}]}}]])
def test_strange_sessions_tell_no_training(tmp_path, sessions):
    path = written(tmp_path / "run")
    sealed(path, sessions=sessions)
    assert load_result(path).origin().recipe is None


def test_sessions_that_cannot_be_continued(tmp_path):
    path = written(tmp_path / "run")
    sealed(path, sessions=7)
    with pytest.raises(RunError, match="its sessions are not a list"), open_run(path, CONFIG, {}):
        pass


@pytest.mark.parametrize(
    "row",
    [
        {"index": "0"},
        {"index": None},
        {"index": 2**70},
        {"index": 0, "radius": "far"},
        {"index": 0, "counts": 7},
        {"index": 0, "counts": [[1]]},
        {"index": 0, "checkpoints": [None]},
        {"index": 0, "decisions": [{"radius": 0.5}]},
    ],
)
def test_pending_rows_of_other_types(tmp_path, row):
    path = written(tmp_path / "run", index=5)
    head = pending._sealed(f'{{"rows": 2, "config": "{"0" * 64}"}}'.encode())
    good, bad = (pending._sealed(json.dumps(each).encode()) for each in ({**ROW, "index": 1}, row))
    (path / "pending.jsonl").write_bytes(head + good + bad)
    with pytest.raises(RunError, match=r"pending\.jsonl is damaged in line 3"):
        load_run(path).table()


@pytest.mark.parametrize("head", [{"rows": "2", "config": "0"}, {"rows": 1.5, "config": "0"}, {"rows": 1}])
def test_a_count_of_pending_rows_that_is_none(tmp_path, head):
    path = written(tmp_path / "run")
    (path / "pending.jsonl").write_bytes(pending._sealed(json.dumps(head).encode()))
    with pytest.raises(RunError, match=r"pending\.jsonl is damaged in line 1"):
        load_run(path).table()


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"index": [0], "radius": ["far"]}, "its column radius holds string and not double"),
        ({"index": ["0"]}, "its column index holds string and not int64"),
        ({"index": [0], "counts": [7]}, "its column counts holds int64"),
        ({"index": [0], "clean_predict": ["1"]}, "its column clean_predict holds string and not int64"),
        ({"radius": [0.5]}, "it has no column index"),
    ],
)
def test_parts_with_columns_of_other_types(tmp_path, columns, problem):
    write_part(tmp_path / "part-000000.parquet", pa.table(columns), None)
    with pytest.raises(RunError, match=rf"part-000000\.parquet is damaged \({problem}"):
        read_part(tmp_path / "part-000000.parquet")


def test_parts_with_two_columns_of_a_name(tmp_path):
    table = pa.table([[0], [1], [2]], names=["index", "label", "label"])
    write_part(tmp_path / "part-000000.parquet", table, None)
    with pytest.raises(RunError, match="it has two columns label"):
        read_part(tmp_path / "part-000000.parquet")


def test_parts_with_gaps_in_lists(tmp_path):
    table = pa.Table.from_pylist([{**ROW, "checkpoints": [None]}], schema=SCHEMA)
    write_part(tmp_path / "part-000000.parquet", table, None)
    with pytest.raises(RunError, match="its column checkpoints has gaps"):
        read_part(tmp_path / "part-000000.parquet")


def test_numbers_of_another_width_are_read(tmp_path):
    table = pa.table({"index": pa.array([0], pa.int32()), "radius": pa.array([0.5], pa.float32())})
    write_part(tmp_path / "part-000000.parquet", table, None)
    assert read_part(tmp_path / "part-000000.parquet").schema.types == [pa.int64(), pa.float64()]


def test_parts_that_do_not_fit_together(tmp_path):
    path = written(tmp_path / "run")
    for number, value in ((1, "text"), (2, 0.5)):
        write_part(path / f"part-{number:06d}.parquet", pa.table({"index": [number], "mine": [value]}), None)
    with pytest.raises(RunError, match="do not fit together"):
        load_run(path).table()


@pytest.mark.parametrize(
    "changes",
    [{"label": None}, {"label": -1}, {"n": None}, {"n": 0}, {"radius": None}, {"predict": None}, {"counts": [None, 1]}],
)
def test_rows_that_keep_no_votes_for_a_selector(tmp_path, changes):
    run, other = load_run(written(tmp_path / "a", **changes)), load_run(written(tmp_path / "b"))
    for use in (lambda: certifiable(run), lambda: best_of([run, other])):
        with pytest.raises(RunError, match=r"has no votes|part-000000\.parquet is damaged"):
            use()


@pytest.mark.parametrize(
    ("changes", "index"),
    [
        ({"seed": -1}, 0),
        ({"seed": 2**64}, 0),
        ({"seed": None}, 0),
        ({}, -1),
        ({"stream": {}}, 0),
        ({"stream": 7}, 0),
        ({"experts": [7]}, 0),
    ],
)
def test_noisy_copies_that_cannot_be_drawn_again(tmp_path, changes, index):
    config = {**CONFIG, "stream": {"block": BLOCK, "device": "cpu"}, **changes}
    run = load_run(written(tmp_path / "run", config, index=index))
    with pytest.raises(RunError):
        noisy_copies(run, run.rows()[0], torch.zeros(2, 2), 3)


def test_a_row_with_a_seed_that_no_noise_has(tmp_path):
    with pytest.raises(RunError, match="has a negative seed"):
        load_run(written(tmp_path / "run", seed=-1)).rows()


@pytest.mark.parametrize("stream", [{"block": BLOCK}, {"block": BLOCK, "device": "moon"}])
def test_noisy_copies_of_no_device(tmp_path, stream):
    run = load_run(written(tmp_path / "run", {**CONFIG, "stream": stream}))
    with pytest.raises(UsageError, match="which is missing here"):
        noisy_copies(run, run.rows()[0], torch.zeros(2, 2), 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": {"shard": [1, 1]}, "data": {"size": 1}},
        {"inputs": {"every": 1, "start": 0, "stop": None, "shard": [1, 1], "x": 1}, "data": {"size": 1}},
        {"inputs": {"every": 1, "start": 0, "stop": None, "shard": [1, 1]}},
    ],
)
def test_shards_that_do_not_tell_their_inputs(tmp_path, changes):
    path = written(tmp_path / "run", {**CONFIG, **changes})
    with pytest.raises(RunError, match="does not record its inputs"):
        merge_runs([path], tmp_path / "united")


@pytest.mark.parametrize("sessions", [7, [7], None])
def test_shards_with_strange_sessions_are_united(tmp_path, sessions):
    inputs = {"every": 1, "start": 0, "stop": None, "shard": [1, 1]}
    path = written(tmp_path / "run", {**CONFIG, "inputs": inputs, "data": {"size": 1}})
    sealed(path, sessions=sessions)
    assert len(merge_runs([path], tmp_path / "united").table()) == 1


def test_shards_and_inputs_beyond_number(tmp_path):
    inputs = {"every": 1, "start": 0, "stop": None}
    many = written(tmp_path / "a", {**CONFIG, "inputs": {**inputs, "shard": [1, 2**62]}, "data": {"size": 1}})
    with pytest.raises(RunError, match=rf"missing shards: 2/{2**62}, .*, …;"):
        merge_runs([many], tmp_path / "united")
    large = written(tmp_path / "b", {**CONFIG, "inputs": {**inputs, "shard": [1, 1]}, "data": {"size": 2**62}})
    with pytest.raises(RunError, match=rf"{2**62 - 1} of its {2**62} inputs are missing \(1, 2, 3, 4, 5, …\)"):
        merge_runs([large], tmp_path / "united")


def test_radii_beyond_all_measure(tmp_path):
    """Which no table has room for."""
    with pytest.raises(RunError, match="input 0 has a radius that is not a number from 0 to 1e15"):
        outcomes_of(load_run(written(tmp_path / "run", radius=1e308)))
    run = load_run(written(tmp_path / "long", radius=9e14))
    assert len(default_radii([outcomes_of(run)])) <= 12


def test_clean_answers_without_labels(tmp_path):
    table = pa.table({"index": [0], "predict": [1], "radius": [0.5], "clean_predict": [1]})
    run = write_run(tmp_path / "run", table, {"kind": "imported certification"}, {})
    with pytest.raises(UsageError, match="has no label"):
        outcomes_of(run)
