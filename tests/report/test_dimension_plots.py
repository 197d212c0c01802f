"""The picture of the limit over the dimension: its curves are the bounds, and nothing is clipped."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from smoothcert.report.figures.dimension import DIMENSIONS, scale_limit_figure
from smoothcert.report.figures.style import save_figure
from smoothcert.stats.dimension import scale_limit, worst_case_probability
from smoothcert.types import UsageError

FEW = (1, 30, 784, 5_000)


def test_the_curves_are_the_bounds():
    figure = scale_limit_figure((0.9, 1.5), p=0.9, sigma=0.25, epsilon=0.1, dimensions=FEW, worst=True, title="$d$")
    (axes,) = figure.axes
    lines = axes.get_lines()
    for number, ratio in enumerate((0.9, 1.5)):
        bound, exact = lines[2 * number], lines[2 * number + 1]
        assert bound.get_xdata().tolist() == exact.get_xdata().tolist() == list(FEW)
        assert bound.get_ydata().tolist() == scale_limit(0.9, FEW, 0.25, ratio * 0.25, 0.1).tolist()
        assert exact.get_ydata().tolist() == worst_case_probability(0.9, FEW, 0.25, ratio * 0.25, 0.1).tolist()
        assert bound.get_color() == exact.get_color()
        assert bound.get_linewidth() > exact.get_linewidth()
    assert np.ravel(lines[4].get_ydata()).tolist() == [0.5, 0.5]
    assert [np.ravel(line.get_xdata())[0] for line in lines[5:]] == [784, 3_072]  # an ImageNet image is larger
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert figure.get_suptitle() == r"\$d\$"
    assert axes.get_ylabel().endswith("(p = 0.9, σ = 0.25, ε = 0.1)")
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["τ/σ = 0.9", "τ/σ = 1.5", "worst classifier"]


def test_nothing_is_clipped_and_it_is_saved(tmp_path):
    assert DIMENSIONS[0] == 1
    assert DIMENSIONS[-1] == 150_528
    dimensions = (1, 30, 784, 3_072, 150_528)
    figure = scale_limit_figure(dimensions=dimensions, worst=True, title="A title " * 12)
    figure.canvas.draw()
    (axes,) = figure.axes
    texts = [*figure.legends[0].get_texts(), *axes.texts, figure._suptitle, axes.xaxis.label, axes.yaxis.label]
    for text in texts:
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1
    assert figure.legends[0].get_window_extent().y1 <= axes.xaxis.label.get_window_extent().y0
    names = [text for text in axes.texts if text.get_text() in ("MNIST", "CIFAR", "ImageNet")]
    assert len(names) == 3
    for name in names:
        assert name.get_window_extent().y1 <= figure._suptitle.get_window_extent().y0
    save_figure(figure, tmp_path / "limit.png")
    assert (tmp_path / "limit.png").read_bytes().startswith(b"\x89PNG")
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


def test_refusals():
    with pytest.raises(UsageError, match="no ratios"):
        scale_limit_figure(())
    for dimensions in ((), (784,), (784, 784), (3, 2)):
        with pytest.raises(UsageError, match="at least two whole numbers in increasing order"):
            scale_limit_figure(dimensions=dimensions)
    with pytest.raises(UsageError, match="lowest must lie between 0 and ½"):
        scale_limit_figure(dimensions=FEW, lowest=0.0)
    with pytest.raises(UsageError, match="sigma and tau must differ"):
        scale_limit_figure((1.0,), dimensions=FEW)
