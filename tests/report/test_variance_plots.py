"""Pictures of the variance model: what is drawn is what was computed, and no label is clipped or covered."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import norm as normal

from smoothcert.report.figures.style import save_figure
from smoothcert.report.figures.variance import (
    components_figure,
    covariance_figure,
    expected_radius_figure,
    margin_figure,
    radii_figure,
    success_figure,
)
from smoothcert.stats import (
    compare_with_votes,
    component_covariances,
    estimate_variance,
    expected_radius,
    radius_distribution,
    soft_voting_margins,
)
from smoothcert.types import Norm, UsageError


def logits(seed=0, members=8, copies=400, shift=0.0):
    rng = np.random.default_rng(seed)
    mean, mix = np.array([2.0, 0.5, 0.0, -0.5]), rng.normal(size=(4, 4)) * 0.5
    clean = mean + 0.4 * rng.normal(size=(members, 4))
    effect = np.sqrt(0.8) * rng.normal(size=(copies, 4)) + np.sqrt(0.2) * rng.normal(size=(members, copies, 4))
    return clean, clean[:, None] + effect @ mix + shift


CLEAN, NOISY = logits()
MODEL = estimate_variance(CLEAN, NOISY)
SIZES = (1, 3, 8)
RADII = {
    "k = 1, n = 1000": radius_distribution(0.7, 1_000, 0.001, lambda q: 0.25 * ndtri(q)),
    "k = 8, n = 1000": radius_distribution(0.9, 1_000, 0.001, lambda q: 0.25 * ndtri(q)),
}
FIGURES = {
    "margins": lambda title: margin_figure(MODEL, NOISY, SIZES, title=title),
    "success": lambda title: success_figure(compare_with_votes(MODEL, NOISY, SIZES), bound=True, title=title),
    "radii": lambda title: radii_figure(RADII, title=title),
    "expected": lambda title: expected_radius_figure(ndtri, samples=(100, 1_000, 10_000), title=title),
    "components": lambda title: components_figure([logits(seed) for seed in range(3)], title=title),
    "covariances": lambda title: covariance_figure(CLEAN, NOISY, title=title),
}


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_margins():
    figure = margin_figure(MODEL, NOISY, SIZES)
    (axes,) = figure.axes
    position = int(np.argmin(MODEL.given_members(8).mean))
    assert axes.get_xlabel() == f"margin of class 0 over class {position + 1} (logits)"
    assert legend(figure) == ["k = 1", "k = 3", "k = 8", "modelled", "measured"]
    for k, line, steps in zip(SIZES, axes.get_lines()[1:], axes.patches, strict=True):
        margins = MODEL.given_members(k)
        x, y = line.get_data()
        exact = normal.pdf(x, margins.mean[position], np.sqrt(margins.covariance[position, position]))
        assert y == pytest.approx(exact)
        values, edges, _ = steps.get_data()
        measured = soft_voting_margins(NOISY, k, 0)[:, position]
        assert values @ np.diff(edges) == pytest.approx(1.0)
        assert values @ (np.diff(edges) * (edges[1:] + edges[:-1]) / 2) == pytest.approx(measured.mean(), abs=0.05)


def test_success():
    agreement = compare_with_votes(MODEL, NOISY, SIZES)
    figure = success_figure(agreement, bound=True)
    (axes,) = figure.axes
    drawn = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert np.array_equal(drawn["modelled, these members"], agreement.given_members)
    assert np.array_equal(drawn["modelled, members newly trained"], agreement.random_ensemble)
    assert np.array_equal(drawn["Chebyshev bound"], agreement.chebyshev)
    (measured,) = axes.containers
    assert np.array_equal(measured.lines[0].get_ydata(), agreement.measured)
    assert axes.get_xticks().tolist() == list(SIZES)
    assert not any("Chebyshev" in text for text in legend(success_figure(agreement)))


def test_radii():
    figure = radii_figure(RADII, norm=Norm.LINF)
    (axes,) = figure.axes
    assert axes.get_xlabel() == "certified radius (ℓ∞)"
    means = [line for line in axes.get_lines() if len(line.get_xdata())]
    for each, steps, mean in zip(RADII.values(), axes.patches, means, strict=True):
        values, _, _ = steps.get_data()
        assert values.sum() + 100 * each.abstain == pytest.approx(100.0, abs=0.02)
        assert np.ravel(mean.get_xdata())[0] == each.expected
    assert legend(figure)[0].startswith("k = 1, n = 1000 (mean 0.")
    for each, text in zip(RADII.values(), legend(figure), strict=True):
        printed = float(text.split("mean ")[1].split(",")[0])
        assert each.expected - 0.001 < printed <= each.expected


def test_expected_radii():
    figure = expected_radius_figure(ndtri, probabilities=(0.7, 1.0), samples=(100, 10_000), alpha=0.01)
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert legend(figure) == ["p = 0.7", "p = 1"]
    drawn = np.stack([line.get_ydata() for line in axes.get_lines()])
    assert np.array_equal(drawn, expected_radius([[0.7], [1.0]], [100, 10_000], 0.01, ndtri))


def test_components_show_where_a_reading_fails():
    """A shift of all noisy logits is a mean perturbation effect; only the reading by clean logits suffers from it."""
    figure = components_figure([logits(shift=np.array([1.5, 0, 0, 0]))])
    left, middle, right = figure.axes

    def means(axes, power=1):
        found = []
        for steps in axes.patches[1::2]:
            values, edges, _ = steps.get_data()
            found.append((values * np.diff(edges)) @ ((edges[1:] + edges[:-1]) / 2) ** power)
        return found

    by_clean, by_mean = means(middle)
    assert by_mean == pytest.approx(0.0, abs=0.05)
    assert by_clean > 0.2
    assert means(left) == pytest.approx([0.0, 0.0], abs=0.05)
    assert means(middle, power=2)[1] == pytest.approx(1.0, abs=0.03)
    assert means(right) == pytest.approx([1.5 / 4], abs=0.1)
    x, y = middle.get_lines()[0].get_data()
    assert y == pytest.approx(normal.pdf(x))


def test_covariances():
    figure = covariance_figure(CLEAN, NOISY)
    images = [axes.images[0] for axes in figure.axes[:6]]
    of_clean, of_perturbation = component_covariances(CLEAN, NOISY)
    for row, found, zeta in ((images[:3], of_clean, 0.0), (images[3:], of_perturbation, MODEL.zeta_p)):
        measured, difference, modelled = (np.asarray(image.get_array()) for image in row)
        assert measured[:4, :4] == pytest.approx(found.intra)
        assert measured[:4, 4:] == pytest.approx(found.inter)
        assert modelled[4:, 4:] == pytest.approx(found.intra)
        assert modelled[4:, :4] == pytest.approx(zeta * found.intra)
        assert difference == pytest.approx(measured - modelled)
        assert len({image.get_clim() for image in row}) == 1
        assert row[0].get_clim()[0] == -row[0].get_clim()[1]


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_clipped_or_covered(name):
    figure = FIGURES[name]("A title that is long enough to need a second line in a picture of this width, $x$ included")
    figure.canvas.draw()
    texts = [figure._suptitle]
    for axes in figure.axes:
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label]
        if not axes.images:
            texts += [
                tick
                for tick in axes.get_xticklabels()
                if axes.get_xlim()[0] <= tick.get_position()[0] <= axes.get_xlim()[1]
            ]
    if figure.legends:
        texts += figure.legends[0].get_texts()
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    for box in boxes:
        assert box.x0 >= figure.bbox.x0
        assert box.y0 >= figure.bbox.y0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
    assert not any(first.overlaps(second) for first, second in itertools.combinations(boxes, 2))


@pytest.mark.parametrize(("suffix", "magic"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_save(tmp_path, suffix, magic):
    save_figure(success_figure(compare_with_votes(MODEL, NOISY, SIZES)), tmp_path / f"picture{suffix}")
    assert (tmp_path / f"picture{suffix}").read_bytes().startswith(magic)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: margin_figure(MODEL, NOISY, []), "no ensemble sizes to draw"),
        (lambda: margin_figure(MODEL, NOISY, [9]), "between 1 and 8, the number of given members"),
        (lambda: success_figure(compare_with_votes(MODEL, NOISY, [])), "no ensemble sizes"),
        (lambda: radii_figure({}), "no distributions"),
        (lambda: expected_radius_figure(ndtri, probabilities=()), "no probabilities"),
        (lambda: components_figure([]), "no inputs"),
        (lambda: covariance_figure(CLEAN[:1], NOISY[:1]), "at least two"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(UsageError, match=message):
        call()
