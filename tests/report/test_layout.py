"""The layout of tables: marks, groups and spans in every format, and names that no format takes for its own signs."""

from __future__ import annotations

import csv
import doctest
import io
from html.parser import HTMLParser

import pytest
from rich.console import Console

from smoothcert.report.tables import layout
from smoothcert.report.tables.layout import (
    Cell,
    Column,
    Line,
    Sheet,
    latex_name,
    markdown_name,
    render_sheet,
    rich_sheet,
)
from smoothcert.types import UsageError

UGLY = r'a|b_c & <b>"50%"</b> #1 [x] \~^{}$*'


def line(name, *numbers, group=""):
    return Line((Cell(name), *(Cell(text, float(text.split()[0])) for text in numbers)), group)


def sheet(*lines, title="", better="high", across=False, group_heading="σ"):
    columns = (Column("run"), *(Column(f"c{i}", better=better) for i in range(len(lines[0].cells) - 1)))
    return Sheet(title, columns, lines, group_heading, across)


def marked(shown):
    """The texts of bold and of underlined cells of a Markdown table."""
    cells = [cell.strip() for row in shown.splitlines() for cell in row.split("|")]
    best = [cell.strip("*") for cell in cells if cell.startswith("**")]
    return best, [cell[5:-6] for cell in cells if cell.startswith("<ins>")]


def terminal(sheet, width=80):
    console = Console(width=width, record=True, file=io.StringIO(), force_terminal=True)
    console.print(rich_sheet(sheet))
    return console.export_text(clear=False), console.export_text(styles=True)


def test_examples():
    assert doctest.testmod(layout).failed == 0


def test_best_and_runner_up():
    numbers = [line("a", "0.5"), line("b", "0.9"), line("c", "0.7"), line("d", "0.1")]
    assert marked(render_sheet(sheet(*numbers), "md")) == (["0.9"], ["0.7"])
    assert marked(render_sheet(sheet(*numbers, better="low"), "md")) == (["0.1"], ["0.5"])
    assert marked(render_sheet(sheet(*numbers, better=""), "md")) == ([], [])


def test_values_equal_as_printed_share_their_mark():
    cells = [("0.54", 0.5449), ("0.54", 0.5351), ("0.30", 0.3), ("0.30", 0.299), ("0.10", 0.1)]
    lines = tuple(Line((Cell("run"), Cell(text, value))) for text, value in cells)
    shown = render_sheet(Sheet("", (Column("run"), Column("c", better="high")), lines), "md")
    assert marked(shown) == (["0.54", "0.54"], ["0.30", "0.30"])


def test_spreads_and_intervals_are_not_compared():
    numbers = [
        line("a", "0.5 ± 0.1", "0.5 [0.4, 0.6]"),
        line("b", "0.5 ± 0.3", "0.5 [0.1, 0.7]"),
        line("c", "0.2", "0.2"),
    ]
    best, second = marked(render_sheet(sheet(*numbers), "md"))
    assert best == ["0.5 ± 0.1", "0.5 [0.4, 0.6]", "0.5 ± 0.3", "0.5 [0.1, 0.7]"]
    assert second == ["0.2", "0.2"]


def test_a_winner_needs_somebody_to_beat():
    assert marked(render_sheet(sheet(line("a", "0.5")), "md")) == ([], [])
    assert marked(render_sheet(sheet(line("a", "0.0"), line("b", "0.0")), "md")) == ([], [])
    lines = (Line((Cell("a"), Cell("9.9"))), *(Line((Cell("b"), Cell(str(x), x))) for x in (0.5, 0.4)))
    columns = (Column("run"), Column("c", better="high"))
    assert marked(render_sheet(Sheet("", columns, lines), "md")) == (["0.5"], ["0.4"])


def test_zeros_are_not_marked():
    assert marked(render_sheet(sheet(line("a", "0.5"), line("b", "0.0"), line("c", "0.00")), "md")) == (["0.5"], [])
    assert marked(render_sheet(sheet(line("a", "5 ± 1"), line("b", "0.00 ± 0.00")), "md")) == (["5 ± 1"], [])
    assert marked(render_sheet(sheet(line("a", "0.5"), line("b", "0"), better="low"), "md")) == (["0"], ["0.5"])
    assert marked(render_sheet(sheet(line("a", "0.5"), line("b", "0.01")), "md")) == (["0.5"], ["0.01"])


def test_groups_are_ranked_apart():
    lines = [
        line("a", "0.5", group="0.25"),
        line("b", "0.4", group="0.25"),
        line("c", "0.3", group="0.50"),
        line("d", "0.9", group="0.50"),
    ]
    shown = render_sheet(sheet(*lines), "md")
    assert marked(shown) == (["0.5", "0.9"], ["0.4", "0.3"])
    assert [row.split(" | ")[0] for row in shown.splitlines()] == ["| σ", "| ---", "| 0.25", "| ", "| 0.50", "| "]


def test_ranks_across_a_line_stay_within_their_heading():
    columns = (
        Column("type"),
        *(Column(name, over, "high") for over in ("ACR", "accuracy") for name in ("A", "B", "C")),
    )
    lines = (
        line("fog", "0.1", "0.3", "0.2", "36.0", "35.0", "37.0"),
        line("blur", "0.4", "0.4", "0.2", "9.0", "8.0", "7.0"),
    )
    shown = Sheet("", columns, lines, across=True)
    assert marked(render_sheet(shown, "md")) == (["0.3", "37.0", "0.4", "0.4", "9.0"], ["0.2", "36.0", "0.2", "8.0"])
    assert render_sheet(shown, "csv").splitlines()[0] == "type,ACR A,ACR B,ACR C,accuracy A,accuracy B,accuracy C"


