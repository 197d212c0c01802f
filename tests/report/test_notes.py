"""What tables and pictures say about runs: markers, ranks, errors to expect, and choices made afterwards."""

from __future__ import annotations

import csv
import doctest
import io
import re
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from smoothcert import Cohen, Gaussian, Smoothed, Uniform, certify_dataset, data, load_run
from smoothcert.report import notes as module
from smoothcert.report.aces import Components
from smoothcert.report.comparison import compare, verdict
from smoothcert.report.corruptions import SuiteResults
from smoothcert.report.figures.aces import pareto_figure
from smoothcert.report.figures.corruptions import type_figure
from smoothcert.report.figures.curves import certified_accuracy_figure
from smoothcert.report.figures.effects import effect_figure
from smoothcert.report.notes import CHOSEN, Subject, chosen, expected_errors, markers, notes, subjects, upwards
from smoothcert.report.recompute import load_outcomes
from smoothcert.report.tables.accuracy import accuracy_table, render, rich_table
from smoothcert.report.tables.aces import CHOSEN_THETA, aces_table, render_aces, rich_aces
from smoothcert.report.tables.comparison import render_comparison
from smoothcert.report.tables.corruptions import corruption_sheet
from smoothcert.report.tables.layout import render_sheet
from smoothcert.stats import lower_bound
from smoothcert.store import Outcomes
from smoothcert.store.logs import write_log
from smoothcert.store.outcomes import UNKNOWN, Metadata, Origin
from smoothcert.types import Norm, UsageError

GLOBAL, POINTWISE = (Metadata(guarantee=(kind,), arithmetic=("float",)) for kind in ("global", "pointwise"))
EXACT = replace(GLOBAL, arithmetic=("exact",))


def made(name, radius=0.5, metadata=GLOBAL, norm=Norm.L2, alpha=0.001, count=10):
    """A run of right answers at one radius."""
    return Outcomes(
        name, range(count), [1] * count, [1] * count, [radius] * count, norm, alpha=alpha, metadata=metadata
    )


def published(name, radius=0.5):
    """A log that tells neither norm nor anything else."""
    return made(name, radius, UNKNOWN, None, None)


def lines(markdown):
    return [line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith("|")][2:]


def shown(table, **look):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(rich_table(table, **look))
    return console.export_text()


def test_examples():
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([made("a"), made("b")], ["", ""]),
        ([published("a"), published("b")], ["", ""]),
        ([made("a", metadata=POINTWISE)], [" [pointwise]"]),
        ([made("a"), made("b", metadata=POINTWISE)], [" [global]", " [pointwise]"]),
        ([made("a"), made("b", metadata=EXACT)], [" [float]", " [exact]"]),
        ([made("a", metadata=POINTWISE), made("b", metadata=EXACT)], [" [pointwise, float]", " [global, exact]"]),
        ([made("a"), published("b")], [" [global, float]", " [unknown]"]),
        ([made("a"), made("b", norm=None)], ["", " [unknown]"]),
        ([made("a"), made("b", metadata=replace(GLOBAL, guarantee=("global", "pointwise")))],
         [" [global]", " [global+pointwise]"]),
        ([made("a", metadata=replace(GLOBAL, guarantee=("global", None)))], [" [global+unknown]"]),
    ],
)  # fmt: skip
def test_markers(runs, expected):
    assert markers(subjects(runs)) == expected


def test_a_pointwise_run_is_never_best_against_a_global_one():
    table = accuracy_table([made("a", 0.4), made("b", 0.9, POINTWISE), made("c", 0.3)], [0, 0.35])
    rows = lines(render(table, "md"))
    assert [row[1] for row in rows] == ["**0.400**", "0.900", "<ins>0.300</ins>"]
    assert rows[1][0] == r"b \[pointwise\]"
    assert [row[1] for row in lines(render(table, "md", marks=False))] == ["0.400", "0.900", "0.300"]
    two = accuracy_table([made("a", 0.4), made("b", 0.9, POINTWISE)], [0])
    for format, marks in (("md", r"\*\*|<ins>"), ("latex", "textbf|underline"), ("html", "<b>|<u>")):
        assert not re.search(marks, render(two, format)), format


