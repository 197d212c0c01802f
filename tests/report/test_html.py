"""The data of the report page: published numbers, curves that never overstate, groups, images, and what is refused."""

from __future__ import annotations

import base64
import io
import json
import re
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from smoothcert import data
from smoothcert.report.metrics import certified_accuracy, certified_counts, default_radii
from smoothcert.report.page.groups import groups
from smoothcert.report.page.html import embedded_json, report_html
from smoothcert.report.page.images import group_images
from smoothcert.report.page.payload import MOST_STEPS, curve_grid, floored, votes_payload
from smoothcert.report.recompute import load_outcomes
from smoothcert.report.tables.accuracy import accuracy_table, render
from smoothcert.store import Outcomes, Result, find_results, load_run, write_run
from smoothcert.types import Norm, RunError, UsageError

LOG = "idx\tlabel\tpredict\tradius\tcorrect\ttime\n"


def payload(page):
    return json.loads(re.search(r'id="report-data">(.*?)</script>', page, re.DOTALL)[1])


def sheets(page):
    return re.findall(r'<script type="text/plain" id="sheet-\d+-\d+">(.*?)</script>', page)


def digits(recorded=None):
    return data.load("digits", split="test")


def log(path, rows):
    lines = [f"{i}\t{label}\t{predict}\t{radius}\t{int(label == predict)}\t1.5\n" for i, label, predict, radius in rows]
    path.write_text(LOG + "".join(lines))
    return path


def test_published_certified_accuracy(shared_data):
    page = report_html([shared_data / "cohen-cifar10-050"], radii=[0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75])
    (group,) = payload(page)["groups"]
    (row,) = group["table"]["rows"]
    shown = [text for text, _ in row]
    assert shown[1:10] == ["0.538", "65.2", "54.6", "41.4", "32.0", "23.4", "15.2", "9.4", "5.2"]
    assert "--data" in group["imageNote"] or "without images" in group["imageNote"]


def test_published_thresholds_of_aces(shared_data):
    folder = shared_data / "aces-cifar10-consistency-025"
    paths = [folder / "cifar10_consistency_025"]
    page = report_html(paths, radii=[0, 0.25, 0.5, 0.75], core=folder / "lanet_core_prediction")
    aces = payload(page)["groups"][0]["aces"]
    (curve,) = aces["curves"]
    at = curve["theta"].index("0.30")  # Horváth et al. (2022), Tables 8 and 9
    assert (curve["naturalText"][at], curve["acrText"][at]) == ("93.8", "0.383")
    assert curve["certified"][at] == ["93.8", "46.4", "39.8", "33.0"]
    assert curve["selected"][at] == ["59.2", "49.8", "41.4", "33.8"]
    assert len(curve["theta"]) == 101
    assert [point["natural"] for point in aces["points"]] == [76.0]


@given(st.lists(st.floats(0, 50), min_size=1), st.sampled_from([0, 4, 6]))
def test_radii_round_down_and_count_the_same(radii, decimals):
    radius, unit = np.array(radii), 10.0**decimals
    lower = floored(radius, decimals)
    assert (lower / unit <= radius).all()
    assert ((lower + 1) / unit > radius).all()


def test_curves_never_overstate():
    random = np.random.default_rng(0)
    size = 3 * MOST_STEPS
    runs = [
        Outcomes(
            name, np.arange(size), np.zeros(size, int), random.integers(0, 2, size), random.exponential(scale, size)
        )
        for name, scale in (("a", 0.3), ("b", 0.8))
    ]
    grid = curve_grid(runs, [0, 0.25], [0.5, None], 4) / 1e4
    assert len(grid) < MOST_STEPS + 10
    assert {0.0, 0.25, 0.5} <= set(grid.tolist())
    for run in runs:
        drawn = certified_accuracy(run, grid)
        assert drawn[-1] == 0
        for r in random.uniform(0, grid[-1], 500):
            at = np.searchsorted(grid, r)  # the line holds this accuracy since the radius before
            assert drawn[at] <= certified_accuracy(run, r)[0]


