"""Results on suites of corruptions: means, tables, pictures, and what cannot be compared."""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from smoothcert.report.corruptions import (
    ACR,
    SuiteResults,
    accuracy_at,
    check_alike,
    comparable,
    load_suite_results,
    suite_mean,
)
from smoothcert.report.figures.corruptions import severity_figure, type_figure
from smoothcert.report.figures.style import save_figure
from smoothcert.report.tables.corruptions import corruption_sheet
from smoothcert.report.tables.layout import render_sheet
from smoothcert.store import Outcomes, write_run
from smoothcert.types import Norm, UsageError


def outcomes(right: int, total: int = 8, radius: float = 0.5) -> Outcomes:
    """So many right answers, all at one radius."""
    predict = np.where(np.arange(total) < right, 5, 7)
    return Outcomes("set", np.arange(total), np.full(total, 5), predict, np.full(total, radius), Norm.L2)


def method(name: str, **rights: int) -> SuiteResults:
    """Right answers of 8 by set; ``fog_3`` is fog at severity 3."""
    places = {}
    for key, right in rights.items():
        kind, _, severity = key.partition("_")
        places[kind, int(severity) if severity else None] = outcomes(right)
    return SuiteResults(name, places)


def published(paper: str, table: int) -> dict[str, list[str]]:
    """A table of the paper by its first column, marks removed."""
    text = re.split(rf"^Table {table}\. ", paper, flags=re.MULTILINE)[1].split("\nTable ")[0]
    rows = [line.split("\t") for line in text.splitlines() if line.count("\t") == 7]
    return {name: [re.sub("</?u>", "", cell) for cell in cells] for name, *cells in rows[1:]}


def test_the_published_logs_give_the_published_tables(shared_data):
    paper = shared_data.parent / "papers" / "004_c4abfb847bae29f0.txt"
    if not paper.is_file():
        pytest.skip("the paper is not here")
    methods, notes = comparable(load_suite_results([shared_data / "catrs-mnistc-025"]))
    assert notes == []
    sheet = corruption_sheet(methods, style="catrs")
    for group, number in (("ACR", 24), ("accuracy at 0 (%)", 25)):
        ours = [(line.cells[0].text, line.cells[1].text) for line in sheet.lines if line.group == group]
        theirs = published(paper.read_text(encoding="utf-8"), number)
        assert len(theirs) == 16
        assert ours == [(name, cells[-1]) for name, cells in theirs.items()]
    assert ("mACR", "0.693") in [(line.cells[0].text, line.cells[1].text) for line in sheet.lines]
    assert ("mAcc", "85.7") in [(line.cells[0].text, line.cells[1].text) for line in sheet.lines]


def test_our_names_keep_the_clean_set_apart(shared_data):
    (logs,) = load_suite_results([shared_data / "catrs-mnistc-025"])
    assert len(logs.types) == 15
    lines = corruption_sheet([logs]).lines
    assert [line.cells[0].text for line in lines[:17]] == [*logs.types, "mACR", "identity"]
    assert [cell.text for cell in lines[16].cells] == ["identity", "0.933"]
    assert lines[-1].cells[1].text == "99.4"


def test_means_are_over_severities_first_and_never_over_the_clean_set():
    results = method("a", fog_1=8, fog_2=4, fog_3=0, snow_1=8, identity=8)
    assert suite_mean(results, accuracy_at(0), [("fog", level) for level in (1, 2, 3)]) == Fraction(1, 2)
    assert suite_mean(results, accuracy_at(0)) == Fraction(3, 4)  # not the mean of the four sets, 5/8
    assert suite_mean(results, ACR) == Fraction(3, 8)
    assert suite_mean(results, accuracy_at(0), [("fog", 1), ("snow", 1)]) == 1
    assert suite_mean(results, accuracy_at(0.5)) == Fraction(3, 4)
    assert suite_mean(results, accuracy_at(0.51)) == 0
    assert (results.types, results.severities) == (["fog", "snow"], [1, 2, 3])


def test_nothing_is_rounded_before_the_end():
    sets = {(kind, None): outcomes(right, total=10_000) for kind, right in zip("abc", (5004, 5004, 5004), strict=True)}
    sets["d", None] = outcomes(5009, total=10_000)
    sheet = corruption_sheet([SuiteResults("m", sets)])
    printed = [line.cells[1].text for line in sheet.lines if line.group == "accuracy at 0 (%)"]
    assert printed == ["50.0", "50.0", "50.0", "50.1", "50.1"]  # 50.0525; the mean of what is printed is 50.025
    half = SuiteResults("m", {("a", None): outcomes(3575, 10_000), ("b", None): outcomes(9205, 10_000)})
    printed = [line.cells[1].text for line in corruption_sheet([half]).lines if line.group == "accuracy at 0 (%)"]
    assert printed == ["35.8", "92.0", "63.9"]  # halves go to the even digit, as in the paper