def test_published_logs_are_ranked_among_themselves_only():
    logs = [published("p", 0.6), published("q", 0.7)]
    assert [row[1] for row in lines(render(accuracy_table(logs, [0]), "md"))] == ["<ins>0.600</ins>", "**0.700**"]
    both = accuracy_table([*logs, made("mine", 0.9)], [0])
    assert [row[1] for row in lines(render(both, "md"))] == ["<ins>0.600</ins>", "**0.700**", "0.900"]
    # Even a log that tells its guarantee is apart as long as its norm is unknown.
    unknown = accuracy_table([made("mine", 0.4), made("log", 0.9, norm=None)], [0])
    assert [row[1] for row in lines(render(unknown, "md"))] == ["0.400", "0.900"]


def test_runs_are_ranked_on_the_same_data_and_inputs_only():
    def about(data, name, radius, count=10):
        return replace(made(name, radius, count=count), origin=Origin(data=data))

    def ranked(*runs):
        table = accuracy_table(runs, [0])
        return [row[1] for row in lines(render(table, "md"))], " ".join(notes(table.rows, ranked=True))

    mnist = [about("mnist test", "a", 0.4), about("mnist test", "b", 0.3)]
    both = ["**0.400**", "<ins>0.300</ins>"]
    cells, said = ranked(*mnist)
    assert (cells, "Best and runner-up" in said) == (both, False)
    for other in (about("fmnist test", "c", 0.9), about("mnist train", "c", 0.9), about("mnist test", "c", 0.9, 9)):
        cells, said = ranked(*mnist, other)
        assert cells == [*both, "0.900"]
        assert "Best and runner-up are found among runs of the same inputs only." in said
        cells, said = ranked(*mnist, other, made("d", 0.8, POINTWISE))
        assert "among runs of the same norm, guarantee and inputs only." in said
    # A log does not record its data.
    cells, said = ranked(*mnist, made("log", 0.9))
    assert cells == ["<ins>0.400</ins>", "0.300", "**0.900**"]


def test_arithmetic_is_marked_but_ranked():
    table = accuracy_table([made("a", 0.4), made("b", 0.9, EXACT)], [0])
    assert lines(render(table, "md"))[1][:2] == [r"b \[exact\]", "**0.900**"]


@pytest.mark.parametrize("format", ["md", "latex", "html", "terminal"])
def test_every_format_says_it(format):
    runs = [made("a"), made("b", metadata=POINTWISE), published("c")]
    table = accuracy_table(runs, [0])
    text = shown(table) if format == "terminal" else render(table, format).replace("{[}", "[").replace("\\[", "[")
    text = " ".join(text.replace("\\]", "]").replace("\\", "").split())
    assert "a [global, float]" in text
    assert "b [pointwise, float]" in text
    assert "c [unknown]" in text
    assert "Norm, guarantee and arithmetic of c unknown (not recorded); shown as if in" in text
    assert "Pointwise: the noise was chosen for each input alone" in text
    assert "among runs of the same norm and guarantee only" in text
    assert "a and b: of the 10 statements at most 0.01 are expected to be false (alpha = 0.001 per input)" in text
    assert "c: the expected number of false statements is unknown (alpha not recorded)" in text


def test_csv_has_columns_instead():
    known = Metadata(("global",), ("exact",), ("compiled", "eager"), ("ab" * 32,), (7,))
    table = accuracy_table([made("a", metadata=known), published("b")], [0])
    for style in ("plain", "catrs"):
        header, first, second = csv.reader(io.StringIO(render(table, "csv", style=style)))
        assert header[-8:] == ["norm", "guarantee", "arithmetic", "runtime", "model", "seed", "alpha", "expected false"]
        assert first[-8:] == ["l2", "global", "exact", "compiled+eager", "ab" * 32, "7", "0.001", "0.01"]
        assert second[-8:] == [""] * 8
    # Nothing is known of published logs, so their tables are as they always were.
    assert render(accuracy_table([published("b")], [0]), "csv").splitlines()[0] == "name,acr,0.00,abstention,inputs"


