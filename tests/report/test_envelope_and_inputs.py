"""Envelopes of runs, and pictures of inputs under noise."""

from __future__ import annotations

import numpy as np
import pytest

from smoothcert.report.figures.curves import certified_accuracy_figure
from smoothcert.report.figures.inputs import scales_figure
from smoothcert.report.figures.style import save_figure
from smoothcert.report.metrics import average_certified_radius, certified_accuracy, envelope
from smoothcert.store import Outcomes
from smoothcert.types import UsageError


def outcomes(name: str, seed: int, inputs: int = 50) -> Outcomes:
    draw = np.random.default_rng(seed)
    predict = draw.integers(-1, 3, inputs)
    radius = np.where(predict >= 0, draw.exponential(0.4, inputs), 0.0)
    return Outcomes(name, np.arange(inputs), np.arange(inputs) % 3, predict, radius)


def test_the_envelope_is_the_best_run_at_every_radius():
    runs = [outcomes(name, seed) for seed, name in enumerate("abc")]
    radii, accuracy = envelope(runs)
    for wanted in np.linspace(0, radii[-1], 301):
        place = np.searchsorted(radii, wanted, side="left")
        assert accuracy[place] == max(certified_accuracy(run, wanted)[0] for run in runs)


def test_the_area_below_one_runs_envelope_is_its_acr():
    run = outcomes("a", 3)
    radii, accuracy = envelope([run])
    assert (accuracy[1:] * np.diff(radii)).sum() == pytest.approx(average_certified_radius(run))
    figure = certified_accuracy_figure([run], best=True)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[0].startswith("envelope (area ")
    assert labels[0][-6:-1] == labels[1][-6:-1]


def test_an_envelope_is_over_the_same_inputs():
    with pytest.raises(UsageError, match="about other inputs"):
        envelope([outcomes("a", 1), outcomes("b", 2, inputs=40)])


def test_inputs_under_noise(tmp_path):
    images = [np.full((1, 8, 8), 0.5), np.linspace(0, 1, 64).reshape(1, 8, 8)]
    figure = scales_figure(images, {"σ₀": [0.25, 0.25], "σ*": [0.2, 0.4]}, names=["1", "2"])
    shown = [axes.images[0].get_array() for axes in figure.axes]
    assert len(shown) == 6
    assert np.array_equal(shown[0], images[0][0])
    for column, stars in ((0, 0.2), (1, 0.4)):  # one noise, two scales
        at0, at_star = (np.asarray(shown[2 * row + column]) - images[column][0] for row in (1, 2))
        inside = (np.abs(np.asarray(shown[2 + column]) - 0.5) < 0.5) & (
            np.abs(np.asarray(shown[4 + column]) - 0.5) < 0.5
        )
        assert inside.sum() > 20
        assert np.allclose(at0[inside] / 0.25, at_star[inside] / stars)
    for suffix in ("png", "pdf"):
        save_figure(figure, tmp_path / f"inputs.{suffix}")
        assert (tmp_path / f"inputs.{suffix}").stat().st_size > 1000


@pytest.mark.parametrize(
    ("images", "scales"),
    [([], {}), ([np.zeros((8, 8))], {}), ([np.zeros((1, 8, 8))], {"σ": []}), ([np.zeros((1, 8, 8))], {"σ": [-1.0]})],
)
def test_refusals(images, scales):
    with pytest.raises(UsageError):
        scales_figure(images, scales)
