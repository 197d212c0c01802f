"""Metrics: closed cases, statsmodels and refusals; the published numbers are in ``test_tables``."""

from __future__ import annotations

import doctest

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from smoothcert.report import metrics
from smoothcert.report.intervals import wilson_interval
from smoothcert.report.metrics import (
    abstention_rate,
    acr_text,
    average_certified_radius,
    certified_accuracy,
    certified_counts,
    clean_accuracy,
    common_norm,
    curve,
    parse_radii,
)
from smoothcert.store import Outcomes
from smoothcert.types import Norm, UsageError


@pytest.fixture
def run():
    return Outcomes("run", [0, 1, 2, 3], [5, 5, 5, 0], [5, 5, 7, -1], [0.5, 0.2, 0.9, 0.0])


def test_examples():
    assert doctest.testmod(metrics).failed == 0


def test_definitions(run):
    assert run.correct.tolist() == [True, True, False, False]
    assert clean_accuracy(run) == certified_accuracy(run, 0).item() == 0.5
    assert average_certified_radius(run) == 0.7 / 4
    assert abstention_rate(run) == 0.25
    assert certified_counts(run, [0, 0.2, np.nextafter(0.2, 1), 0.5, 0.9]).tolist() == [2, 2, 1, 1, 0]
    assert len(run) == 4


def test_a_radius_just_below_does_not_count():
    run = Outcomes("run", [0], [1], [1], [np.nextafter(0.25, 0)])
    assert certified_accuracy(run, 0.25).tolist() == [0.0]


def test_a_right_answer_with_radius_zero_counts_at_zero():
    assert certified_accuracy(Outcomes("run", [0], [1], [1], [0.0]), [0, 1e-300]).tolist() == [1.0, 0.0]


def test_arrays_are_copies_and_read_only(run):
    radius = np.array([0.5])
    other = Outcomes("other", [0], [1], [1], radius)
    radius[0] = 9.0
    assert other.radius.tolist() == [0.5]
    with pytest.raises(ValueError, match="read-only"):
        run.radius[0] = 9.0


@pytest.mark.parametrize("radii", [[-0.1], [0, float("nan")]])
def test_radii_of_certified_accuracy_are_checked(run, radii):
    with pytest.raises(UsageError, match="0 or larger"):
        certified_accuracy(run, radii)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-1, 1), st.floats(0, 4)), min_size=1, max_size=8))
def test_curve_is_the_step_function(answers):
    label, predict, radius = (np.array(column) for column in zip(*answers, strict=True))
    run = Outcomes("run", np.arange(len(answers)), label, predict, np.where(predict < 0, 0.0, radius))
    radii, accuracy = curve(run)
    assert radii[0] == 0.0
    assert (np.diff(radii) > 0).all()
    probes = np.concatenate([radii, (radii[1:] + radii[:-1]) / 2])
    at = np.searchsorted(radii, probes)
    assert (certified_accuracy(run, probes) == accuracy[at]).all()
    assert certified_accuracy(run, np.nextafter(radii[-1], 9)).item() == 0.0
    # The ACR is the area under the curve.
    assert np.sum(np.diff(radii) * accuracy[1:]) == pytest.approx(average_certified_radius(run), abs=1e-12)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (([0, 1], [1], [1], [0.5]), "equal lengths"),
        (([], [], [], []), "no inputs"),
        ((0, 1, 1, 0.5), "no inputs"),
        (([0, 0], [1, 1], [1, 1], [0.5, 0.5]), "twice"),
        (([0], [1.5], [1], [0.5]), "its column label has a value that is not int64"),
        (([0], [-1], [-1], [0.0]), "input 0 has a negative label"),
        (([0], [1], [-2], [0.0]), "input 0 has a negative predict"),
        (([0], [1], [1], [float("nan")]), "input 0 has a radius that is not a number from 0 to 1e15"),
        (([0], [1], [1], [float("inf")]), "input 0 has a radius that is not a number from 0 to 1e15"),
        (([0], [1], [1], [-0.5]), "input 0 has a radius that is not a number from 0 to 1e15"),
        (([0], [1], [1], ["far"]), "its column radius holds string and not double"),
        (([0], [1], [-1], [0.5]), "input 0 abstains, but has a radius above 0"),
    ],
)
def test_impossible_outcomes_are_refused(arrays, said):
    with pytest.raises(UsageError, match=f"^run: .*{said}"):
        Outcomes("run", *arrays)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"index": [7, 8, 7]}, "the row of input 7 appears twice"),
        ({"label": [0, 1, -4]}, "input 9 has a negative label"),
        ({"predict": [0, -2, 1]}, "input 8 has a negative predict"),
        ({"radius": [0.5, float("nan"), 0.1]}, "input 8 has a radius that is not"),
        ({"radius": [0.5, 0.1, -0.25]}, "input 9 has a radius that is not"),
        ({"predict": [0, 1, -1]}, "input 9 abstains, but has a radius above 0"),
        ({"label": [0, None, 1]}, "input 8 has no label"),
        (
            {"predict": [0.0, 1.0, float("nan")]},
            "its column predict has a value that is not int64",
        ),
    ],
)
def test_the_input_of_a_damaged_row_is_named(change, said):
    columns = {"index": [7, 8, 9], "label": [0, 1, 1], "predict": [0, 1, 1], "radius": [0.5, 0.2, 0.1]}
    with pytest.raises(UsageError, match=f"^run: .*{said}"):
        Outcomes("run", **{**columns, **change})


