"""Pictures: what is drawn is the step function, curves differ in grey too, and files appear whole or not at all."""

from __future__ import annotations

import itertools
import os
import re
import sys
from importlib.resources import files

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from smoothcert.report.figures.curves import certified_accuracy_figure
from smoothcert.report.figures.style import COLOURS, SAMPLE, dashed, line_style, resize, run_style, save_figure
from smoothcert.report.metrics import certified_accuracy
from smoothcert.store import Outcomes
from smoothcert.types import Norm, SmoothcertError, UsageError


def outcomes(name="run", radii=(0.5, 0.2, 0.9), norm=Norm.L2):
    n = len(radii)
    return Outcomes(name, range(n + 1), [1] * (n + 1), [1] * n + [-1], [*radii, 0.0], norm)


def test_curves_labels_and_limits():
    runs = [outcomes("_a $x$", [0.5, 0.2]), outcomes("b", [0.9, 0.9])]
    figure = certified_accuracy_figure(runs, limits={"b": 1.2}, title="Two runs")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "certified radius (ℓ2)"
    assert axes.get_ylabel() == "certified accuracy (%)"
    assert figure.get_suptitle() == "Two runs"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        r"_a \$x\$ (ACR 0.233)",
        "b (ACR 0.600)",
        "sampling limit",
    ]
    first, second, limit = axes.get_lines()
    assert first.get_drawstyle() == second.get_drawstyle() == "steps-pre"
    radii, accuracy = first.get_data()
    assert radii.tolist() == [0.0, 0.2, 0.5, 0.5]
    assert accuracy[:-1].tolist() == (100 * certified_accuracy(runs[0], radii[:-1])).tolist()
    assert accuracy[-1] == 0.0
    assert np.ravel(limit.get_xdata()).tolist() == [1.2, 1.2]
    assert limit.get_color() == second.get_color()
    assert axes.get_xlim()[1] > 1.2
    pixels = certified_accuracy_figure([outcomes(radii=[2.0, 1.0], norm=Norm.L0)])
    assert pixels.axes[0].get_xlabel() == "certified radius (ℓ0)"


def test_many_curves_differ_in_colour_and_neighbours_in_dashes():
    styles = [(style["color"], style["linestyle"]) for style in map(line_style, range(32))]
    assert len(set(styles)) == 32
    assert all(a[0] != b[0] and a[1] != b[1] for a, b in itertools.pairwise(styles))
    assert len({(style["color"], style["linewidth"]) for style in map(run_style, range(24))}) == 24


@pytest.mark.parametrize("width", [0.9, 1.5, 1.8])
@pytest.mark.parametrize("kind", ["--", "-.", ":"])
def test_the_line_in_a_legend_entry_ends_with_a_whole_dash(kind, width):
    _, lengths = dashed(kind, width)
    lengths = width * np.array(lengths)  # matplotlib multiplies by the width
    ends = np.cumsum(np.tile(lengths, 40))
    (last,) = np.flatnonzero(np.isclose(ends, SAMPLE))
    assert last % 2 == 0  # a dash, not a gap
    figure = certified_accuracy_figure([outcomes()])
    assert figure.legends[0].handlelength * figure.legends[0]._fontsize == pytest.approx(SAMPLE)


def test_a_run_has_the_same_colour_on_the_report_page():
    look = (files("smoothcert.report.page") / "assets" / "look.css").read_text()
    light = look[: look.index("data-theme")]
    assert tuple(re.findall(r"--run-\d: (#\w+)", light)) == COLOURS


def test_envelope_and_interval_do_not_look_alike():
    figure = certified_accuracy_figure([outcomes()], best=True, intervals=True)
    envelope, _, interval = figure.legends[0].legend_handles
    assert to_rgb(envelope.get_color()) != to_rgb(interval.get_facecolor())
    assert len(set(to_rgb(interval.get_facecolor()))) == 1  # grey
    assert len(set(to_rgb(envelope.get_color()))) == 3


def test_limits_far_beyond_the_curves_are_left_out():
    runs = [outcomes("a", [0.5]), outcomes("b", [1.0])]
    (axes,) = certified_accuracy_figure(runs, limits={"a": 0.5, "b": 3.0}).axes
    assert len(axes.get_lines()) == 3
    assert axes.get_xlim()[1] < 1.1