def test_latex():
    columns = (
        Column("run"),
        Column("ACR", better="high"),
        *(Column(r, "at ℓ2 radius", "high") for r in ("0.00", "0.25")),
    )
    lines = (
        line("a_1", "0.5", "60", "50", group="0.25"),
        line("b", "0.6", "60", "40", group="0.25"),
        line("c", "-1.5", "9", "9 ± 2", group="0.50"),
    )
    assert render_sheet(Sheet("Title", columns, lines, "σ"), "latex").splitlines() == [
        r"\begin{tabular}{llrrr}",
        r"\toprule",
        r" &  &  & \multicolumn{2}{c}{at $\ell_2$ radius} \\",
        r"\cmidrule(lr){4-5}",
        r"$\sigma$ & run & ACR & 0.00 & 0.25 \\",
        r"\midrule",
        r"0.25 & a\_1 & \underline{0.5} & 60 & \textbf{50} \\",
        r" & b & \textbf{0.6} & 60 & \underline{40} \\",
        r"\midrule",
        r"0.50 & c & $-$1.5 & 9 & 9 $\pm$ 2 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


class _Parsed(HTMLParser):
    """A table read by somebody else's parser: rows of texts, and the tags around each marked text."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.spans, self.marks, self.caption, self.open = [], [], [], "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.spans.append({**dict(attrs)})

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "caption" in self.open:
            self.caption += data
        elif {"td", "th"} & {*self.open}:
            self.rows[-1][-1] += data
            if self.open[-1] in ("b", "u"):
                self.marks.append((self.open[-1], data))


def test_html():
    columns = (Column("run"), Column("ACR", better="high"), *(Column(r, UGLY, "high") for r in ("0.00", "0.25")))
    lines = (line(UGLY, "0.5", "60", "50", group="0.25"), line("b", "0.6", "60", "40", group="0.25"))
    parsed = _Parsed(render_sheet(Sheet(UGLY + "!", columns, lines, "σ"), "html"))
    assert parsed.caption == UGLY + "!"
    assert parsed.rows == [
        ["", UGLY],
        ["σ", "run", "ACR", "0.00", "0.25"],
        ["0.25", UGLY, "0.5", "60", "50"],
        ["", "b", "0.6", "60", "40"],
    ]
    assert parsed.marks == [("u", "0.5"), ("b", "50"), ("b", "0.6"), ("u", "40")]
    assert [int(span["colspan"]) for span in parsed.spans if "colspan" in span] == [3, 2]


def test_csv_is_raw():
    shown = render_sheet(
        sheet(line(UGLY, "0.5", group="x"), line("two\nlines", "0.4", group="x"), title="Title"), "csv"
    )
    assert list(csv.reader(io.StringIO(shown))) == [["σ", "run", "c0"], ["x", UGLY, "0.5"], ["x", "two\nlines", "0.4"]]


def test_terminal():
    plain, styled = terminal(
        sheet(line("[bold]a", "0.5", group="0.25"), line("b", "0.7", group="0.25"), title="Some title")
    )
    assert "Some title" in plain
    assert "[bold]a" in plain
    assert plain.split().count("0.25") == 1
    assert "\x1b[1m0.7" in styled
    assert "\x1b[4m0.5" in styled


def test_a_heading_that_is_the_title_is_not_repeated():
    columns = (Column("run"), Column("0.00", "Accuracy at radius"), Column("0.25", "Accuracy at radius"))
    shown = Sheet("Accuracy at radius", columns, (line("a", "1", "2"),))
    for text in (render_sheet(shown, "md"), render_sheet(shown, "html"), terminal(shown)[0]):
        assert text.count("Accuracy at radius") == 1
    assert "Accuracy" not in render_sheet(shown, "csv")
    assert render_sheet(shown, "latex").count("Accuracy at radius") == 1


def test_names_are_escaped():
    assert markdown_name("a|b_c#1\n\\*") == r"a\|b\_c\#1 \\\*"
    assert latex_name("[50%] a_b & #1 ~^|\\x{}$*") == (
        r"{[}50\%] a\_b \& \#1 \textasciitilde{}\textasciicircum{}\textbar{}\textbackslash{}x\{\}\${*}"
    )
    assert latex_name("σ ≥ 0.5, ℓ∞ and ℓ1") == r"$\sigma$ $\geq$ 0.5, $\ell_\infty$ and $\ell_1$"
    # At the start of a line, LaTeX would read it as an option of the line end before.
    assert r"{[}0.5]" in render_sheet(sheet(Line((Cell("[0.5]"),))), "latex")


def test_alignment():
    columns = (Column("radius", align="right"), Column("name", align="left"), Column("inputs"))
    shown = Sheet("", columns, (Line((Cell("1"), Cell("x"), Cell("3"))),))
    assert "| ---: | --- | ---: |" in render_sheet(shown, "md")
    assert r"\begin{tabular}{rlr}" in render_sheet(shown, "latex")
    assert '<td class="number">1</td><td>x</td><td class="number">3</td>' in render_sheet(shown, "html")


def test_a_sheet_without_lines():
    empty = Sheet("", (Column("run"), Column("ACR", better="high")), ())
    assert render_sheet(empty, "md") == "| run | ACR |\n| --- | ---: |\n"
    assert "ACR" in terminal(empty)[0]


def test_refusals():
    with pytest.raises(UsageError, match="unknown table format 'htm'; did you mean 'html'"):
        render_sheet(sheet(line("a", "1")), "htm")
    with pytest.raises(UsageError, match="3 cells in a table of 2 columns"):
        Sheet("", (Column("a"), Column("b")), (line("a", "1", "2"),))
