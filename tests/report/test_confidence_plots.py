"""Pictures of p_A and of samples: the curves are the empirical distributions of what the run holds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from smoothcert.report.figures.distributions import Confidence, Samples, confidence_figure, samples_figure
from smoothcert.store import Result, find_results, write_run
from smoothcert.types import RunError, UsageError

CONFIG = {"kind": "certification", "noise": {"name": "gaussian", "sigma": 0.5}, "procedure": {"name": "cohen"}}


def write(path, *, outcome=None, **changes):
    """A run of six inputs: three correct, one wrong, two abstained."""
    columns = {
        "index": [0, 1, 2, 3, 4, 5],
        "label": [1, 1, 1, 1, 1, 1],
        "predict": [1, 1, 1, 0, -1, -1],
        "radius": [0.3, 0.6, 0.9, 0.2, 0.0, 0.0],
        "p_lower": [0.7, 0.8, 0.9, 0.6, 0.4, 0.45],
        "n": [100, 1000, 1000, 100, 200, 100],
        "n0": [10] * 6,
        "counts": [[10, 90], [5, 995], [0, 1000], [80, 15], [90, 110], [49, 51]],
        "outcome": ["certified", "certified", "certified", "certified", "refuted", "undecided"],
    } | changes
    return write_run(path, pa.table({key: column for key, column in columns.items() if column is not None}), CONFIG, {})


def load(path) -> Result:
    (found,) = find_results([path])
    return found


def drawn(axes):
    """The height of each curve at a place, read off the drawn steps."""
    curves = []
    for line in axes.get_lines():
        if line.get_drawstyle() == "steps-post":
            x, y = map(np.asarray, line.get_data())
            curves.append(lambda place, x=x, y=y: y[np.searchsorted(x, place, side="right") - 1])
    return curves


def test_the_curves_are_the_distributions_of_bound_and_votes(tmp_path):
    write(tmp_path / "run")
    figure = confidence_figure([Confidence.of(load(tmp_path / "run"))], title="Both")
    left, right = figure.axes
    bounds = [0.7, 0.8, 0.9, 0.0, 0.0, 0.0]  # a wrong answer or an abstention proves nothing about the true class
    shares = [0.9, 0.995, 1.0, 0.15, 0.55, 0.51]  # of the votes for the true class
    for axes, values in ((left, bounds), (right, shares)):
        (curve,) = drawn(axes)
        exact = stats.ecdf(values).cdf  # SciPy's, by another way
        for place in np.linspace(0.005, 0.999, 60):
            assert curve(place) == pytest.approx(100 * exact.evaluate(place))
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["run (3 correct, 1 wrong, 2 abstained)"]
    assert left.get_xlim()[0] == 0.5
    assert "probability" in left.get_xlabel()
    assert "share of samples" in right.get_xlabel()


def test_inputs_without_votes_are_left_out(tmp_path):
    counts = [[10, 90], [], [0, 1000], [80, 15], [90, 110], [49, 51]]
    write(tmp_path / "core", counts=counts, n=[100, 0, 1000, 100, 200, 100])
    found = Confidence.of(load(tmp_path / "core"))
    assert found.bound.tolist() == [0.7, 0.9, 0.6, 0.4, 0.45]
    assert found.answer.tolist() == ["correct", "correct", "wrong", "abstained", "abstained"]
    assert found.share.tolist() == [0.9, 1.0, 0.15, 0.55, 0.51]
    write(tmp_path / "none", counts=[[]] * 6)
    with pytest.raises(UsageError, match="none keeps no votes"):
        Confidence.of(load(tmp_path / "none"))
    write(tmp_path / "damaged", n=[1] * 6)
    with pytest.raises(RunError, match="counts that are negative or more than its samples"):
        Confidence.of(load(tmp_path / "damaged"))


def test_samples_are_cumulative_shares_of_all_inputs(tmp_path):
    write(tmp_path / "run")
    write(tmp_path / "fixed", n=[5000] * 6, outcome=["certified"] * 6)
    runs = [Samples.of(load(tmp_path / name)) for name in ("run", "fixed")]
    figure = samples_figure(runs)
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    first = [line for line in axes.get_lines() if line.get_color() == axes.get_lines()[0].get_color()]
    certified, refuted, undecided, mean = first
    used = np.array([110, 1010, 1010, 110])  # selection included
    x, y = certified.get_data()
    for place in (100, 110, 500, 1010, 5000):
        height = y[np.searchsorted(x, place, side="right") - 1]
        assert height == pytest.approx(100 * (used <= place).sum() / 6)
    assert refuted.get_linestyle() == "--"
    assert refuted.get_ydata()[-1] == undecided.get_ydata()[-1] == pytest.approx(100 / 6)
    assert refuted.get_xdata()[1] == 210
    assert np.ravel(mean.get_xdata())[0] == pytest.approx((110 + 1010 + 1010 + 110 + 210 + 110) / 6)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:2] == ["run (mean 427)", "fixed (mean 5,010)"]
    low, high = axes.get_xlim()
    assert low < 110
    assert high > 5010


@pytest.mark.parametrize("missing", ["counts", "p_lower", "n"])
def test_a_missing_column_names_the_run(tmp_path, missing):
    write(tmp_path / "old", **{missing: None})
    with pytest.raises(UsageError, match=rf"old .*{missing} for its inputs"):
        Confidence.of(load(tmp_path / "old"))


def test_published_logs_lack_votes(shared_data):
    evidence = load(shared_data / "cohen-cifar10-050" / "sigma_0.50")
    with pytest.raises(UsageError, match=r"sigma_0\.50 .*counts for its inputs"):
        Confidence.of(evidence)
    with pytest.raises(UsageError, match=r"sigma_0\.50 .*n for its inputs"):
        Samples.of(evidence)


def test_nothing_to_show(tmp_path):
    for draw in (confidence_figure, samples_figure):
        with pytest.raises(UsageError, match="no runs"):
            draw([])
    empty = write_run(tmp_path / "empty", pa.table({"index": pa.array([], pa.int64())}), CONFIG, {})
    with pytest.raises(RunError, match="no rows yet"):
        Samples.of(load(empty.path))
    with pytest.raises(RunError, match="no rows yet"):
        Confidence.of(load(empty.path))


def test_equal_names_are_told_apart_and_paths_read_once(tmp_path):
    for folder in ("a/x/run", "b/x/run", "b/other"):
        (tmp_path / folder).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / folder)
    paths = [tmp_path / "a/x/run", tmp_path / "b/x/run", tmp_path / "b/other", tmp_path / "b" / "x"]
    assert [each.name for each in find_results(paths)] == ["a/x/run", "b/x/run", "other"]
