"""Tables: the published digits, and text that each format can hold."""

from __future__ import annotations

import csv
import doctest
import io

import numpy as np
import pytest
from rich.console import Console

from smoothcert.report.metrics import acr_text, average_certified_radius, clean_accuracy, default_radii, parse_radii
from smoothcert.report.tables import accuracy as tables
from smoothcert.report.tables.accuracy import accuracy_table, render, rich_table
from smoothcert.store import Outcomes
from smoothcert.store.logs import read_log
from smoothcert.types import Norm, UsageError


def outcomes(name="run", radii=(0.5, 0.2), abstentions=1, norm=Norm.L2):
    n, m = len(radii), abstentions
    return Outcomes(name, range(n + m), [1] * (n + m), [1] * n + [-1] * m, [*radii, *[0.0] * m], norm)


def test_examples():
    assert doctest.testmod(tables).failed == 0


@pytest.mark.parametrize(
    ("log", "radii", "digits"),
    [
        ("cohen-cifar10-050/sigma_0.50", "0:1.75:0.25", "0.538 65.2 54.6 41.4 32.0 23.4 15.2 9.4 5.2"),
        # Table 4 of the CAT-RS paper at sigma = 0.50: Gaussian, Consistency, CAT-RS.
        (
            "catrs-fmnist-050/cohen.tsv",
            "0:2.5:0.25",
            "1.056 86.2 80.7 73.2 64.8 55.5 45.6 35.0 24.1 0.0 0.0 0.0",
        ),
        (
            "catrs-fmnist-050/consistency.tsv",
            "0:2.5:0.25",
            "1.212 84.9 81.1 76.4 71.2 65.2 57.8 49.3 39.2 0.0 0.0 0.0",
        ),
        (
            "catrs-fmnist-050/cat-rs.tsv",
            "0:2.5:0.25",
            "1.274 82.5 79.6 76.2 72.4 67.8 62.5 56.7 49.0 0.0 0.0 0.0",
        ),
    ],
)
def test_published_rows(shared_data, log, radii, digits):
    run = Outcomes.from_table("run", read_log(shared_data / log).table)
    table = accuracy_table([run], parse_radii(radii))
    (row,) = list(csv.reader(render(table, "csv").splitlines()))[1:]
    assert row[1:-2] == digits.split()
    assert row[-1] == str(len(run))


# The CAT-RS columns of Tables 24 and 25 of the same paper: ACR and certified accuracy at radius 0. Stripe has 9205 of
# 10 000 right and Fog 3575: ties go to even.
MNIST_C = """
brightness,0.319,64.5
canny_edges,0.519,73.8
dotted_line,0.910,99.1
fog,0.112,35.8
glass_blur,0.758,97.3
impulse_noise,0.876,98.9
motion_blur,0.704,95.1
rotate,0.835,94.1
scale,0.714,91.6
shear,0.902,98.3
shot_noise,0.907,99.0
spatter,0.902,98.9
stripe,0.759,92.0
translate,0.366,51.4
zigzag,0.815,95.2
"""


def test_published_corruptions(shared_data):
    logs = [read_log(path) for path in sorted((shared_data / "catrs-mnistc-025").iterdir())]
    assert len(logs) == 16
    # The paper averages over the corruptions, without the clean set.
    runs = [Outcomes.from_table(log.path.stem, log.table) for log in logs if log.path.stem != "identity"]
    rows = [line.split(",")[:3] for line in render(accuracy_table(runs, [0]), "csv").splitlines()[1:]]
    assert [",".join(row) for row in rows] == MNIST_C.split()
    assert acr_text(np.mean([average_certified_radius(run) for run in runs])) == "0.693"
    assert f"{100 * np.mean([clean_accuracy(run) for run in runs]):.1f}" == "85.7"


def test_markdown():
    table = accuracy_table([outcomes(r"a|b_c#1 \*"), outcomes("two\nlines", [0.3], 0)], [0, 0.25, 0.125])
    assert render(table, "md", marks=False) == (
        "| run | ACR | 0.000 | 0.250 | 0.125 | abstain % | inputs |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        r"| a\|b\_c\#1 \\\* | 0.233 | 66.7 | 33.3 | 66.7 | 33.3 | 3 |" + "\n"
        "| two lines | 0.300 | 100.0 | 100.0 | 100.0 | 0.0 | 1 |\n"
        "\nNorm ℓ2.\n"
        "\nGuarantee and arithmetic unknown (not recorded).\n"
        "\nFor each run, the expected number of false statements is unknown (alpha not recorded).\n"
    )


def test_latex():
    table = accuracy_table([outcomes(r"[50%] a_b & #1 ~^|\x{}$*")], [0, 0.25])
    assert render(table, "latex") == "\n".join(
        [
            r"\begin{tabular}{lrrrrr}",
            r"\toprule",
            r" &  & \multicolumn{2}{c}{Certified accuracy (\%) at $\ell_2$ radius} &  &  \\",
            r"\cmidrule(lr){3-4}",
            r"run & ACR & 0.00 & 0.25 & abstain \% & inputs \\",
            r"\midrule",
            r"{[}50\%] a\_b \& \#1 \textasciitilde{}\textasciicircum{}\textbar{}\textbackslash{}x\{\}\${*}"
            r" & 0.233 & 66.7 & 33.3 & 33.3 & 3 \\",
            r"\bottomrule",
            r"\end{tabular}",
            r"\par\smallskip{\footnotesize Norm $\ell_2$.\par}",
            r"\par\smallskip{\footnotesize Guarantee and arithmetic unknown (not recorded).\par}",
            r"\par\smallskip{\footnotesize The expected number of false statements is unknown "
            r"(alpha not recorded).\par}",
            "",
        ]
    )
    assert r"$\ell_\infty$" in render(accuracy_table([outcomes(norm=Norm.LINF)]), "latex")