def test_a_curve_of_few_radii_is_exact(tmp_path):
    path = log(tmp_path / "sigma", [(0, 1, 1, 0.5), (1, 1, 1, 0.25), (2, 1, 0, 0.75), (3, 1, -1, 0.0)])
    (group,) = payload(report_html([path], radii=[0, 0.25]))["groups"]
    (run,) = group["runs"]
    assert group["grid"] == [0, 2500, 5000, 5001]
    assert run["accuracy"] == [50, 50, 25, 0]
    assert run["accuracyText"] == ["50.0", "50.0", "25.0", "0.0"]
    assert run["radius"] == [5000, 2500, 7500, 0]
    assert run["limit"] is None
    assert "votes" not in run


def test_numbers_of_runs(digits_runs):
    (group,) = payload(report_html([digits_runs], radii=[0, 0.1]))["groups"]
    table = group["table"]
    keys = [column["key"] for column in table["columns"]]
    for run, row in zip(group["runs"], table["rows"], strict=True):
        stored = load_run(digits_runs / run["name"]).table()
        cells = dict(zip(keys, (text for text, _ in row), strict=True))
        right = np.equal(stored["predict"], stored["label"])
        assert cells["r0"] == f"{100 * right.mean():.1f}"
        assert cells["acr"] == f"{(stored['radius'].to_numpy() * right).mean():.3f}"
        assert (cells["samples"], cells["n"], cells["alpha"]) == ("300", "200", "0.001")
        assert cells["guarantee"] == ("routed" if run["name"] == "aces" else "global")
        assert run["radius"] == np.floor(stored["radius"].to_numpy() * 1e4).astype(int).tolist()
    small = next(run for run in group["runs"] if run["name"] == "small")
    assert small["limit"] == int(1e4 * max(load_run(digits_runs / "small").table()["radius"].to_pylist()))
    assert ["noise.sigma", "0.1"] in small["config"]
    assert any("differ in guarantee" in note and "routed: aces" in note for note in group["notes"])
    points = {point["name"] for point in group["aces"]["points"]}
    assert "aces, certifier alone" in points
    assert len(points) == 3


def test_the_summary_promises_no_more_than_the_guarantee(tmp_path, digits_runs):
    table, config = load_run(digits_runs / "small").table(), load_run(digits_runs / "small").config
    pointwise = pa.array(["pointwise"] * len(table))
    changed = table.set_column(table.column_names.index("guarantee"), "guarantee", pointwise)
    path = write_run(tmp_path / "chosen", changed, config, {}).path
    (strong,) = payload(report_html([digits_runs / "small"]))["groups"]
    (weak,) = payload(report_html([path]))["groups"]
    assert "no perturbation of ℓ2 length up to" in strong["summary"]
    assert strong["summary"].endswith(
        "Of its 125 statements, one for each input, at most 0.125 are expected to be false."
    )
    assert "no perturbation" not in weak["summary"]
    assert "the guarantee is explained below" in weak["summary"]
    (both,) = payload(report_html([digits_runs / "small", path]))["groups"]
    assert "and no run more" not in both["summary"]  # another guarantee, so nothing is ranked


def test_radii_of_the_overview():
    def radii(largest, norm=Norm.L2):
        return default_radii([Outcomes("run", [0], [5], [5], [largest], norm)])

    assert radii(1.1) == (0, 0.25, 0.5, 0.75, 1)
    assert radii(0.39) == (0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35)
    assert radii(0.0021, Norm.LINF) == (0, 0.0005, 0.001, 0.0015, 0.002)
    assert radii(3, Norm.L0) == (0, 1, 2, 3)
    assert radii(0.0) == (0,)


