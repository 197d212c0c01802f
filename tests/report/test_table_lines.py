"""Lines of tables: seeds together, noise scales in groups, and the columns of the papers."""

from __future__ import annotations

import csv
import io
import statistics

import numpy as np
import pytest
from rich.console import Console

from smoothcert import Cohen, Gaussian, Smoothed, Uniform, certify_dataset
from smoothcert.report.metrics import average_certified_radius, parse_radii
from smoothcert.report.recompute import load_outcomes, outcomes_of
from smoothcert.report.tables.accuracy import TABLE_STYLES, accuracy_table, gather_seeds, render, rich_table
from smoothcert.store import Origin, Outcomes, Result, load_run, read_log
from smoothcert.types import UsageError


def made(name, radii, *, scale=None, seeds=(0,), alike=None, noise="gaussian", recipe=None, natural=None, index=None):
    """A run of right answers with these radii; ``alike`` None means that it is like no other."""
    count = len(radii)
    origin = Origin(noise=noise, scale=scale, seeds=seeds, alike=alike or name, recipe=recipe)
    index = range(count) if index is None else index
    return Outcomes(name, index, [1] * count, [1] * count, radii, origin=origin, natural=natural)


def rows(text):
    return list(csv.reader(io.StringIO(text)))


def first_cells(markdown, count=2):
    lines = [line for line in markdown.splitlines()[2:] if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1 : 1 + count]] for line in lines]


def test_seeds_become_mean_and_standard_deviation():
    radii = [[0.5, 0.3, 0.0], [0.6, 0.1, 0.3], [0.2, 0.3, 0.3]]
    runs = [made(f"cat-seed-{i}", radius, seeds=(i,), alike="cat") for i, radius in enumerate(radii)]
    table = accuracy_table([*runs, made("other", [0.5, 0.5, 0.5])], [0, 0.25])
    assert [row.name for row in table.rows] == ["cat (3 seeds)", "other"]
    acr = [sum(radius) / 3 for radius in radii]
    shares = [100 * sum(r >= 0.25 for r in radius) / 3 for radius in radii]
    markdown = render(table, "md", marks=False)
    assert f"| {statistics.mean(acr):.4f} ± {statistics.stdev(acr):.4f} | 100.00 ± 0.00 |" in markdown
    assert f"| {statistics.mean(shares):.2f} ± {statistics.stdev(shares):.2f} | 0.00 ± 0.00 | 3 |" in markdown
    assert "| other | 0.500 | 100.0 | 100.0 | 0.0 | 3 |" in markdown
    header, cat, other = rows(render(table, "csv"))
    assert ",".join(header) == "name,acr,acr sd,0.00,0.25,0.00 sd,0.25 sd,abstention,abstention sd,seeds,inputs"
    assert cat[1:3] == [f"{statistics.mean(acr):.4f}", f"{statistics.stdev(acr):.4f}"]
    assert cat[4] == f"{statistics.mean(shares):.2f}"
    assert cat[-2:] == ["3", "3"]
    assert other == ["other", "0.500", "", "100.0", "100.0", "", "", "0.0", "", "1", "3"]


def test_published_spread():
    """Table 12 of the CAT-RS paper prints 0.9329 ± 0.0001: four decimals, and the sample standard deviation."""
    acr = [0.9328, 0.9330, 0.9329, 0.9328, 0.9330]
    table = accuracy_table([made(f"c{i}", [value], seeds=(i,), alike="c") for i, value in enumerate(acr)], [0])
    assert "| 0.9329 ± 0.0001 |" in render(table, "md")


def test_each_shows_all():
    runs = [made(f"cat-{i}", [0.5], seeds=(i,), alike="cat") for i in range(3)]
    assert [row.name for row in accuracy_table(runs, [0], each=True).rows] == ["cat-0", "cat-1", "cat-2"]