def test_from_table():
    columns = {"radius": [0.5], "predict": [3], "label": [3], "index": [7], "seconds": [1.0]}
    run = Outcomes.from_table("run", pa.table({**columns, "norm": ["linf"]}))
    assert Outcomes.from_table("run", pa.table(columns)).norm is None
    assert (run.index.item(), run.label.item(), run.predict.item(), run.radius.item()) == (7, 3, 3, 0.5)
    assert run.norm is Norm.LINF
    with pytest.raises(UsageError, match=r"row of input 7 has no label|its column label"):
        Outcomes.from_table("run", pa.table({**columns, "label": pa.array([None], pa.int64())}))
    with pytest.raises(UsageError, match=r"run has no label and no radius; .* needs index, label, predict, radius"):
        Outcomes.from_table("run", pa.table({"index": [7], "predict": [3]}))


def test_common_norm(run):
    one, other = (Outcomes(norm.value, [0], [1], [1], [0.5], norm) for norm in (Norm.L2, Norm.L1))
    assert common_norm([run, run]) is None
    assert common_norm([run, one, run]) is Norm.L2
    with pytest.raises(UsageError, match=r"l2 \(ℓ2\) and l1 \(ℓ1\) have radii in different norms .* by itself"):
        common_norm([run, one, other])
    with pytest.raises(UsageError, match="no runs"):
        common_norm([])


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize(("successes", "total"), [(0, 1), (1, 1), (0, 500), (326, 500), (500, 500), (9999, 10000)])
def test_wilson_interval_agrees_with_statsmodels(successes, total, confidence):
    expected = proportion_confint(successes, total, alpha=1 - confidence, method="wilson")
    assert wilson_interval(successes, total, confidence) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("text", "radii"),
    [
        ("0:2:0.25", tuple(i / 4 for i in range(9))),
        ("0:1:0.1", (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),
        ("0.5:1:0.3", (0.5, 0.8)),
        ("1:1:0.5", (1.0,)),
        ("0,0.5, 1", (0.0, 0.5, 1.0)),
        ("1e-2", (0.01,)),
    ],
)
def test_parse_radii(text, radii):
    assert parse_radii(text) == radii


@pytest.mark.parametrize(
    "text",
    [
        "",
        " , ",
        "a",
        "0:2",
        "0:2:0",
        "0:2:-1",
        "2:0:0.5",
        "-1,0",
        "nan",
        "0:inf:1",
        "snan",
        "0,0",
        "0:2:0.25:1",
        "1e400",
        "0:1:1e-9",
        "0:50:1e-999999",
        "0;1",
    ],
)
def test_malformed_radii_are_refused(text):
    with pytest.raises(UsageError, match=f"radii '{text}' must"):
        parse_radii(text)


@pytest.mark.parametrize(
    ("value", "text"), [(0.5375, "0.538"), (0.5385, "0.538"), (1.2117, "1.212"), (0.0, "0.000"), (1e-9, "0.000")]
)
def test_acr_text(value, text):
    assert acr_text(value) == text