def test_votes_are_the_ten_highest():
    counts = [[0, 5, 0, 95], [*range(1, 13), 0]]
    found = votes_payload(pa.table({"counts": counts, "n": [100, 80]}))
    assert found["kept"] == [2, 10]
    assert found["classes"] == [3, 1, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2]
    assert found["counts"] == [95, 5, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3]
    assert found["n"] == [100, 80]


@given(st.text())
def test_embedded_json_cannot_leave_its_element(text):
    embedded = embedded_json({"name": text + "</script><!--\u2028&"})
    assert not set("<>&\u2028\u2029") & set(embedded)
    assert json.loads(embedded)["name"] == text + "</script><!--\u2028&"
    embedded.encode()


def test_a_title_is_neither_markup_nor_a_place(tmp_path):
    page = report_html([log(tmp_path / "a", [(0, 1, 1, 0.5)])], title="</title>{{data}}<script>")
    assert "<title>&lt;/title&gt;{{data}}&lt;script&gt;</title>" in page
    assert page.count('id="report-data"') == 1
    assert payload(page)["title"] == "</title>{{data}}<script>"


def test_runs_over_other_inputs_are_compared_where_they_meet(tmp_path):
    paths = [
        log(tmp_path / "all", [(i, 3, 3, 0.5) for i in range(10)]),
        log(tmp_path / "even", [(i, 3, 3, 0.25 * (i > 4)) for i in range(0, 10, 2)]),
        log(tmp_path / "other-labels", [(i, 4, 4, 0.5) for i in range(10)]),
    ]
    shown = groups(find_results(paths))
    assert [[result.name for result in group.results] for group in shown] == [["all", "even"], ["other-labels"]]
    assert shown[0].index.tolist() == [0, 2, 4, 6, 8]
    assert shown[0].notes == [
        "all is compared over 5 of its 10 inputs, those that all runs here share; the other 5 are left out."
    ]
    accuracy = payload(report_html(paths, radii=[0.2]))["groups"][0]["table"]["rows"]
    assert [row[2][0] for row in accuracy] == ["100.0", "40.0"]


def test_norms_are_shown_apart(tmp_path, digits_runs):
    source = find_results([digits_runs / "small"])[0]
    row = {"index": 0, "label": 1, "predict": 1, "radius": 0.00123456, "norm": "linf"}
    run = write_run(tmp_path / "tiny", pa.Table.from_pylist([row]), {"kind": "imported certification"}, {})
    other = Result("tiny", run)
    outcomes = other.outcomes
    assert [group.norm for group in groups([source, other])] == [Norm.L2, Norm.LINF]
    assert floored(outcomes.radius, 6).tolist() == [1234]


