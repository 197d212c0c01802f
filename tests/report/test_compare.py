"""Comparing two runs: against statsmodels and SciPy, on runs that do not differ and on runs that do."""

from __future__ import annotations

import doctest
import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from smoothcert.report import comparison as module
from smoothcert.report.comparison import compare, holm, verdict
from smoothcert.report.metrics import average_certified_radius
from smoothcert.report.tables.comparison import render_comparison, rich_comparison
from smoothcert.report.tables.layout import FORMATS
from smoothcert.store import Origin, Outcomes, read_log
from smoothcert.types import Norm, UsageError


def outcomes(radius, name="run", index=None, predict=None, label=None, norm=Norm.L2, origin=None):
    radius = np.asarray(radius, dtype=float)
    ones = np.ones(len(radius), dtype=int)
    predict = ones if predict is None else np.asarray(predict)
    index = np.arange(len(radius)) if index is None else index
    return Outcomes(
        name, index, ones if label is None else label, predict, np.where(predict < 0, 0.0, radius), norm, origin
    )


def exchangeable(generator, inputs):
    """Two runs whose radii differ by chance only, some wrong and some abstentions among them."""
    shared = generator.gamma(2.0, 0.3, size=inputs)
    runs = []
    for name in ("one", "two"):
        radius = np.maximum(shared + generator.normal(0, 0.2, size=inputs), 0.0).round(2)
        predict = generator.choice([1, 1, 1, 1, 0, -1], size=inputs)
        runs.append(outcomes(radius, name, predict=predict))
    return runs


def test_examples():
    assert doctest.testmod(module).failed == 0


def test_certified_accuracies_agree_with_statsmodels():
    one, two = exchangeable(np.random.default_rng(4), 300)
    found = compare(one, two, [0, 0.25, 0.5, 1.0])
    exact = []
    for at in found.radii:
        a, b = (run.correct & (run.radius >= at.radius) for run in (one, two))
        table = [[(a & b).sum(), (a & ~b).sum()], [(~a & b).sum(), (~a & ~b).sum()]]
        assert at.certified == (a.sum(), b.sum())
        assert at.only == (table[0][1], table[1][0])
        exact.append(mcnemar(table, exact=True).pvalue)
        assert at.p_value == pytest.approx(exact[-1], abs=1e-12)
    assert [at.corrected for at in found.radii] == pytest.approx(multipletests(exact, method="holm")[1], abs=1e-12)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_holm_agrees_with_statsmodels(count):
    for p_values in np.random.default_rng(count).uniform(0, 0.3, size=(3, count)):
        assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1], abs=1e-12)


def test_everything_by_hand():
    one = outcomes([0.9, 0.6, 0.3, 0.2, 0.0], "one", index=[10, 4, 7, 2, 99])
    two = outcomes([0.1, 0.7, 0.3, 0.5], "two", index=[2, 4, 7, 10], predict=[1, 1, -1, 0])
    found = compare(one, two, [0, 0.5])
    assert found.inputs == 4
    assert found.acr == pytest.approx((2.0 / 4, 0.8 / 4))  # two is wrong on 10 and abstains on 7
    assert found.abstained == (0, 1)
    assert found.longer == (3, 1)
    assert found.sign_p_value == pytest.approx(2 * 5 / 16)
    assert [(at.certified, at.only) for at in found.radii] == [((4, 2), (2, 0)), ((2, 1), (1, 0))]
    assert [(at.index, at.label, at.predict, at.radius) for at in found.largest] == [
        (10, 1, (1, 0), (0.9, 0.5)),
        (7, 1, (1, -1), (0.3, 0.0)),
        (2, 1, (1, 1), (0.2, 0.1)),
        (4, 1, (1, 1), (0.6, 0.7)),
    ]
    assert found.remarks[0] == "1 of the 5 inputs of one were left out: the other run lacks them."


def test_the_two_sides_are_alike():
    one, two = exchangeable(np.random.default_rng(1), 200)
    there, back = compare(one, two, [0, 0.5]), compare(two, one, [0, 0.5])
    assert there.acr == back.acr[::-1]
    assert there.longer == back.longer[::-1]
    assert there.sign_p_value == back.sign_p_value
    assert there.acr_p_value == back.acr_p_value
    assert there.interval == pytest.approx((-back.interval[1], -back.interval[0]), abs=1e-9)
    assert [at.only for at in there.radii] == [at.only[::-1] for at in back.radii]


def test_runs_that_do_not_differ():
    """Where nothing differs but chance, tests at 5 % reject at most so often, and intervals hold the truth."""
    generator, pairs = np.random.default_rng(7), 300
    found = [compare(*exchangeable(generator, 80), [0, 0.25, 0.5, 1.0]) for _ in range(pairs)]
    most = 0.05 + 3 * np.sqrt(0.05 * 0.95 / pairs)
    assert np.mean([any(at.corrected <= 0.05 for at in one.radii) for one in found]) <= most
    for place in range(4):
        assert np.mean([one.radii[place].p_value <= 0.05 for one in found]) <= most
    assert np.mean([one.sign_p_value <= 0.05 for one in found]) <= most
    rejected = np.mean([one.acr_p_value <= 0.05 for one in found])
    assert 0.02 <= rejected <= most
    assert 0.91 <= np.mean([one.interval[0] <= 0 <= one.interval[1] for one in found]) <= 0.98
    assert np.mean([one.better is not None for one in found]) <= most