def test_what_is_not_a_matter_of_seeds_stays_apart():
    twice = [made("best", [0.5], seeds=(0, 7), alike="x"), made("last", [0.6], seeds=(0, 7), alike="x")]
    others = [made("a", [0.5], seeds=(0,), alike="y"), made("b", [0.5], seeds=(1,), alike="y", index=[4])]
    logs = [Outcomes(name, [0], [1], [1], [0.5]) for name in ("log", "log2")]
    assert [line.name for line in gather_seeds([*twice, *others, *logs])] == ["best", "last", "a", "b", "log", "log2"]


@pytest.mark.parametrize(
    ("names", "recipe", "shown"),
    [
        (["cat-seed-0", "cat-seed-1"], None, "cat (2 seeds)"),
        (["cat_s1", "cat_s2"], None, "cat (2 seeds)"),
        (["0", "1"], None, "0 (2 seeds)"),
        (["x", "y"], "mnist-catrs-0.50", "mnist-catrs-0.50 (2 seeds)"),
    ],
)
def test_names_of_seeds(names, recipe, shown):
    runs = [made(name, [0.5], seeds=(i,), alike="c", recipe=recipe) for i, name in enumerate(names)]
    assert [line.name for line in gather_seeds(runs)] == [shown]


def test_equal_names_of_seeds_are_told_apart():
    def seeds(first, alike, scale=None, recipe="cat"):
        names = (f"{first}-seed-{i}" for i in range(2))
        noise = None if scale is None else "gaussian"
        return [
            made(name, [0.5], seeds=(i,), alike=alike, recipe=recipe, noise=noise, scale=scale)
            for i, name in enumerate(names)
        ]

    def names(*runs):
        return [row.name for row in accuracy_table([*runs], [0]).rows]

    assert names(*seeds("n-100", "a"), *seeds("n-1000", "b")) == ["n-100 (2 seeds)", "n-1000 (2 seeds)"]
    assert names(*seeds("x", "a"), *seeds("x", "b", recipe="dog")) == ["cat (2 seeds)", "dog (2 seeds)"]
    assert names(*seeds("x", "a"), made("cat", [0.5])) == ["x (2 seeds)", "cat"]
    # The groups of a table tell equal names at different noise scales apart.
    table = accuracy_table([*seeds("x", "a", 0.25), *seeds("y", "b", 0.5)], [0])
    assert [(row.group, row.name) for row in table.rows] == [("0.25", "cat (2 seeds)"), ("0.50", "cat (2 seeds)")]


def test_noise_scales_are_groups():
    runs = [
        made("c", [1.0], scale=1.0),
        made("a", [0.3], scale=0.25),
        made("d", [0.8], scale=1.0),
        made("b", [0.4], scale=0.25),
        made("e", [0.1], scale=0.125),
    ]
    table = accuracy_table(runs, [0, 0.25])
    shown = render(table, "md")
    assert shown.startswith("| σ | run | ACR |")
    assert first_cells(shown, 3) == [
        ["0.125", "e", "0.100"],
        ["0.25", "a", "<ins>0.300</ins>"],
        ["", "b", "**0.400**"],
        ["1.00", "c", "**1.000**"],
        ["", "d", "<ins>0.800</ins>"],
    ]
    assert rows(render(table, "csv"))[0][:2] == ["sigma", "name"]
    assert render(table, "latex").count(r"\midrule") == 3
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(rich_table(table))
    assert console.export_text().split().count("1.00") == 1


@pytest.mark.parametrize(
    "runs",
    [
        [made("a", [0.3], scale=0.25), made("b", [0.4], scale=0.25)],  # one scale
        [made("a", [0.3], scale=0.25), made("b", [0.4], scale=0.5)],  # nobody to be grouped with
        [made("a", [0.3], scale=0.25), made("b", [0.4], scale=0.5), made("c", [0.4])],  # a scale that is not known
        [made("a", [0.3], scale=0.25), made("b", [0.4], scale=0.5), made("c", [0.4], scale=0.5, noise="uniform")],
        [made("a", [0.3], scale=0.25), made("b", [0.4], scale=0.5), Outcomes("log", [0], [1], [1], [0.5])],
    ],
)
def test_no_groups(runs):
    table = accuracy_table(runs, [0])
    assert table.group_heading == ""
    assert [row.name for row in table.rows] == [run.name for run in runs]
    assert render(table, "md").startswith("| run | ACR |")