def test_equal_names_are_told_apart(tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        log(tmp_path / folder / "sigma", [(0, 1, 1, 0.5)])
    paths = [tmp_path / "x", tmp_path / "y" / "sigma", tmp_path / "y" / "sigma"]
    assert [source.name for source in find_results(paths)] == ["x/sigma", "y/sigma"]


def test_images_are_the_certified_ones(digits_runs):
    page = report_html([digits_runs / "small"], find_dataset=digits)
    group = payload(page)["groups"][0]
    images = group["images"]
    assert (images["width"], images["height"], images["grey"], images["lossy"]) == (8, 8, True, False)
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheets(page)[0]))).convert("L"))
    for place in (0, 21, 124):
        row, column = divmod(place, images["across"])
        tile = sheet[8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
        x, label = digits()[group["index"][place]]
        assert label == group["label"][place]
        assert np.array_equal(tile, np.rint(255 * x[0].numpy()))


def test_other_images_are_not_shown(digits_runs, tmp_path):
    x, y = digits().arrays()
    images = (x.numpy() * 255).astype(np.uint8)
    images[0] = 255 - images[0]
    np.savez(tmp_path / "other.npz", x=images, y=y.numpy())
    other = data.load(tmp_path / "other.npz")
    page = report_html([digits_runs / "small"], dataset=other)
    assert "not the one that small was certified on" in payload(page)["groups"][0]["imageNote"]
    assert payload(page)["groups"][0]["images"] is None
    assert sheets(page) == []


def test_images_of_logs_are_matched_by_labels(tmp_path):
    rows = [(index, digits()[index][1], 1, 0.5) for index in range(0, 40, 4)]
    good = payload(report_html([log(tmp_path / "good", rows)], dataset=digits()))["groups"][0]
    assert good["images"]["width"] == 8
    assert "by their labels only" in good["imageNote"]
    rows[-1] = (rows[-1][0], (rows[-1][1] + 1) % 10, 1, 0.5)
    bad = payload(report_html([log(tmp_path / "bad", rows)], dataset=digits()))["groups"][0]
    assert bad["images"] is None
    assert "labels" in bad["imageNote"]
    far = payload(report_html([log(tmp_path / "far", [(10**6, 1, 1, 0.5)])], dataset=digits()))["groups"][0]
    assert far["images"] is None


def test_images_keep_to_their_size_and_budget(tmp_path):
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (60, 3, 100, 50), dtype=np.uint8)
    np.savez(tmp_path / "large.npz", x=images, y=np.zeros(60, int), class_names=["<b>zero</b>"])
    large = data.load(tmp_path / "large.npz")
    path = log(tmp_path / "sigma", [(i, 0, 0, 0.5) for i in range(60)])
    (group,) = groups(find_results([path]))
    found = group_images(group, None, large, budget=10**7)
    assert (found.payload["height"], found.payload["width"], found.payload["smaller"]) == (64, 32, True)
    assert found.payload["lossy"] is False
    assert found.payload["classes"] == ["<b>zero</b>"]
    small = group_images(group, None, large, budget=150_000)
    assert small.payload["lossy"] is True
    assert sum(map(len, small.sheets)) * 3 / 4 < 160_000 < sum(map(len, found.sheets)) * 3 / 4


def damaged(tmp_path, digits_runs, **columns):
    table = load_run(digits_runs / "small").table()
    for name, change in columns.items():
        values = table[name].to_pylist()
        values[3] = change
        at = table.column_names.index(name)
        table = table.set_column(at, name, pa.array(values, type=table.schema.field(name).type))
    config = dict(load_run(digits_runs / "small").config)
    return write_run(tmp_path / "damaged", table, config, {}).path


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"radius": float("nan")}, "input 12 has a radius that is not a number from 0"),
        ({"radius": -0.5}, "input 12 has a radius that is not a number from 0"),
        ({"radius": None}, "input 12 has no radius"),
        ({"label": None}, "input 12 has no label"),
        ({"predict": 10}, "input 12 has a predict beyond the 10 classes"),
        ({"predict": -2}, "input 12 has a negative predict"),
        ({"predict": -1, "radius": 0.25}, "input 12 abstains, but has a radius above 0"),
        ({"index": 8}, "input 8 appears twice"),
        ({"index": None}, "row 4 has no index"),
        ({"norm": "l3"}, "input 12 has an invalid norm"),
        ({"guarantee": "all"}, "input 12 has an invalid guarantee"),
        ({"arithmetic": "double"}, "input 12 has an invalid arithmetic"),
        ({"counts": [201] + [0] * 9}, "input 12 has counts that are negative or more than its samples"),
        ({"counts": [-1] + [0] * 9}, "input 12 has counts that are negative"),
        ({"p_lower": float("inf")}, "input 12 has a p_lower that is not a number"),
    ],
)
def test_damaged_rows_are_named(tmp_path, digits_runs, columns, problem):
    path = damaged(tmp_path, digits_runs, **columns)
    with pytest.raises(RunError, match=problem) as error:
        report_html([path])
    assert str(path) in str(error.value)


