"""``smoothcert aces``: the published tables to the digit, pictures, and one sentence for what does not fit."""

from __future__ import annotations

import csv

import pytest

from smoothcert.report.aces import load_components
from smoothcert.report.tables import aces as aces_tables

FOLDER = "aces-cifar10-consistency-025"
RADII = "0:2:0.25"

# Horváth et al. (2022), the CONSISTENCY rows of Tables 8 and 9 (CIFAR-10, σ = 0.25): θ, NAC, ACR, then certified
# accuracy, and certified selection rate, at 0, 0.25, …, 2. At r = 0 the printed rates also counted selectors that
# abstain (38.4, 50.8, 60.0, 71.4, 84.2, 91.8, 97.2 at θ = 0.1, …, 0.7); the certified ones stand here.
TABLE_8 = """
0.00 99.0 0.000 99.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0
0.10 97.6 0.254 97.6 31.8 27.0 20.6 0.0 0.0 0.0 0.0 0.0
0.20 96.0 0.323 95.8 39.2 33.0 28.0 0.0 0.0 0.0 0.0 0.0
0.30 93.8 0.383 93.8 46.4 39.8 33.0 0.0 0.0 0.0 0.0 0.0
0.40 90.2 0.437 90.4 53.4 46.4 37.4 0.0 0.0 0.0 0.0 0.0
0.50 85.0 0.485 85.0 59.0 50.0 41.4 0.0 0.0 0.0 0.0 0.0
0.60 80.6 0.517 80.4 64.2 55.0 44.0 0.0 0.0 0.0 0.0 0.0
0.70 78.0 0.530 77.4 65.8 56.0 44.4 0.0 0.0 0.0 0.0 0.0
0.80 76.4 0.535 75.8 66.4 57.0 44.6 0.0 0.0 0.0 0.0 0.0
0.90 76.0 0.535 75.2 66.4 57.0 44.6 0.0 0.0 0.0 0.0 0.0
1.00 76.0 0.535 75.2 66.4 57.0 44.6 0.0 0.0 0.0 0.0 0.0
"""
TABLE_9 = """
0.00 99.0 0.000 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0 0.0
0.10 97.6 0.254 37.4 32.6 27.4 20.8 0.0 0.0 0.0 0.0 0.0
0.20 96.0 0.323 49.4 40.6 33.8 28.4 0.0 0.0 0.0 0.0 0.0
0.30 93.8 0.383 59.2 49.8 41.4 33.8 0.0 0.0 0.0 0.0 0.0
0.40 90.2 0.437 70.6 62.0 53.0 44.0 0.0 0.0 0.0 0.0 0.0
0.50 85.0 0.485 82.4 73.8 62.4 54.2 0.0 0.0 0.0 0.0 0.0
0.60 80.6 0.517 91.6 85.4 77.4 68.0 0.0 0.0 0.0 0.0 0.0
0.70 78.0 0.530 97.0 93.8 89.6 83.0 0.0 0.0 0.0 0.0 0.0
0.80 76.4 0.535 99.4 99.2 97.0 93.6 0.0 0.0 0.0 0.0 0.0
0.90 76.0 0.535 100.0 99.8 99.2 98.6 0.0 0.0 0.0 0.0 0.0
1.00 76.0 0.535 100.0 100.0 100.0 100.0 0.0 0.0 0.0 0.0 0.0
"""
PRINTED_AT_0 = {"0.10": 38.4, "0.20": 50.8, "0.30": 60.0, "0.40": 71.4, "0.50": 84.2, "0.60": 91.8, "0.70": 97.2}


def lines(text):
    return [line.split() for line in text.strip().splitlines()]


@pytest.fixture
def command(run):
    return lambda *arguments: run("aces", *arguments)


@pytest.fixture
def published(shared_data):
    folder = shared_data / FOLDER
    return ["--runs", folder / "cifar10_consistency_025", "--core", folder / "lanet_core_prediction"]


def refusal(result):
    code, out, err = result
    assert (code, out) == (2, ""), result
    assert err.startswith("smoothcert: ")
    assert err.count("\n") == 1
    return err


def test_published_tables_as_csv(command, published):
    code, out, _ = command(*published, "--radii", RADII, "--format", "csv")
    assert code == 0
    header, *rows = csv.reader(out.splitlines())
    assert header[:5] == ["name", "theta", "nac", "acr", "accuracy 0.00"]
    assert header[12:14] == ["accuracy 2.00", "selection 0.00"]
    assert [row[1:13] for row in rows] == lines(TABLE_8)
    assert [row[1:4] + row[13:-1] for row in rows] == lines(TABLE_9)
    assert {row[-1] for row in rows} == {"500"}


def test_published_tables_as_markdown(command, published):
    code, out, _ = command(*published, "--radii", RADII)
    assert code == 0
    first, second = out.split("Certified selection rate (%) at unknown-norm radius")
    assert first.startswith("Certified accuracy (%) at unknown-norm radius\n")
    for part, table in ((first, TABLE_8), (second, TABLE_9)):
        shown = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| cifar10")]
        assert [cells[1:] for cells in shown] == lines(table)