def test_a_table_ranks_methods_within_each_line():
    methods = [
        method("a", fog_1=8, fog_2=2, snow_1=4, snow_2=4, identity=8),
        method("b", fog_1=6, fog_2=6, snow_1=1, snow_2=1, identity=8),
        method("c", fog_1=1, fog_2=1, snow_1=2, snow_2=2, identity=7),
    ]
    lines = render_sheet(corruption_sheet(methods, radii=[0.25]), "md").splitlines()
    assert lines[0] == "2 corruptions, 8 inputs each, ℓ2"
    assert lines[2:9] == [
        "| measure | type | a | b | c |",
        "| --- | --- | ---: | ---: | ---: |",
        "| ACR | fog | <ins>0.312</ins> | **0.375** | 0.062 |",
        "|  | snow | **0.250** | 0.062 | <ins>0.125</ins> |",
        "|  | mACR | **0.281** | <ins>0.219</ins> | 0.094 |",
        "|  | identity | **0.500** | **0.500** | <ins>0.438</ins> |",
        "| accuracy at 0.25 (%) | fog | <ins>62.5</ins> | **75.0** | 12.5 |",
    ]
    csv = render_sheet(corruption_sheet(methods, lines="severity"), "csv").splitlines()
    assert csv[:4] == [
        "measure,severity,a,b,c",
        "ACR,1,0.375,0.219,0.094",
        "ACR,2,0.188,0.219,0.094",
        "ACR,mACR,0.281,0.219,0.094",
    ]
    sets = render_sheet(corruption_sheet(methods[:1], lines="set", style="catrs"), "csv").splitlines()
    assert [line.split(",")[1] for line in sets[1:6]] == ["Snow-1", "Snow-2", "Fog-1", "Fog-2", "mACR"]
    assert [line.split(",")[2] for line in sets[1:6]] == ["0.250", "0.250", "0.500", "0.125", "0.281"]


def test_types_the_paper_does_not_have_come_last_in_its_style():
    results = method("a", own=1, fog=2, brightness=3)
    assert [line.cells[0].text for line in corruption_sheet([results], style="catrs").lines[:4]] == [
        "Bright",
        "Fog",
        "own",
        "mACR",
    ]


def test_only_what_all_methods_have_is_compared():
    a = method("a", fog=8, snow=0, identity=8)
    b = method("b", fog=4, frost=8)
    kept, notes = comparable([a, b])
    assert [list(results.outcomes) for results in kept] == [[("fog", None)]] * 2
    assert notes == [
        "a lacks frost: only sets that all methods have are compared.",
        "b lacks identity, snow: only sets that all methods have are compared.",
    ]
    assert [suite_mean(results, accuracy_at(0)) for results in kept] == [1, Fraction(1, 2)]
    with pytest.raises(UsageError, match="a and c share no corruption, so there is nothing to compare"):
        comparable([a, method("c", frost=8, identity=8)])
    other = SuiteResults("d", {("fog", None): dataclasses.replace(outcomes(3), norm=Norm.LINF)})
    with pytest.raises(UsageError, match="different norms"):
        comparable([a, other])


CONFIG = {
    "kind": "certification",
    "noise": {"name": "gaussian", "sigma": 0.25},
    "procedure": {"name": "cohen", "n": 1000},
    "inputs": {"every": 1},
    "model": {"name": "LeNet", "sha256": "abc"},
}


def write(folder, config=CONFIG, rows=4):
    table = pa.table({"index": range(rows), "label": [1] * rows, "predict": [1] * rows, "radius": [0.5] * rows})
    write_run(folder, table, config, {})


def test_folders_of_runs_and_logs(tmp_path, shared_data):
    write(tmp_path / "a" / "fog-1")
    write(tmp_path / "a" / "fog-2")
    write(tmp_path / "a" / "identity")
    (tmp_path / "a" / "table.md").write_text("no result")
    (tmp_path / "a" / "empty").mkdir()
    (results,) = load_suite_results([tmp_path / "a"])
    assert results.name == "a"
    assert list(results.outcomes) == [("fog", 1), ("fog", 2), ("identity", None)]
    (tmp_path / "b" / "a").mkdir(parents=True)
    (tmp_path / "b" / "a" / "fog-1.tsv").write_bytes((shared_data / "catrs-mnistc-025" / "fog.tsv").read_bytes())
    both = load_suite_results([tmp_path / "a", tmp_path / "b" / "a"])
    assert [one.name for one in both] == [f"{tmp_path.name}/a", "b/a"]
    assert ACR.text(suite_mean(both[1], ACR)) == "0.112"
    write(tmp_path / "b" / "a" / "fog-1")
    with pytest.raises(UsageError, match="holds two results for fog-1; keep one"):
        load_suite_results([tmp_path / "b" / "a"])