def test_what_all_share_is_said_once():
    assert notes(subjects([made("a"), made("b")]))[0] == "Norm ℓ2, guarantee global, arithmetic float."
    assert notes(subjects([published("a")]))[0] == "Norm, guarantee and arithmetic unknown (not recorded)."


def test_runs_of_mixed_rows_are_noticed():
    mixed = Metadata(("global", "pointwise"), ("float",), ("compiled", "eager"), ("ab" * 32, "cd" * 32), (1, 2))
    said = " ".join(notes(subjects([made("m", metadata=mixed), made("b")])))
    assert "m holds rows of several guarantees: global+pointwise." in said
    assert "m holds rows of several runtimes: compiled+eager." in said
    assert "m holds rows of several classifiers: abababab+cdcdcdcd." in said
    assert "seeds" not in said  # those of shards differ
    assert "b holds" not in said


def test_runs_of_several_seeds_are_not_mixed():
    runs = (replace(made("s1"), metadata=replace(GLOBAL, seed=(1,))), made("s2", metadata=replace(GLOBAL, seed=(2,))))
    assert not any("holds rows" in note for note in notes([Subject("s (2 seeds)", runs)]))


@pytest.mark.parametrize(
    ("alpha", "count", "said"),
    [
        (0.001, 500, "Of the 500 statements at most 0.5 are expected to be false (alpha = 0.001 per input); all hold "
         "with probability at least 0.5."),
        (0.001, 10_000, "Of the 10,000 statements at most 10 are expected to be false (alpha = 0.001 per input)."),
        (0.05, 1, "Of 1 statement at most 0.05 is expected to be false (alpha = 0.05 per input)."),
        ([0.001, 0.002, 0.001], 3, "Of the 3 statements at most 0.004 are expected to be false (alpha up to 0.002 per "
         "input); all hold with probability at least 0.996."),
        (None, 500, "The expected number of false statements is unknown (alpha not recorded)."),
    ],
)  # fmt: skip
def test_errors_to_expect(alpha, count, said):
    assert expected_errors(subjects([made("a", alpha=alpha, count=count)])) == [said]


def test_errors_of_several_runs():
    same = expected_errors(subjects([made("a"), made("b")]))
    assert same == [
        "For each run, of the 10 statements at most 0.01 are expected to be false (alpha = 0.001 per input); all hold "
        "with probability at least 0.99."
    ]
    names = [made(name, count=20) for name in "bcdef"]
    first, second = expected_errors(subjects([made("a"), *names]))
    assert first.startswith("a: of the 10 statements")
    assert second.startswith("b, c, d, e and 1 more: of the 20 statements")


@given(st.fractions(Fraction(1, 10**12), 10**9))
def test_bounds_are_rounded_up(value):
    shown = Fraction(Decimal(upwards(value)))
    assert value <= shown <= value * Fraction(1011, 1000)


def test_choices_made_afterwards():
    late = made("a", metadata=replace(GLOBAL, chosen=("n = 100", "alpha = 0.01")))
    (sentence,) = chosen([late, made("b"), late])
    assert sentence == f"n = 100 and alpha = 0.01 chosen from stored votes: {CHOSEN}."
    assert chosen([made("b")]) == []
    for format in ("md", "latex", "html"):
        assert "before looking at the results" in render(accuracy_table([late], [0]), format)


