"""The leaderboard: only votes count, and runs that cannot be compared are ranked separately."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pytest

from smoothcert.report.page.leaderboard import leaderboard_html
from smoothcert.report.recompute import recompute
from smoothcert.store import load_run, write_run
from smoothcert.store.logs import write_log
from smoothcert.types import UsageError


def data(*paths, **options):
    page = leaderboard_html(paths, **options)
    return json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)[1])


@pytest.fixture
def changed(digits_runs, tmp_path):
    """Make a copy of a run with other values in some columns, and other settings."""

    def make(name, *, noise=None, **columns):
        run = load_run(digits_runs / "small")
        table = run.table()
        for column, values in columns.items():
            made = pa.array(values, table.schema.field(column).type)
            table = table.set_column(table.column_names.index(column), column, made)
        config = run.config if noise is None else {**run.config, "noise": noise}
        return write_run(tmp_path / name, table, config, {}).path

    return make


def test_the_numbers_are_those_of_the_votes(digits_runs):
    (group,) = data(digits_runs / "small")["groups"]
    (run,) = group["runs"]
    outcomes = recompute(load_run(digits_runs / "small"))
    assert run["radii"] == sorted(outcomes.radius[outcomes.correct].tolist())
    assert (group["inputs"], run["n"], sum(run["bins"])) == (125, 200, 125)
    p_lower = load_run(digits_runs / "small").table()["p_lower"].to_numpy()
    above = [(p_lower <= 0.5).sum(), *np.histogram(p_lower, [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 1])[0]]
    assert run["bins"] == [int(count) for count in above]
    assert run["abstain"] == int((outcomes.predict == -1).sum())


def test_a_stored_radius_or_answer_does_not_count(digits_runs, changed):
    honest = data(digits_runs / "small")["groups"][0]["runs"][0]
    labels = load_run(digits_runs / "small").table()["label"].to_pylist()
    boast = changed("boast", radius=[9.0] * 125, predict=labels, p_lower=[0.9999] * 125, correct=[True] * 125)
    found = data(boast)["groups"][0]["runs"][0]
    assert {**found, "name": ""} == {**honest, "name": ""}


def test_every_run_is_computed_at_one_alpha(digits_runs):
    loose, strict = (data(digits_runs / "small", alpha=alpha)["groups"][0]["runs"][0] for alpha in (0.05, 1e-6))
    assert len(strict["radii"]) <= len(loose["radii"])
    assert max(strict["radii"]) < max(loose["radii"])
    assert data(digits_runs / "small", alpha=0.001)["notes"] == []
    (note,) = data(digits_runs / "small", alpha=0.05)["notes"]
    assert note.startswith("small was certified at another α")


def test_results_without_votes_are_left_out_and_named(digits_runs, tmp_path):
    write_log(tmp_path / "log.tsv", load_run(digits_runs / "small").rows())
    found = data(digits_runs / "small", tmp_path / "log.tsv")
    assert len(found["groups"][0]["runs"]) == 1
    assert found["notes"] == [f"Left out: {tmp_path / 'log.tsv'} is a log, which keeps no votes to recompute from."]
    with pytest.raises(UsageError, match="none of the 1 results has votes to rank"):
        leaderboard_html([tmp_path / "log.tsv"])


def test_other_inputs_are_ranked_separately(digits_runs, changed):
    labels = load_run(digits_runs / "small").table()["label"].to_pylist()
    other = changed("other", label=[(label + 1) % 10 for label in labels])
    assert [len(group["runs"]) for group in data(digits_runs / "small", other)["groups"]] == [1, 1]


def test_another_guarantee_is_ranked_separately(digits_runs, changed):
    pointwise = changed("pointwise", guarantee=["pointwise"] * 125)
    found = data(digits_runs / "small", pointwise)["groups"]
    assert [[run["name"] for run in group["runs"]] for group in found] == [["small"], ["pointwise"]]
    assert [group["title"].rpartition(", ")[2] for group in found] == ["global guarantee", "pointwise guarantee"]


@pytest.mark.parametrize("radius", [-0.1, float("nan"), float("inf")])
def test_an_invalid_radius(radius, digits_runs):
    with pytest.raises(UsageError, match="the radius must be a number, 0 or larger"):
        leaderboard_html([digits_runs / "small"], radius=radius)


def test_an_invalid_alpha(digits_runs):
    with pytest.raises(UsageError, match="alpha must lie strictly between 0 and 1"):
        leaderboard_html([digits_runs / "small"], alpha=1.0)


def test_the_command(digits_runs, tmp_path, run):
    status, _, err = run("leaderboard", digits_runs / "small", "-o", tmp_path / "page.html", "--radius", "0.1")
    assert status == 0
    assert "Leaderboard:" in err
    assert '"radius":0.1' in (tmp_path / "page.html").read_text()
    assert run("leaderboard", digits_runs / "small", "-o", tmp_path / "page.pdf")[0] == 2