def test_intervals_hold_a_true_difference():
    """The first run of each pair is longer by 0.05 on average over all inputs that there could be."""
    generator, held = np.random.default_rng(8), []
    for _ in range(200):
        one, two = (outcomes(generator.gamma(2.0, 0.3, size=100), name) for name in ("one", "two"))
        better = outcomes(one.radius + generator.choice([0.0, 0.1], size=100), "one")
        low, high = compare(better, two, [0]).interval
        held.append(low <= 0.05 <= high)
    assert 0.90 <= np.mean(held) <= 0.985


def test_few_inputs_prove_nothing():
    one, two = outcomes([0.9, 0.8, 0.7, 0.6, 0.5], "one"), outcomes([0.1] * 5, "two")
    found = compare(one, two, [0.5])
    assert found.interval[0] > 0  # a bootstrap alone would be sure
    assert found.better is None
    assert verdict(found).startswith("No difference in ACR that 5 inputs could show: one minus two is 0.600")


def test_published_runs(shared_data):
    one, two = (
        Outcomes.from_table(name, read_log(shared_data / "catrs-fmnist-050" / f"{name}.tsv").table)
        for name in ("cat-rs", "cohen")
    )
    found = compare(one, two)
    assert found.acr == (average_certified_radius(one), average_certified_radius(two))
    assert found.better == 0
    said = verdict(found)
    # Table 4 of the CAT-RS paper: ACR 1.274 and 1.056; the baseline has the better clean accuracy.
    assert said.startswith("cat-rs is better: its ACR is larger by 0.218 (95 % interval 0.2")
    assert "However, cohen certifies more inputs at radius 0, 0.25." in said
    assert verdict(compare(two, one)) == said


def test_equal_runs():
    one = outcomes([0.5, 0.2, 0.9], "one")
    found = compare(one, outcomes([0.5, 0.2, 0.9], "two"))
    assert (found.sign_p_value, found.acr_p_value, found.interval, found.largest) == (1.0, 1.0, (0.0, 0.0), ())
    assert {at.corrected for at in found.radii} == {1.0}
    assert "No difference" in verdict(found)


def test_what_differs_besides_is_told():
    origins = [Origin(data="mnist test", n=100_000, alpha=0.001), Origin(data="fmnist test", n=1_000, alpha=0.01)]
    found = compare(*(outcomes([0.5], name, origin=origin) for name, origin in zip("ab", origins, strict=True)))
    assert verdict(found).endswith("The runs are about different data (mnist test and fmnist test).")
    assert found.remarks[:2] == (
        "The runs have different numbers of samples (100,000 and 1,000); radii depend on it, and --at-n, --at-alpha or "
        "--bound make them comparable.",
        "The runs have different alpha (0.001 and 0.01); radii depend on it, and --at-n, --at-alpha or --bound make "
        "them comparable.",
    )
    alike = compare(*(outcomes([0.5], name, origin=origins[0]) for name in "ab"))
    assert not any("different" in text for text in (verdict(alike), *alike.remarks))


def test_no_run_is_better_than_one_on_other_data():
    origins = [Origin(data="mnist test"), Origin(data="fmnist test")]
    pairs = zip("ab", ([0.9] * 20, [0.1] * 20), strict=True)
    one, two = (outcomes(radii, name) for name, radii in pairs)
    assert "a is better" in verdict(compare(one, two))
    assert "a is better" in verdict(compare(replace(one, origin=origins[0]), two))  # unknown
    assert "a is better" in verdict(compare(replace(one, origin=origins[0]), replace(two, origin=origins[0])))
    said = verdict(compare(replace(one, origin=origins[0]), replace(two, origin=origins[1])))
    assert "better" not in said
    assert "a has the larger radii" in said


def test_shown_in_every_format():
    one, two = exchangeable(np.random.default_rng(2), 50)
    found = compare(outcomes(one.radius + 0.5, "a_b"), two, [0, 0.25])
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(rich_comparison(found))
    texts = {format: render_comparison(found, format) for format in FORMATS} | {"terminal": console.export_text()}
    for format, text in texts.items():
        name = r"a\_b" if format in ("md", "latex") else "a_b"
        assert f"{name} is better: its ACR is larger by" in text.replace("\n", " "), format
        assert "Inputs that differ most" in text or format in ("csv", "latex")
    assert texts["md"].startswith(r"a\_b is better")


def test_radii_of_single_inputs_are_rounded_down():
    found = compare(outcomes([0.24996, 0.1], "one"), outcomes([0.1, 0.1], "two", index=[0, 5]))
    assert "| 0 | 1 | 1 | 1 | 0.249 | 0.100 |" in render_comparison(found, "md")


def test_refusals():
    one = outcomes([0.5, 0.2], "one")
    with pytest.raises(UsageError, match=r"one \(ℓ2\) and two \(ℓ1\) have radii in different norms"):
        compare(one, outcomes([0.5, 0.2], "two", norm=Norm.L1))
    with pytest.raises(UsageError, match="one and two have no input in common"):
        compare(one, outcomes([0.5], "two", index=[7]))
    with pytest.raises(UsageError, match="the label of input 1 is 1 in one and 3 in the other"):
        compare(one, outcomes([0.5, 0.2], "two", label=np.array([1, 3])))
    for radii in ([-0.5], [float("nan")], []):
        with pytest.raises(UsageError, match="0 or larger"):
            compare(one, one, radii)
    with pytest.raises(UsageError, match="unknown table format 'xml'"):
        render_comparison(compare(one, one), "xml")