class TestOtherViews:
    def test_compare_does_not_call_another_guarantee_better(self):
        found = compare(made("a", 0.4, count=50), made("b", 0.9, POINTWISE, count=50))
        assert verdict(found) == (
            "b has the larger radii: its ACR is larger by 0.500 (95 % interval 0.500 to 0.500, 50 inputs). The "
            "guarantees differ (a: global, b: pointwise), so equal radii do not mean the same."
        )
        assert "is better" not in render_comparison(found, "md")
        assert "is better" in verdict(compare(made("a", 0.4, count=50), made("b", 0.9, count=50)))

    def test_compare_says_what_is_unknown_or_differs(self):
        found = compare(made("a", count=12), published("b"))
        text = render_comparison(found, "md")
        assert "The runs differ in arithmetic (float and unknown)." in text
        assert "Norm, guarantee and arithmetic of b unknown (not recorded); shown as if in ℓ2." in text
        assert "a: of the 10 statements at most 0.01 are expected" in text  # of the inputs that both have
        assert "| ℓ2 radius |" in text
        late = replace(made("a"), metadata=replace(GLOBAL, chosen=("n = 100",)))
        assert any(CHOSEN in remark for remark in compare(late, made("b")).remarks)

    def test_legends(self):
        runs = [made("a"), made("b", metadata=POINTWISE)]
        figure = certified_accuracy_figure(runs, best=True)
        texts = [text.get_text() for text in figure.legends[0].get_texts()]
        assert texts == ["envelope of different guarantees (area 0.500)", "a [global] (ACR 0.500)",
                         "b [pointwise] (ACR 0.500)"]  # fmt: skip
        same = certified_accuracy_figure([made("a")], best=True).legends[0].get_texts()
        assert [text.get_text() for text in same] == ["envelope (area 0.500)", "a (ACR 0.500)"]
        effect = effect_figure([(1, runs[0]), (2, runs[1])], "procedure.n")
        assert effect.legends[0].get_texts()[-1].get_text() == "runs: [global] and [pointwise]"

    def test_axes_tell_an_unknown_norm(self):
        assert certified_accuracy_figure([published("a")]).axes[0].get_xlabel() == "certified radius (norm unknown)"
        mixed = certified_accuracy_figure([made("a"), published("b")])
        assert mixed.axes[0].get_xlabel() == "certified radius (ℓ2)"
        assert "b [unknown] (ACR 0.500)" in [text.get_text() for text in mixed.legends[0].get_texts()]

    def test_corruptions(self):
        methods = [
            SuiteResults(name, {("fog", None): made("fog", radius, kind), ("snow", None): made("snow", radius, kind)})
            for name, radius, kind in (("a", 0.4, GLOBAL), ("b", 0.9, POINTWISE), ("c", 0.3, GLOBAL))
        ]
        sheet = corruption_sheet(methods)
        text = render_sheet(sheet, "md")
        assert r"| a \[global\] | b \[pointwise\] | c \[global\] |" in text
        assert "| ACR | fog | **0.400** | 0.900 | <ins>0.300</ins> |" in text
        assert "For each method, of the 20 statements at most 0.02 are expected to be false" in text
        assert "a [global],b [pointwise],c [global]" in render_sheet(sheet, "csv")
        legend = [text.get_text() for text in type_figure(methods).legends[0].get_texts()]
        assert legend[1] == "b [pointwise] (mACR 0.900)"

    def test_aces(self):
        parts = [
            Components(
                certifier=made(name, metadata=kind, count=3),
                predicted=[1] * 3,
                core=[1] * 3,
                thetas=[0.1],
                choice=[[1, -1, 0]],
                choice_radius=[[0.3, 0.0, 0.8]],
                choice_predicted=[[1, 1, 0]],
            )
            for name, kind in (("one", GLOBAL), ("one", UNKNOWN))
        ]
        table = aces_table(parts, radii=[0])
        for format in ("md", "latex", "html"):
            text = render_aces(table, format)
            assert text.count("statements at most 0.003") == 1
            assert CHOSEN_THETA in text
            assert "unknown" in text
        console = Console(width=400, record=True, file=io.StringIO())
        console.print(rich_aces(table))
        assert "statements at most 0.003" in " ".join(console.export_text().split())
        header, first, second = csv.reader(io.StringIO(render_aces(table, "csv")))
        assert dict(zip(header, first, strict=True))["guarantee"] == "global"
        assert dict(zip(header, second, strict=True))["guarantee"] == ""
        legend = pareto_figure(parts).legends[0].get_texts()
        assert [text.get_text() for text in legend] == ["ACES, one [global, float]", "ACES, one [unknown]"]