def test_the_printed_rates_at_radius_0_count_abstentions(published):
    parts = load_components(published[1], published[3])
    certified = {cells[0]: float(cells[3]) for cells in lines(TABLE_9)}
    for theta, printed in PRINTED_AT_0.items():
        abstained = (parts.choice[parts.position(float(theta))] == -1).sum()
        assert certified[theta] + abstained / 5 == pytest.approx(printed)


def test_thresholds_radii_and_formats(command, published, tmp_path):
    code, out, _ = command(*published, "--theta", "0.1,0.33", "--radii", "0:1:0.5", "--format", "latex")
    assert code == 0
    assert out.count(r"\begin{tabular}{lrrrrrr}") == out.count(r"\end{tabular}") == 2
    assert r"cifar10\_consistency\_025 & 0.10 & 97.6 & 0.254 & 97.6 & 27.0 & 0.0 \\" in out
    assert r"cifar10\_consistency\_025 & 0.10 & 97.6 & 0.254 & 37.4 & 27.4 & 0.0 \\" in out
    assert out.count("& 0.33 &") == 2
    code, out, _ = command(*published, "--theta", 0.1, "--radii", "0:1:0.25", "-f", "csv", "-o", tmp_path / "table.csv")
    assert (code, out) == (0, "")
    (row,) = (tmp_path / "table.csv").read_text().splitlines()[1:]
    assert row.startswith("cifar10_consistency_025,0.10,97.6,0.254,97.6,31.8,27.0,20.6,0.0,37.4")


def test_terminal_shows_every_digit(published):
    from rich.console import Console

    table = aces_tables.aces_table([load_components(published[1], published[3])], [0.1, 0.2], [0, 0.25, 0.5, 0.75, 1])
    console = Console(width=90, record=True)
    console.print(aces_tables.rich_aces(table))
    words = console.export_text().split()
    assert "…" not in "".join(words)
    for cells in [*lines(TABLE_8)[1:3], *lines(TABLE_9)[1:3]]:
        assert set(cells) <= set(words)


def test_pictures(command, published, tmp_path):
    single = f"{published[1]}_certification"
    pictures = [tmp_path / f"{name}.png" for name in ("pareto", "selection", "entropy")]
    options = ["--plot", pictures[0], "--plot-selection", pictures[1], "--plot-entropy", pictures[2]]
    code, _, err = command(*published, *options, "--plot-radius", 0.5, "--single", single, "--theta", 0.3)
    assert code == 0
    for picture in pictures:
        assert f"Picture: {picture}" in err
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_refusals(command, published, tmp_path, shared_data):
    runs, core = published[:2], published[2:]
    certification = f"{published[1]}_certification"
    cases = [
        (
            [*published, "--theta", "0.1,1.5"],
            "theta '0.1,1.5' must read like 0.1,0.3 or 0:1:0.1, with numbers in [0, 1]",
        ),
        ([*published, "--theta", "0.105"], "no threshold 0.105; the nearest is 0.1"),
        ([*published, "--radii", "1:0:0.5"], "must increase"),
        ([*published, "--format", "htm"], "unknown table format 'htm'"),
        ([*runs], "give its prediction log with --core"),
        ([*runs, "--core", certification], "holds a certification"),
        ([*core, "--runs", tmp_path / "none"], "neither the run folder"),
        ([*published, "--single", certification], "name the figure with --plot"),
        ([*published, "--plot-radius", 1], "name it with --plot"),
        ([*published, "--plot-entropy", tmp_path / "a.png"], "give --plot-radius"),
        ([*published, *runs, "--plot-selection", tmp_path / "a.png"], "give --runs once"),
        ([*published, "--plot", tmp_path / "a.gif"], "a picture is saved as"),
        (
            [*published, "--plot", tmp_path / "a.png", "--single", shared_data / "cohen-cifar10-050" / "sigma_0.50"],
            "has no column 'unperturbed predict'",
        ),
        ([], "--runs"),
    ]
    for arguments, words in cases:
        assert words in refusal(command(*arguments))
    assert list(tmp_path.iterdir()) == []


def test_help_teaches_by_example(command):
    code, out, _ = command("--help")
    assert code == 0
    assert "smoothcert aces --runs" in out.split("Example", 1)[1]


def test_a_threshold_that_is_not_stored_is_named(command, published):
    assert "have no threshold 0.333; the nearest is 0.33." in refusal(command(*published, "--theta", "0.333"))


def test_equal_names_are_told_apart(command, published, shared_data, tmp_path):
    paths = []
    for parent in ("a", "b"):
        paths.append(tmp_path / parent / "x")
        paths[-1].parent.mkdir()
        for file in (shared_data / FOLDER).glob("cifar10_consistency_025_*"):
            if file.name.endswith(("certification", "0.00", "1.00")):
                ending = file.name.removeprefix("cifar10_consistency_025")
                (paths[-1].parent / f"x{ending}").symlink_to(file)
    runs = [option for path in paths for option in ("--runs", path)]
    code, out, err = command(*runs, *published[2:], "--theta", "1", "--radii", "0", "--format", "csv")
    assert code == 0, err
    assert [line.split(",")[0] for line in out.splitlines()] == ["name", "a/x", "b/x"]
