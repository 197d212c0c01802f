"""Pictures of inputs with their votes, of trade-offs, bands and limits: what is drawn against values from elsewhere."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from smoothcert.report.figures.aces import pareto_figure
from smoothcert.report.figures.curves import certified_accuracy_figure
from smoothcert.report.figures.inputs import VotedInput, votes_figure
from smoothcert.report.figures.style import COLOURS, save_figure
from smoothcert.store import Outcomes
from smoothcert.types import ABSTAIN, Norm, UsageError

NAMES = ["cat", "dog", "a class with quite a long name", "$bird$"]


def voted(**changes):
    given = {
        "index": 17,
        "image": np.linspace(0, 1, 12).reshape(1, 3, 4),
        "copies": [np.full((1, 3, 4), 2.0), np.full((1, 3, 4), -1.0)],
        "counts": [5, 90, 0, 3],
        "n": 100,
        "label": 1,
        "predict": 1,
        "radius": 0.24996,
        "norm": Norm.L2,
    } | changes
    return VotedInput(**given)


def test_images_copies_and_votes():
    first, second = voted(), voted(index=18, predict=ABSTAIN, radius=0.0, label=0)
    figure = votes_figure([first, second], NAMES)
    assert len(figure.axes) == 8  # in each row the input, two copies and the votes
    shown = [np.asarray(axes.images[0].get_array()) for axes in figure.axes[:3]]
    assert np.array_equal(shown[0], first.image[0])
    assert (shown[1] == 1).all()  # cut off, as on a screen
    assert (shown[2] == 0).all()
    bars = figure.axes[3]
    assert [bar.get_width() for bar in bars.patches] == [5.0, 90.0, 0.0, 3.0]
    assert [text.get_text() for text in bars.texts] == ["5", "90", "3"]
    assert [text.get_text() for text in bars.get_yticklabels()] == ["cat", "dog", "a class with…", r"\$bird\$"]
    assert bars.get_title() == "answers dog, ℓ2 radius 0.249"  # rounded down
    assert bars.get_xlabel() == "votes (% of 100)"
    green = [tuple(bar.get_facecolor()) for bar in bars.patches]
    assert green[0] == green[2] == green[3] != green[1]
    assert figure.axes[7].get_title() == "abstains"
    assert [axes.get_title() for axes in figure.axes[4:7]] == ["input 18", "copy 1", "copy 2"]
    assert figure.axes[4].get_xlabel() == "class cat"


def test_of_many_classes_the_most_voted_and_the_true_one():
    counts = [0] * 50
    for place, votes in zip(range(20, 35), range(15, 0, -1), strict=True):
        counts[place] = votes
    (*_, bars) = votes_figure([voted(counts=counts, label=3, n=120)], [f"c{i}" for i in range(50)]).axes
    assert [text.get_text() for text in bars.get_yticklabels()] == [*(f"c{i}" for i in range(20, 29)), "c3"]
    assert [bar.get_width() for bar in bars.patches] == pytest.approx([100 * k / 120 for k in (*range(15, 6, -1), 0)])


def test_pixels_are_counted_whole():
    (*_, bars) = votes_figure([voted(norm=Norm.L0, radius=2.0)], NAMES).axes
    assert bars.get_title() == "answers dog, ℓ0 radius 2"


def test_inputs_that_cannot_be_shown():
    with pytest.raises(UsageError, match="no inputs to draw"):
        votes_figure([], NAMES)
    with pytest.raises(UsageError, match="input 17 is not an image"):
        votes_figure([voted(image=np.zeros(12))], NAMES)
    with pytest.raises(UsageError, match="4 classes, but only 2 have names"):
        votes_figure([voted()], NAMES[:2])


def outcomes(name, *radii):
    count = len(radii)
    return Outcomes(name, range(count + 1), [1] * (count + 1), [1] * count + [-1], [*radii, 0.0])


def test_points_of_a_trade_off_without_compositions():
    runs = [("first", 0.9, (0.2, 0.4, 0.6)), ("second", 0.7, (0.6, 0.9, 0.9)), ("third", 0.905, (0.2, 0.4, 0.61))]
    singles = [SimpleNamespace(outcomes=outcomes(name, *radii), natural=natural) for name, natural, radii in runs]
    figure = pareto_figure([], singles, radius=0.5)
    (axes,) = figure.axes
    assert [line.get_data() for line in axes.get_lines()] == [([90.0], [25.0]), ([70.0], [75.0]), ([90.5], [25.0])]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["1: first", "2: second", "3: third"]
    assert [(text.get_text(), text.xy) for text in axes.texts] == [("1, 3", (90.0, 25.0)), ("2", (70.0, 75.0))]
    assert len({line.get_marker() for line in axes.get_lines()}) == 3
    (axes,) = pareto_figure([], singles[:1]).axes
    assert axes.get_lines()[0].get_data() == ([90.0], [pytest.approx(0.3)])
    assert not axes.texts
    with pytest.raises(UsageError, match="no runs"):
        pareto_figure([], [])
    with pytest.raises(UsageError, match="other is about other inputs than first"):
        pareto_figure([], [singles[0], SimpleNamespace(outcomes=outcomes("other", 0.1), natural=1.0)])


def test_the_band_is_wilsons_interval():
    run = outcomes("run", *np.linspace(0.1, 0.9, 9))
    figure = certified_accuracy_figure([run], intervals=True)
    (axes,) = figure.axes
    (band,) = axes.collections
    corners = {tuple(np.round(corner, 9)) for corner in band.get_paths()[0].vertices}
    for radius, count in ((0.1, 9), (0.5, 5), (0.9, 1)):
        interval = stats.binomtest(count, 10).proportion_ci(0.95, method="wilson")
        assert (radius, round(100 * interval.low, 9)) in corners
        assert (radius, round(100 * interval.high, 9)) in corners
    assert tuple(band.get_facecolor()[0][:3]) == tuple(int(COLOURS[0][i : i + 2], 16) / 255 for i in (1, 3, 5))
    assert figure.legends[0].get_texts()[-1].get_text() == "95 % interval (test sample)"
    assert not certified_accuracy_figure([run]).axes[0].collections


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_the_same_figure_gives_the_same_bytes(tmp_path, suffix):
    for name in ("a", "b"):
        save_figure(certified_accuracy_figure([outcomes("run", 0.5)]), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()