@pytest.mark.parametrize("size", [(3.25, 2.6), (6.5, 3.0), (12.0, 8.0)])
def test_a_figure_of_a_given_size(tmp_path, size):
    figure = certified_accuracy_figure([outcomes("first"), outcomes("second")], intervals=True, title="A title " * 9)
    resize(figure, size)
    (axes,) = figure.axes
    texts = [*figure.legends[0].get_texts(), figure._suptitle, axes.xaxis.label, axes.yaxis.label]
    boxes = [text.get_window_extent() for text in texts]
    for box in boxes:
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0
        assert box.y1 <= figure.bbox.y1
    assert not any(one.overlaps(two) for one, two in itertools.combinations(boxes, 2))
    save_figure(figure, tmp_path / "curve.png")
    assert Image.open(tmp_path / "curve.png").size == tuple(int(200 * side) for side in size)


@pytest.mark.parametrize(
    ("size", "words"), [((2.0, 1.2), "do not fit into 2x1.2 inches"), ((0.2, 3), "1 to 40 inches")]
)
def test_sizes_that_are_refused(size, words):
    with pytest.raises(UsageError, match=words):
        resize(certified_accuracy_figure([outcomes(f"run {i}") for i in range(9)]), size)
    with pytest.raises(UsageError, match="1 to 40 inches"):
        resize(certified_accuracy_figure([outcomes()]), (float("nan"), 3.0))


def test_a_pdf_embeds_truetype_fonts(tmp_path):
    save_figure(certified_accuracy_figure([outcomes("σ = ½")]), tmp_path / "curve.pdf")
    content = (tmp_path / "curve.pdf").read_bytes()
    assert b"/Type3" not in content
    assert b"/CIDFontType2" in content


def test_nothing_is_clipped():
    runs = [outcomes("runs/" + "a-very-long-name-" * 6), outcomes("all wrong or abstained", [])]
    figure = certified_accuracy_figure(runs, limits={runs[1].name: 3.0}, title="A title " * 12)
    figure.canvas.draw()
    whole = figure.bbox
    (axes,) = figure.axes
    for text in [*figure.legends[0].get_texts(), figure._suptitle, axes.xaxis.label, axes.yaxis.label]:
        box = text.get_window_extent()
        assert box.x0 >= whole.x0
        assert box.y0 >= whole.y0
        assert box.x1 <= whole.x1
        assert box.y1 <= whole.y1
    assert figure.legends[0].get_window_extent().y1 <= axes.xaxis.label.get_window_extent().y0


@pytest.mark.parametrize("name", ["M" * 25, "M" * 200, "runs/" + "W-" * 60, "i" * 300])
def test_long_names_are_whole(name):
    """Letters of every width, in two columns or one."""
    runs = [outcomes(name + str(i)) for i in range(3)]
    figure = certified_accuracy_figure(runs, title=f"A title about {name}")
    figure.canvas.draw()
    for text in [*figure.legends[0].get_texts(), figure._suptitle]:
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
    for run, text in zip(runs, figure.legends[0].get_texts(), strict=True):
        assert run.name in text.get_text().replace("\n", "")


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".PDF", b"%PDF"), (".svg", b"<?xml")])
def test_save(tmp_path, suffix, magic):
    path = tmp_path / f"curve{suffix}"
    save_figure(certified_accuracy_figure([outcomes()]), path)
    assert path.read_bytes().startswith(magic)
    assert os.listdir(tmp_path) == [path.name]


def test_refusals(tmp_path):
    figure = certified_accuracy_figure([outcomes()])
    with pytest.raises(UsageError, match=r"curve\.gif: a picture is saved as \.png, \.pdf, \.svg"):
        save_figure(figure, tmp_path / "curve.gif")
    with pytest.raises(SmoothcertError, match="cannot be written"):
        save_figure(figure, tmp_path / "missing" / "curve.png")
    with pytest.raises(UsageError, match="no runs"):
        certified_accuracy_figure([])
    with pytest.raises(UsageError, match="different norms"):
        certified_accuracy_figure([outcomes(), outcomes(norm=Norm.L1)])
    with pytest.raises(UsageError, match="unknown run 'rum'; did you mean 'run'"):
        certified_accuracy_figure([outcomes()], limits={"rum": 1.0})
    assert os.listdir(tmp_path) == []


def test_pyplot_is_not_touched():
    certified_accuracy_figure([outcomes()])
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()
