"""The report page says what its radii are worth: metadata per run, warnings where runs differ, errors to expect."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest

from smoothcert.report.page.html import report_html
from smoothcert.store import load_run, write_run
from smoothcert.store.logs import write_log


def groups(*paths, **options):
    page = report_html(paths, **options)
    return json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)[1])["groups"]


def cells(group):
    """The cells of the overview as text, by run and column."""
    keys = [column["key"] for column in group["table"]["columns"]]
    return {row[0][0]: dict(zip(keys, (text for text, _ in row), strict=True)) for row in group["table"]["rows"]}


@pytest.fixture
def copy(digits_runs, tmp_path):
    """Make a copy of a run with one value in some columns, or without them."""

    def make(name, *, drop=(), **columns):
        run = load_run(digits_runs / "small")
        table = run.table().drop(list(drop))
        for column, value in columns.items():
            values = value if isinstance(value, list) else [value] * len(table)
            made = pa.array(values, table.schema.field(column).type)
            table = table.set_column(table.column_names.index(column), column, made)
        return write_run(tmp_path / name, table, run.config, {}).path

    return make


def test_every_run_shows_its_metadata(copy):
    full = copy("full", arithmetic="exact", runtime="eager", model="ab" * 32, seed=17)
    old = copy("old", drop=["seed", "arithmetic", "offset", "runtime", "model", "input"])
    (group,) = groups(full, old)
    shown = cells(group)
    names = ("norm", "guarantee", "arithmetic", "runtime", "model", "seed", "alpha", "errors")
    assert [shown["full"][name] for name in names] == [
        "ℓ2", "global", "exact", "eager", "abababab", "17", "0.001", "0.125",
    ]  # fmt: skip
    assert [shown["old"][name] for name in names] == [
        "ℓ2", "global", "unknown", "unknown", "unknown", "0", "0.001", "0.125",
    ]  # fmt: skip
    said = " ".join(group["notes"])
    assert "The runs differ in arithmetic (exact: full; unknown: old)" in said
    assert "The runs differ in runtime (eager: full; unknown: old)" in said
    assert "For each run, of the 125 statements at most 0.125 are expected to be false" in said
    assert [run["marker"] for run in group["runs"]] == [" [exact]", " [unknown]"]


def test_a_run_of_mixed_rows_is_noticed(copy):
    (group,) = groups(copy("mixed", runtime=["eager"] * 60 + ["compiled"] * 65))
    assert cells(group)["mixed"]["runtime"] == "compiled+eager"
    assert "mixed holds rows of several runtimes: compiled+eager." in group["notes"]


def test_another_guarantee_is_not_ranked(copy):
    base = copy("base")
    weaker = copy("weaker", guarantee="pointwise", radius=[0.0] * 125)
    right = load_run(base).table()["label"].to_pylist()
    strong = copy("strong", radius=[0.9] * 125, predict=right)
    pointwise = copy("pointwise", guarantee="pointwise", radius=[5.0] * 125, predict=right)
    (group,) = groups(base, pointwise, radii=[0, 0.1])
    assert group["table"]["best"] == [[] for _ in group["table"]["columns"]]
    assert "the most of all" not in group["summary"]
    (group,) = groups(base, pointwise, strong, weaker, radii=[0, 0.1])
    assert group["table"]["best"][1] == [1, 2]  # the best of either kind
    assert [run["marker"] for run in group["runs"]] == [" [global]", " [pointwise]", " [global]", " [pointwise]"]


def test_unknown_norms_join_others_only_if_those_agree(copy, tmp_path):
    two, one = copy("two"), copy("one", norm="l1")
    write_log(tmp_path / "log", load_run(two).rows(), classic=True)
    (group,) = groups(two, tmp_path / "log")
    assert group["norm"] == "ℓ2"
    assert cells(group)["log"]["norm"] == "unknown"
    assert any("of log unknown (not recorded); shown as if in ℓ2" in note for note in group["notes"])
    assert group["runs"][1]["unknown"]
    apart = groups(two, tmp_path / "log", one)
    assert [(len(group["runs"]), group["norm"]) for group in apart] == [(1, "ℓ2"), (1, "unknown-norm"), (1, "ℓ1")]
    assert [group["title"].split(",")[0].split(":")[0] for group in apart] == ["ℓ2", "norm unknown", "ℓ1"]
    write_log(tmp_path / "l1.tsv", load_run(one).rows())
    logged, other = groups(tmp_path / "l1.tsv", two)
    assert (logged["norm"], other["norm"]) == ("ℓ1", "ℓ2")


def test_unknown_alpha_promises_nothing(copy, tmp_path):
    write_log(tmp_path / "log", load_run(copy("two")).rows(), classic=True)
    (group,) = groups(tmp_path / "log")
    assert "no perturbation" not in group["summary"]
    assert cells(group)["log"]["errors"] == "unknown"
    assert "The expected number of false statements is unknown (alpha not recorded)." in group["notes"]


def test_the_page_does_not_speak_of_certified_inputs_only(digits_runs):
    page = report_html([digits_runs])
    assert "each of these statements" not in page
    assert "before it is known which inputs get certified" in page
    assert "The best of several stored n, of several θ or of several runs is not a certificate at α" in page
    assert "The statements at one θ hold at α if that θ was chosen beforehand" in page