def test_marks_can_be_left_out():
    runs = [made("a", [0.3]), made("b", [0.4])]
    assert "**0.400**" in render(accuracy_table(runs, [0]), "md")
    for format, marks in (("md", ("**", "<ins>")), ("latex", ("textbf", "underline")), ("html", ("<b>", "<u>"))):
        shown = render(accuracy_table(runs, [0]), format, marks=False)
        assert not any(mark in shown for mark in marks)
    assert "**" not in render(accuracy_table(runs[:1], [0]), "md")


# Table 4 of the CAT-RS paper, σ = 0.50, as printed: Gaussian, Consistency and CAT-RS.
CATRS = """
1.056 86.2 80.7 73.2 64.8 55.5 45.6 35.0 24.1 0.0 0.0 0.0
1.212 84.9 81.1 76.4 71.2 65.2 57.8 49.3 39.2 0.0 0.0 0.0
1.274 82.5 79.6 76.2 72.4 67.8 62.5 56.7 49.0 0.0 0.0 0.0
"""


def test_catrs_style(shared_data):
    names = ("cohen", "consistency", "cat-rs")
    logs = [shared_data / "catrs-fmnist-050" / f"{name}.tsv" for name in names]
    table = accuracy_table(load_outcomes(logs), parse_radii("0:2.5:0.25"))
    lines = render(table, "md", style="catrs", marks=False).splitlines()
    assert lines[0] == "| Methods | ACR | " + " | ".join(f"{i / 4:.2f}" for i in range(11)) + " |"
    assert [line.strip("| ").split(" | ")[1:] for line in lines[2:5]] == [
        line.split() for line in CATRS.split("\n")[1:-1]
    ]
    latex = render(table, "latex", style="catrs").splitlines()
    assert latex[4] == "Methods & ACR & " + " & ".join(f"{i / 4:.2f}" for i in range(11)) + r" \\"
    assert latex[latex.index(r"\bottomrule") - 1] == (
        r"cat-rs & \textbf{1.274} & 82.5 & 79.6 & \underline{76.2} & \textbf{72.4} & \textbf{67.8} & \textbf{62.5} & "
        r"\textbf{56.7} & \textbf{49.0} & 0.0 & 0.0 & 0.0 \\"
    )


def test_aces_style_shows_natural_accuracy(shared_data):
    folder = shared_data / "aces-cifar10-consistency-025"
    table = accuracy_table(
        load_outcomes([folder / "cifar10_consistency_025_certification"]), parse_radii("0:0.75:0.25")
    )
    # The last CONSISTENCY row of Table 8 of the ACES paper: at θ = 1 the certifier alone answers.
    lines = render(table, "md", style="aces").splitlines()
    assert lines[0] == "| Training | NAC | ACR | 0.00 | 0.25 | 0.50 | 0.75 |"
    assert lines[2].endswith("| 76.0 | 0.535 | 75.2 | 66.4 | 57.0 | 44.6 |")
    unknown = accuracy_table(load_outcomes([shared_data / "cohen-cifar10-050" / "sigma_0.50"]), [0])
    assert "| – | 0.538 | 65.2 |" in render(unknown, "md", style="aces")


def test_aces_style_averages_natural_accuracy():
    runs = [made(f"c-{i}", [0.5] * 4, seeds=(i,), alike="c", natural=n) for i, n in enumerate((3, 4))]
    assert "| 87.50 ± 17.68 |" in render(accuracy_table(runs, [0]), "md", style="aces")