@pytest.fixture(scope="module")
def norms(tmp_path_factory):
    """An ℓ2 and an ℓ1 run over the same digits, and their logs."""
    folder = tmp_path_factory.mktemp("norms")
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    digits = data.load("digits", split="test")
    for name, noise in (("two", Gaussian(0.2)), ("one", Uniform(0.3))):
        run = certify_dataset(Smoothed(model, noise), digits, Cohen(n=200), run=folder / name, every=60, progress=False)
        write_log(folder / f"{name}.tsv", run.rows())
        write_log(folder / f"{name}.classic", run.rows(), classic=True)
    return folder


def test_an_l1_run_stays_one_through_a_log(norms):
    stored, logged = load_outcomes([norms / "one", norms / "one.tsv"])
    assert stored.norm is logged.norm is Norm.L1
    text = render(accuracy_table([stored, logged], [0, 0.1]), "md")
    assert "ℓ1 radius 0.10" in text
    assert "Norm ℓ1, guarantee global" in text


def test_different_norms_are_refused_wherever_they_come_from(norms):
    for one, two in (("one", "two"), ("one.tsv", "two"), ("one.tsv", "two.tsv")):
        with pytest.raises(UsageError, match=r"\(ℓ1\) and .* \(ℓ2\) have radii in different norms"):
            accuracy_table(load_outcomes([norms / one, norms / two]))
    with pytest.raises(UsageError, match="different norms"):
        accuracy_table(load_outcomes([norms / name for name in ("one.classic", "one", "two")]))


def test_a_log_without_a_norm_is_marked_beside_an_l1_run(norms):
    table = accuracy_table(load_outcomes([norms / "one", norms / "one.classic"]), [0])
    assert table.norm is Norm.L1
    text = render(table, "md")
    assert "| one.classic \\[unknown\\] |" in text
    assert "**" not in text
    assert "of one.classic unknown (not recorded); shown as if in ℓ1." in text
    alone = accuracy_table(load_outcomes([norms / "one.classic"]), [0])
    assert alone.norm is None
    assert "ℓ" not in render(alone, "md")
    assert "at unknown-norm radius" in render(alone, "html")


def test_recomputed_outcomes_say_what_was_chosen(norms):
    run = load_run(norms / "two")
    (fewer,) = load_outcomes([run.path], n=100)
    assert fewer.metadata.chosen == ("n = 100",)
    assert fewer.metadata.guarantee == ("global",)
    assert fewer.alpha.tolist() == [0.001] * len(fewer)
    (both,) = load_outcomes([run.path], n=10, alpha=0.05)
    assert both.metadata.chosen == ("n = 10", "alpha = 0.05")
    assert both.alpha.tolist() == [0.05] * len(both)
    (same,) = load_outcomes([run.path], n=200, alpha=0.001)
    assert same.metadata.chosen == ()  # the run's own settings were not chosen afterwards


def test_hostile_texts_are_escaped():
    owned = '<img src=x onerror="alert(1)">|$x$\\input{a}'
    metadata = Metadata(("global",), ("float",), (owned,), (owned, None), (1,))
    table = accuracy_table([made(owned, metadata=metadata)], [0])
    page = render(table, "html")
    assert "<img" not in page
    assert "&lt;img" in page
    assert not re.search(r"(?<!\\)<img", render(table, "md"))
    assert "<" not in render(table, "latex")
    assert r"\input" not in render(table, "latex")
    (row,) = list(csv.reader(io.StringIO(render(table, "csv"))))[1:]
    assert owned in row


def test_best_of_several_n_makes_more_errors():
    """Why the warning is there: at p = ½ the best of three stored n certifies more often than alpha allows."""
    generator, alpha, inputs = np.random.default_rng(0), 0.05, 4000
    votes = generator.random((inputs, 1000)) < 0.5
    wrong = np.array([lower_bound(votes[:, :n].sum(axis=1), n, alpha) > 0.5 for n in (10, 100, 1000)])
    assert (wrong.mean(axis=1) < alpha + 0.012).all()
    assert wrong.any(axis=0).mean() > 1.5 * alpha