def test_csv_keeps_names_whole():
    table = accuracy_table([outcomes('a, "b" | 5%', norm=None)], [0])
    header, row = csv.reader(render(table, "csv").splitlines())
    assert header == ["name", "acr", "0.00", "abstention", "inputs"]
    assert row == ['a, "b" | 5%', "0.233", "66.7", "33.3", "3"]


def test_intervals_round_outwards():
    # Wilson at 95 %: 326 of 500 is [0.60923, 0.69245], all of 500 is [0.99238, 1].
    table = accuracy_table([outcomes("run", [0.3] * 326, 174), outcomes("all", [0.3] * 500, 0)], [0])
    markdown = render(table, "md", intervals=True, marks=False)
    assert "| 0.300 [0.300, 0.300] |" in markdown
    assert "| 65.2 [60.9, 69.3] |" in markdown
    assert "| 100.0 [99.2, 100.0] |" in markdown
    assert "| 65.2 [60.9, 69.3]" not in render(table, "md")
    known = "norm,guarantee,arithmetic,runtime,model,seed,alpha,expected false"
    assert render(table, "csv", intervals=True).splitlines()[:2] == [
        f"name,acr,acr low,acr high,0.00,0.00 low,0.00 high,abstention,inputs,{known}",
        "run,0.196,0.182,0.208,65.2,60.9,69.3,34.8,500,l2,,,,,,,",
    ]


@pytest.mark.parametrize("intervals", [False, True])
def test_terminal_table_shows_every_digit(intervals):
    table = accuracy_table([outcomes("[bold]a-long-name-for-a-run", [1.9, 0.6])])
    console = Console(width=80 if not intervals else 200, record=True, file=io.StringIO())
    console.print(rich_table(table, intervals=intervals))
    shown = console.export_text()
    assert "Certified accuracy (%) at ℓ2 radius" in shown
    assert "[bold]" in shown
    assert "…" not in shown
    numbers = shown.split()
    for cell in render(table, "md", intervals=intervals).splitlines()[2].split(" | ")[1:-1]:
        assert set(cell.split()) <= set(numbers)


@pytest.mark.parametrize(
    ("largest", "radii"),
    [
        (0.0, (0.0,)),
        (0.5, (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)),
        (0.8, (0.0, 0.25, 0.5, 0.75)),
        (2.99, tuple(i / 4 for i in range(12))),
        (3.0, tuple(i / 2 for i in range(7))),
        (6.9, tuple(float(i) for i in range(7))),
        (5e-324, (0.0,)),
        (9e14, None),
    ],
)
def test_default_radii(largest, radii):
    found = default_radii([outcomes(radii=[0.0]), outcomes(radii=[largest])])
    assert found == radii if radii is not None else len(found) <= 12


def test_every_norm_but_l2_is_named_in_the_headings():
    for norm, text in ((Norm.L1, "ℓ1"), (Norm.LINF, "ℓ∞")):
        table = accuracy_table([outcomes(norm=norm)], [0, 0.25])
        assert f"| {text} radius 0.00 | {text} radius 0.25 |" in render(table, "md").splitlines()[0]
        header = render(table, "csv", intervals=True).splitlines()[0]
        name = norm.value
        assert header.startswith(
            f"name,acr,acr low,acr high,{name} radius 0.00,{name} radius 0.25,{name} radius 0.00 low"
        )
        console = Console(width=100, record=True, file=io.StringIO())
        console.print(rich_table(table))
        assert f"at {text} radius" in console.export_text()


def test_numbers_of_pixels_are_whole():
    pixels = outcomes(radii=[3.0, 1.0], norm=Norm.L0)
    assert default_radii([pixels]) == (0.0, 1.0, 2.0, 3.0)
    assert default_radii([outcomes(radii=[23.0], norm=Norm.L0)]) == tuple(2.0 * i for i in range(12))
    header, row = render(accuracy_table([pixels]), "csv").splitlines()
    assert header.startswith("name,acr,l0 radius 0,l0 radius 1,l0 radius 2,l0 radius 3,abstention,inputs,norm,")
    assert row.startswith("run,1.333,66.7,66.7,33.3,33.3,33.3,3,l0,")
    assert "| ℓ0 radius 0.5 |" in render(accuracy_table([pixels], [0.5]), "md")
    assert r"$\ell_0$ radius" in render(accuracy_table([pixels]), "latex")


def test_refusals():
    with pytest.raises(UsageError, match="no runs"):
        accuracy_table([])
    with pytest.raises(UsageError, match="at least one radius"):
        accuracy_table([outcomes()], [])
    with pytest.raises(UsageError, match=r"one \(ℓ2\) and two \(ℓ1\) have radii in different norms"):
        accuracy_table([outcomes("one"), outcomes("two", norm=Norm.L1)])
    with pytest.raises(UsageError, match="unknown table format 'latx'; did you mean 'latex'"):
        render(accuracy_table([outcomes()]), "latx")