def test_cohen_style_has_a_line_per_scale():
    runs = [made("a", [0.3, 0.2, 0.0], scale=0.25), made("b", [0.6, 0.1, 0.4], scale=0.5)]
    shown = render(accuracy_table(runs, [0, 0.25]), "md", style="cohen")
    assert shown.splitlines()[0] == "| σ | 0.00 | 0.25 |"
    assert first_cells(shown, 3) == [["σ = 0.25", "1.00", "<ins>0.33</ins>"], ["σ = 0.50", "1.00", "**0.67**"]]
    same = accuracy_table([*runs, made("c", [0.1, 0.2, 0.0], scale=0.25)], [0])
    assert [cells[0] for cells in first_cells(render(same, "md", style="cohen"))] == ["a", "c", "b"]


@pytest.mark.parametrize("style", TABLE_STYLES)
@pytest.mark.parametrize("format", ["md", "latex", "csv", "html"])
def test_every_style_in_every_format(style, format):
    runs = [made("a", [0.3], scale=0.25), made("b", [0.4], scale=0.25), made("c", [0.4], scale=0.5)]
    shown = render(accuracy_table(runs, [0, 0.25]), format, style=style, intervals=True)
    assert "0.25" in shown
    assert all(name in shown for name in "abc")


def test_unknown_style():
    with pytest.raises(UsageError, match="unknown table style 'catrr'; did you mean 'catrs'"):
        render(accuracy_table([made("a", [0.3])]), "md", style="catrr")


def test_logs_and_runs_side_by_side(shared_data):
    log = read_log(shared_data / "cohen-cifar10-050" / "sigma_0.50")
    table = accuracy_table([Outcomes.from_table("log", log.table), made("a", [0.3] * 500, scale=0.5)], [0])
    assert [row.name for row in table.rows] == ["log", "a"]


@pytest.fixture
def certified(threes, tmp_path):
    inputs = [(np.array([0.5 + x, 0.5 + y], dtype=np.float32), 0) for x, y in [(0.2, 0.0), (0.3, 0.1), (0.1, 0.0)]]

    def certify(name, noise, seed=0, source=None, n=100):
        folder = tmp_path / name
        return certify_dataset(
            Smoothed(threes, noise), inputs, Cohen(n=n), run=folder, seed=seed, source=source, progress=False
        )

    return certify


def training(recipe, seed, settings="abc"):
    return {"training": [{"recipe": recipe, "method": {"name": "catrs"}, "seed": seed, "settings": settings}]}


def test_origins_of_runs(certified):
    for noise, scale in ((Gaussian(0.25), 0.25), (Uniform(1.5), 1.5)):
        run = certified(noise.name, noise)
        origin = Result(run.name, run).origin()
        assert (origin.noise, origin.scale, origin.n, origin.alpha) == (noise.name, scale, 100, 0.001)
        assert origin.seeds == (0,)
    assert Result(run.name, run).origin(n=10).n == 10


def test_runs_of_two_noise_seeds_are_one_line(certified):
    runs = [certified(f"seed-{i}", Gaussian(0.25), seed=i) for i in range(2)]
    runs += [certified("more", Gaussian(0.25), seed=9, n=1_000), certified("wider", Gaussian(0.5))]
    outcomes = [outcomes_of(run) for run in runs]
    assert [len(line.runs) for line in gather_seeds(outcomes)] == [2, 1, 1]
    assert [len(line.runs) for line in gather_seeds(load_outcomes([run.path for run in runs[:3]], n=100))] == [3]


def test_runs_of_two_training_seeds_are_one_line(certified):
    runs = [certified(f"run-{i}", Gaussian(0.25), source=training("mnist-catrs", i)) for i in range(2)]
    runs.append(certified("longer", Gaussian(0.25), source=training("mnist-catrs", 3, "other settings")))
    lines = gather_seeds([outcomes_of(load_run(run.path)) for run in runs])
    assert [line.name for line in lines] == ["mnist-catrs (2 seeds)", "longer"]
    acr = [average_certified_radius(run) for run in lines[0].runs]
    assert acr[0] == acr[1] > 0
