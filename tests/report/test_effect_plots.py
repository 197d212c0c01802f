"""Pictures of the effect of a setting: means, bars and axes against values computed by hand."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from smoothcert.report.figures.effects import effect_figure
from smoothcert.store import Outcomes
from smoothcert.types import Norm, UsageError


def outcomes(*radii, name="run", norm=Norm.L2):
    """All answers right but the last, which abstains."""
    count = len(radii)
    return Outcomes(name, range(count + 1), [1] * (count + 1), [1] * count + [-1], [*radii, 0.0], norm)


RUNS = [(0.5, outcomes(0.4, 0.8)), (0.25, outcomes(0.2, 0.3)), (0.5, outcomes(0.6, 0.9)), (0.5, outcomes(0.8, 0.1))]
ACRS = [0.4, 0.5, 0.3]  # of the three at 0.5


def bars(axes):
    """Lower and upper end of the bars, per curve."""
    return [np.array([segment[:, 1] for segment in bar.lines[2][0].get_segments()]) for bar in axes.containers]


def test_means_and_ranges():
    figure = effect_figure(RUNS, "noise.sigma", radii=[0, 0.25, 0.7], title="Three at 0.5")
    left, right = figure.axes
    (line,) = [line for line in left.get_lines() if line.get_marker() == "o"]
    assert line.get_xdata().tolist() == [0.25, 0.5]
    assert line.get_ydata() == pytest.approx([0.5 / 3, 0.4])
    assert bars(left)[0] == pytest.approx(np.array([[0.3, 0.5]]))  # only where several runs share the value
    curves = [line for line in right.get_lines() if len(line.get_xdata()) == 2 and line.get_marker() not in ("_", "|")]
    assert [curve.get_ydata().tolist() for curve in curves] == [
        pytest.approx([200 / 3, 200 / 3]),
        pytest.approx([100 / 3, (200 + 200 + 100) / 9]),
        pytest.approx([0.0, 100 / 3]),
    ]
    assert left.get_xlabel() == "noise level σ (units of the input)"
    assert left.get_ylabel() == "average certified radius (ℓ2)"
    assert right.get_ylabel() == "certified accuracy (%)"
    assert left.get_xscale() == "linear"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["ℓ2 radius 0", "ℓ2 radius 0.25", "ℓ2 radius 0.7", "lowest to highest of runs"]


def test_standard_deviations():
    left, _ = effect_figure(RUNS, "noise.sigma", bars="sd").axes
    mean, spread = statistics.mean(ACRS), statistics.stdev(ACRS)
    assert bars(left)[0] == pytest.approx(np.array([[mean - spread, mean + spread]]))


@pytest.mark.parametrize(
    ("values", "scale"), [((100, 1000), "linear"), ((100, 1001), "log"), ((0, 1000), "linear"), ((-1, 100), "linear")]
)
def test_the_axis_is_logarithmic_beyond_a_factor_of_ten(values, scale):
    figure = effect_figure([(value, outcomes(0.5)) for value in values], "procedure.n")
    assert [axes.get_xscale() for axes in figure.axes] == [scale, scale]


def test_names_stand_side_by_side():
    runs = [("macer", outcomes(0.2)), ("cat-rs", outcomes(0.5)), (None, outcomes(0.1)), ("macer", outcomes(0.4))]
    left, _ = effect_figure(runs, "recipe.method.name").axes
    assert [text.get_text() for text in left.get_xticklabels()] == ["None", "cat-rs", "macer"]
    (line,) = [line for line in left.get_lines() if line.get_marker() == "o"]
    assert line.get_ydata() == pytest.approx([0.05, 0.25, 0.15])
    assert line.get_linestyle() == "None"


def test_usual_radii_are_few_and_reached():
    figure = effect_figure([(1, outcomes(2.1)), (2, outcomes(0.1))], "seed")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["ℓ2 radius 0", "ℓ2 radius 1", "ℓ2 radius 2"]
    figure = effect_figure([(1, outcomes(1.0, norm=Norm.L0)), (2, outcomes(0.0, norm=Norm.L0))], "seed")
    assert figure.legends[0].get_texts()[-1].get_text() == "ℓ0 radius 1"
    figure = effect_figure([(1, outcomes()), (2, outcomes())], "seed")  # all abstained
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ℓ2 radius 0"]


def test_refusals():
    with pytest.raises(UsageError, match=r"all runs have noise\.sigma = 0\.5; name runs that differ"):
        effect_figure([(0.5, outcomes(0.1)), (0.5, outcomes(0.2))], "noise.sigma")
    with pytest.raises(UsageError, match="different norms"):
        effect_figure([(1, outcomes(0.1)), (2, outcomes(1.0, norm=Norm.L1))], "seed")
    with pytest.raises(UsageError, match="no runs"):
        effect_figure([], "seed")
    with pytest.raises(UsageError, match="unknown kind of bars 'rang'; did you mean 'range'"):
        effect_figure(RUNS, "noise.sigma", bars="rang")
    with pytest.raises(UsageError, match="0 or larger"):
        effect_figure(RUNS, "noise.sigma", radii=[-1.0])