def test_folders_without_results(tmp_path):
    with pytest.raises(UsageError, match=r"the folder .*nowhere does not exist; give one"):
        load_suite_results([tmp_path / "nowhere"])
    write(tmp_path / "identity")
    with pytest.raises(UsageError, match="holds no result for any corruption; make some by `smoothcert corruptions"):
        load_suite_results([tmp_path])


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("noise", {"name": "gaussian", "sigma": 0.5}, "noise.sigma is 0.25 in fog-1 and 0.5 in fog-3"),
        ("procedure", {"name": "cohen", "n": 2000}, "procedure.n is 1000 in fog-1 and 2000 in fog-3"),
        ("procedure", {"name": "cohen"}, "procedure.n is 1000 in fog-1 and not set in fog-3"),
        ("inputs", {"every": 2}, "inputs.every is 1 in fog-1 and 2 in fog-3"),
        ("model", {"name": "LeNet", "sha256": "xyz"}, "model.sha256 is abc in fog-1 and xyz in fog-3"),
    ],
)
def test_runs_of_one_folder_must_be_made_alike(tmp_path, key, value, said):
    write(tmp_path / "fog-1")
    write(tmp_path / "fog-3", CONFIG | {key: value})
    with pytest.raises(UsageError, match=f"different settings: {re.escape(said)}; certify them with the same settings"):
        load_suite_results([tmp_path])
    check_alike(tmp_path / "none", CONFIG)
    with pytest.raises(UsageError, match=re.escape(said.split(" is ")[0])):
        check_alike(tmp_path, CONFIG)


def test_a_reader_is_told_of_other_settings_and_unfinished_sets(tmp_path):
    write(tmp_path / "a" / "fog-1")
    write(tmp_path / "a" / "fog-3", rows=3)
    for name in ("fog-1", "fog-3"):
        write(tmp_path / "b" / name, CONFIG | {"noise": {"name": "gaussian", "sigma": 0.5}, "model": {"sha256": "x"}})
    _, notes = comparable(load_suite_results([tmp_path / "a", tmp_path / "b"]))
    assert notes == [
        "a has 4 inputs in some sets and fewer in fog-3 (3): finish these first.",
        "a and b differ in noise.sigma (0.25, 0.5).",
    ]


def test_a_reader_is_told_of_missing_severities():
    _, notes = comparable([method("a", fog_1=8, fog_3=8, snow_1=8)])
    assert notes == ["a has no snow-3: the means are over other severities for some types."]
    assert comparable([method("a", fog_1=8, snow_1=8, identity=8)])[1] == []


def test_what_a_table_refuses():
    results = method("a", fog=8)
    with pytest.raises(UsageError, match="unknown kind of line 'types'; did you mean 'type'"):
        corruption_sheet([results], lines="types")
    with pytest.raises(UsageError, match="unknown style 'cat'"):
        corruption_sheet([results], style="cat")
    with pytest.raises(UsageError, match="no severities to show"):
        corruption_sheet([results], lines="severity")
    with pytest.raises(UsageError, match="no severities to draw"):
        severity_figure([results])


def test_pictures_show_what_the_tables_say(tmp_path):
    methods = [
        method("$a", fog_1=8, fog_5=2, snow_1=4, snow_5=4, identity=8),
        method("b", fog_1=6, fog_5=6, snow_1=1, snow_5=1, identity=8),
    ]
    figure = type_figure(methods, title="Suite")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fog", "snow", "mACR", "identity"]
    assert axes.lines[0].get_xdata() == pytest.approx([0.3125, 0.25, 0.28125, 0.5])
    assert axes.lines[1].get_xdata() == pytest.approx([0.375, 0.0625, 0.21875, 0.5])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [r"\$a (mACR 0.281)", "b (mACR 0.219)"]
    save_figure(figure, tmp_path / "types.png")
    figure = severity_figure(methods)
    fog, snow = figure.axes
    assert [fog.get_title(), snow.get_title()] == ["fog", "snow"]
    assert fog.lines[0].get_ydata() == pytest.approx([0.5, 0.125])
    assert fog.lines[1].get_ydata() == pytest.approx([0.5, 0.5])  # the clean set
    assert fog.get_ylim() == snow.get_ylim()
    save_figure(figure, tmp_path / "severity.svg")
    assert (tmp_path / "types.png").stat().st_size > 1000