def test_empty_and_missing(tmp_path, digits_runs):
    table, config = load_run(digits_runs / "small").table(), load_run(digits_runs / "small").config
    empty = write_run(tmp_path / "empty", table.slice(0, 0), config, {}).path
    with pytest.raises(RunError, match="empty holds no rows yet"):
        report_html([empty])
    with pytest.raises(UsageError, match="nowhere does not exist; give run folders"):
        report_html([tmp_path / "nowhere"])
    (tmp_path / "header").write_text(LOG)
    with pytest.raises(UsageError, match="header holds no rows"):
        report_html([tmp_path / "header"])
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UsageError, match="neither runs nor certification logs"):
        report_html([tmp_path / "nothing"])


def test_unknown_settings_are_shown_and_wrong_ones_refused(tmp_path, digits_runs):
    table = load_run(digits_runs / "small").table()
    config = {"kind": "certification", "procedure": {"name": "cohen"}, "x": float("nan")}
    with pytest.raises(RunError, match=r"wrong/run\.json is damaged: noise: "):
        report_html([write_run(tmp_path / "wrong", table, {**config, "noise": "none"}, {}).path])
    path = write_run(tmp_path / "strange", table, config, {}).path
    info = json.loads((path / "run.json").read_text())
    del info["sha256"]  # written by hand
    (path / "run.json").write_text(json.dumps({**info, "sessions": "none"}))
    (group,) = payload(report_html([path], find_dataset=digits))["groups"]
    assert group["runs"][0]["noise"] is None
    assert ["x", "NaN"] in group["runs"][0]["config"]
    assert group["images"] is None


def test_an_unknown_noise_is_not_drawn(tmp_path, digits_runs):
    table = load_run(digits_runs / "small").table()
    for number, name in enumerate(["laplace", None]):
        config = {"kind": "certification", "noise": {"name": name}, "procedure": {"name": "cohen"}}
        path = write_run(tmp_path / str(number), table, config, {}).path
        (group,) = payload(report_html([path]))["groups"]
        assert group["runs"][0]["noise"] is None


def test_certified_sets_of_the_page_agree_with_the_table(digits_runs):
    """The page compares whole numbers; they must select the inputs that the table counts."""
    (group,) = payload(report_html([digits_runs], radii=[0, 0.05, 0.1, 0.2]))["groups"]
    label = np.array(group["label"])
    for source, run in zip(find_results([digits_runs]), group["runs"], strict=True):
        for radius in group["table"]["radii"]:
            right = (np.array(run["predict"]) == label) & (np.array(run["radius"]) >= np.ceil(radius * 1e4 - 1e-6))
            assert right.sum() == certified_counts(source.outcomes, radius)[0]


class Elements(HTMLParser):
    """The elements of a page, the way a browser tells them apart, and the attributes that run code."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.handlers = Counter(), []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.handlers += [name for name, _ in attributes if name.startswith("on")]


def test_texts_of_files_become_no_elements(hostile_run, tmp_path, digits_runs):
    folder, dataset = hostile_run
    hostile = Elements(report_html([folder], title="</title><b>", dataset=dataset))
    harmless = Elements(report_html([digits_runs / "small"], title="t", dataset=data.load("digits", split="test")))
    assert hostile.tags == harmless.tags
    assert hostile.handlers == harmless.handlers == []


@pytest.mark.parametrize("style", ["plain", "catrs"])
def test_texts_of_files_become_no_elements_of_tables(hostile_run, style):
    folder, _ = hostile_run
    table = accuracy_table(load_outcomes([folder]), [0, 0.1], each=True)
    names = [row.name for row in table.rows]
    assert all("<script>" in name for name in names)
    elements = Elements(render(table, "html", style=style))
    assert not elements.tags.keys() & {"script", "img"}
    assert elements.handlers == []
    assert not re.search(r"(?<!\\)<(script|img)", render(table, "md", style=style))
    assert "<" not in render(table, "latex", style=style)
