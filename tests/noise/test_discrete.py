"""Discrete noise: its thresholds against published digits and enumeration, its samples, and the grid it needs."""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from smoothcert import Cohen, Smoothed
from smoothcert.noise import Discrete
from smoothcert.noise.discrete import MOST_CHANGES
from smoothcert.types import UsageError

# The thresholds published with Lee et al. (2019), rounded up: for ImageNet (a = 0.2, 8-bit) and binary MNIST (a = 0.8).
PUBLISHED = {
    (0.2, 255): """0.69686274509803921569 0.85373533256439830835 0.97898829668830238747 0.99493645881485561183
                   0.99619020439204454170 0.99744272681434420339""",
    (0.8, 1): "0.875 0.96875 0.9921875",
}


def masses(keep: Fraction, levels: int, changes: int, more: int = 0) -> list[tuple[Fraction, Fraction]]:
    """Every outcome's probability under 0…0 and under an input with so many ones, of ``changes + more`` pixels."""
    other = (1 - keep) / levels
    pairs = []
    for outcome in itertools.product(range(levels + 1), repeat=changes + more):
        first = second = Fraction(1)
        for place, value in enumerate(outcome):
            first *= keep if value == 0 else other
            second *= keep if value == (place < changes) else other
        pairs.append((first, second))
    return sorted(pairs, key=lambda pair: pair[0] / pair[1], reverse=True)


def by_multinomials(keep: Fraction, levels: int, changes: int) -> list[tuple[Fraction, Fraction]]:
    """The masses of the classes u − v, by the sum over all u, v and w."""
    other = (1 - keep) / levels
    first, second = defaultdict(Fraction), defaultdict(Fraction)
    for u in range(changes + 1):
        for v in range(changes + 1 - u):
            w = changes - u - v
            ways = math.comb(changes, u) * math.comb(changes - u, v) * ((levels - 1) * other) ** w
            first[u - v] += ways * keep**u * other**v
            second[u - v] += ways * keep**v * other**u
    return [(first[key], second[key]) for key in sorted(first, reverse=True)]


def least(pairs: list[tuple[Fraction, Fraction]], p: Fraction) -> Fraction:
    """ρ(p): the least mass under the second input of a set with mass p under the first."""
    first = second = Fraction(0)
    for ours, theirs in pairs:
        if first + ours >= p:
            return second + (p - first) / ours * theirs if ours else second
        first, second = first + ours, second + theirs
    return second


def inverse(pairs: list[tuple[Fraction, Fraction]]) -> Fraction:
    """ρ⁻¹(½)."""
    first = second = Fraction(0)
    for ours, theirs in pairs:
        if second + theirs >= Fraction(1, 2):
            return first + (Fraction(1, 2) - second) / theirs * ours
        first, second = first + ours, second + theirs
    raise AssertionError


@pytest.mark.parametrize("setting", PUBLISHED)
def test_published_thresholds_to_the_last_digit(setting):
    for r, digits in enumerate(PUBLISHED[setting].split(), 1):
        exact = Discrete(*setting).exact_threshold(r)
        places = 10 ** len(digits.partition(".")[2])
        assert math.ceil(exact * places) == Fraction(digits) * places
        assert Discrete(*setting).threshold(r) == pytest.approx(float(digits), abs=2e-16)


@pytest.mark.parametrize(
    ("keep", "levels", "most"), [(0.8, 1, 6), (0.51, 1, 6), (0.4, 2, 5), (0.9, 2, 5), (0.3, 3, 4), (0.7, 4, 3)]
)
def test_thresholds_by_enumeration_of_every_outcome(keep, levels, most):
    exact = Fraction(str(keep))
    for r in range(most + 1):
        assert Discrete(keep, levels).exact_threshold(r) == inverse(masses(exact, levels, r))


def test_pixels_that_do_not_differ_do_not_matter():
    for keep, levels, r, more in ((0.8, 1, 2, 3), (0.5, 2, 1, 2), (0.4, 3, 2, 2)):
        assert Discrete(keep, levels).exact_threshold(r) == inverse(masses(Fraction(str(keep)), levels, r, more))


@pytest.mark.parametrize("setting", [(0.8, 1), (0.2, 255), (0.05, 255), (0.123456789, 16)])
def test_thresholds_by_the_sum_over_multinomials(setting):
    keep, levels = Fraction(str(setting[0])), setting[1]
    for r in (1, 2, 3, 8):
        assert Discrete(*setting).exact_threshold(r) == inverse(by_multinomials(keep, levels, r))


def test_binary_thresholds_by_the_binomial_distribution_of_scipy():
    for r in (5, 20, 61):
        kept = np.arange(r, -1, -1)
        first, second = stats.binom.pmf(kept, r, 0.8), stats.binom.pmf(kept, r, 0.2)
        place = int(np.argmax(np.cumsum(second) >= 0.5))
        rest = 1 - first[:place].sum() - (0.5 - second[:place].sum()) / second[place] * first[place]
        assert 1 - Discrete(0.8, 1).exact_threshold(r) == pytest.approx(rest, rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("setting", [(0.8, 1), (0.2, 255), (0.51, 1), (0.01, 255)])
def test_thresholds_grow_and_stay_below_one(setting):
    exact = [Discrete(*setting).exact_threshold(r) for r in range(60)]
    assert exact[0] == Fraction(1, 2)
    assert all(a < b < 1 for a, b in itertools.pairwise(exact))


@pytest.mark.parametrize("setting", [(0.8, 1), (0.2, 255), (0.4, 2)])
def test_radius_is_the_most_changes_that_leave_more_than_one_half(setting):
    noise, keep = Discrete(*setting), Fraction(str(setting[0]))
    classes = [by_multinomials(keep, setting[1], r) for r in range(1, 9)]
    rng = np.random.default_rng(0)
    p = np.concatenate([rng.uniform(0.4, 0.9, 15), 1 - 10 ** rng.uniform(-2.5, -1, 15)])
    for bound, radius in zip(p.tolist(), noise.radius(p).tolist(), strict=True):
        proved = [least(pairs, Fraction(bound)) > Fraction(1, 2) for pairs in classes]
        assert proved == sorted(proved, reverse=True)
        assert min(radius, 8) == sum(proved)
        assert radius.is_integer()


def test_a_bound_at_the_threshold_proves_nothing():
    noise = Discrete(0.8, 1)  # its thresholds are floating-point numbers
    for r, exact in enumerate((0.875, 0.96875, 0.9921875), 1):
        assert noise.radius([exact, math.nextafter(exact, 1)]).tolist() == [r - 1, r]
        assert noise.threshold(r) == math.nextafter(exact, 1)
    other = Discrete(0.2, 255)  # and its are not
    for r in range(1, 9):
        threshold = float(other.threshold(r))
        assert threshold > other.exact_threshold(r) >= Fraction(math.nextafter(threshold, 0))
        assert other.radius([math.nextafter(threshold, 0), threshold]).tolist() == [r - 1, r]


def test_a_radius_between_two_whole_numbers_needs_the_larger():
    noise = Discrete(0.2, 255)
    assert noise.threshold([0.1, 1.0, 1.01, 2.0]).tolist() == [*[noise.threshold(1)] * 2, *[noise.threshold(2)] * 2]
    assert noise.threshold(0) == math.nextafter(0.5, 1)


def test_no_radius_exceeds_the_dimension():
    noise = Discrete(0.8, 1)
    assert noise.radius([0.3, 0.9, 0.99999, 1.0], None, 3).tolist() == [0, 1, 3, 3]
    assert noise.radius(1.0) == math.inf
    assert noise.threshold([2, 3, 4, 1000, math.inf], "l0", 3).tolist() == noise.threshold([2, 3, 3, 3, 3]).tolist()
    assert noise.threshold(MOST_CHANGES + 1) == 1.0
    assert Discrete(0.501, 1).radius(0.9999999) == MOST_CHANGES  # looked for no further


def test_a_hundred_thresholds_take_well_below_a_second():
    begin = time.process_time()
    noise = Discrete(0.21, 255)
    noise.radius(np.linspace(0, 1, 10_001))
    assert noise.exact_threshold(100) < 1
    assert all(noise.exact_threshold(r) < 1 for r in range(100))
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("setting", [(0.8, 1), (0.2, 255), (0.3, 16), (0.4, 2)])
def test_the_scale_is_the_largest_standard_deviation_of_a_value(setting):
    keep, levels = setting
    values = np.arange(levels + 1) / levels
    deviations = []
    for value in range(levels + 1):
        mass = np.full(levels + 1, (1 - keep) / levels)
        mass[value] = keep
        deviations.append(math.sqrt(mass @ values**2 - (mass @ values) ** 2))
    assert Discrete(*setting).scale == pytest.approx(max(deviations), rel=1e-12)


@pytest.mark.parametrize(("keep", "levels"), [(0.8, 1), (0.2, 255), (0.4, 3), (0.3, 16)])
def test_samples_keep_their_value_or_take_any_other(keep, levels):
    noise, copies = Discrete(keep, levels), 60_000
    values = torch.tensor([0, levels // 2, levels]) / levels
    out = noise.sample(values, torch.empty(copies, 3), torch.Generator().manual_seed(2))
    grid = torch.arange(levels + 1).float() / levels
    places = torch.searchsorted(grid, out)
    assert torch.equal(grid[places], out)  # exactly grid values, as k/K in single precision
    for column, value in enumerate((0, levels // 2, levels)):
        expected = np.full(levels + 1, (1 - keep) / levels)
        expected[value] = keep
        counts = np.bincount(places[:, column].numpy(), minlength=levels + 1)
        assert stats.chisquare(counts, copies * expected).pvalue > 1e-3
    kept = (out == values).double()
    assert np.abs(np.corrcoef(kept.T.numpy()) - np.eye(3)).max() < 0.02  # pixels change independently


def test_what_is_drawn_does_not_depend_on_the_input():
    noise, x = Discrete(0.3, 16), torch.tensor([0.0, 1 / 16, 0.5, 1.0])

    def moves(x):
        out = noise.sample(x, torch.empty(1_000, 4), torch.Generator().manual_seed(7))
        return ((out - x) * 16).round().long() % 17

    assert torch.equal(moves(x), moves(torch.zeros(4)))


def test_an_input_is_seen_as_its_grid_value():
    """Rounding of the input in single precision never reaches the model."""
    noise, exact = Discrete(0.999, 255), torch.arange(256).float() / 255
    sloppy = torch.arange(256).float() * (1 / 255)
    assert not torch.equal(sloppy, exact)
    out = noise.sample(sloppy, torch.empty(20, 256), torch.Generator().manual_seed(0))
    assert (out == exact).float().mean() > 0.99
    double = noise.sample(sloppy, torch.empty(20, 256, dtype=torch.float64), torch.Generator().manual_seed(0))
    assert torch.isin(double, torch.arange(256).double() / 255).all()


@pytest.mark.parametrize("levels", [1, 15, 16, 255, 65_535])
def test_takes_inputs_on_the_grid(levels):
    grid = torch.arange(levels + 1)
    for x in (grid / levels, grid.double() / levels, grid.float() * (1 / levels)):
        Discrete(0.9, levels).check(x)


@pytest.mark.parametrize(
    ("levels", "x", "match"),
    [
        (1, [0.0, 1.0, 0.5], r"1 of 3 values of the input, such as 0\.5, are not on the grid .* x\.round\(\)"),
        (255, [0.1, 0.2, 0.3, 0.4], r"2 of 4 values .* such as 0\.1, 0\.3, .* \(x \* 255\)\.round\(\) / 255"),
        (255, [1 / 255 + 1e-5, 0.0], "1 of 2 values"),
        (255, [256 / 255, 0.0, -1 / 255], "2 of 3 values"),
        (1, [[0.2] * 50], r"50 of 50 values of the input, such as 0\.2, 0\.2, 0\.2, are not"),
    ],
)
def test_refuses_inputs_off_the_grid(levels, x, match):
    with pytest.raises(UsageError, match=match):
        Discrete(0.9, levels).check(torch.tensor(x))


def test_an_input_off_the_grid_is_refused_before_sampling():
    def model(batch):
        raise AssertionError("sampled")

    smoothed = Smoothed(model, Discrete(0.8, 1), num_classes=2)
    for question in (smoothed.certify, smoothed.predict):
        with pytest.raises(UsageError, match=r"1 of 4 values .* not on the grid"):
            question(torch.tensor([0.0, 1.0, 0.3, 0.0]))


def test_a_certificate_counts_pixels():
    """A vote of nine pixels, all 0: five changes would win it."""

    def most_are_dark(batch):
        bright = batch.flatten(1).sum(dim=1)
        return torch.stack([4.5 - bright, bright - 4.5], dim=1)

    certificate = Smoothed(most_are_dark, Discrete(0.9, 1)).certify(torch.zeros(3, 3), Cohen(n=10_000), seed=0, index=0)
    p = stats.binom.cdf(4, 9, 0.1)
    assert certificate.label == 0
    assert certificate.norm.value == "l0"
    assert certificate.radius == Discrete(0.9, 1).radius(certificate.p_lower, "l0", 9)
    assert certificate.p_lower < p
    assert 1 <= certificate.radius <= 4


@pytest.mark.parametrize("levels", [0, -1, 1.5, 65_536, True, "1", None])
def test_refuses_levels(levels):
    with pytest.raises(UsageError, match="levels must be a whole number from 1"):
        Discrete(0.8, levels)


@pytest.mark.parametrize(("keep", "levels"), [(0.5, 1), (1.0, 1), (0.1, 1), (1.2, 255), (1 / 256, 255), (0.25, 3)])
@pytest.mark.parametrize("change", [lambda keep: keep, lambda keep: float("nan"), lambda keep: str(keep)])
def test_refuses_keep(keep, levels, change):
    with pytest.raises(UsageError, match=rf"keep must be above 1/{levels + 1}, .* and below 1"):
        Discrete(change(keep), levels)


def test_refuses_norms_and_counts():
    with pytest.raises(UsageError, match=r"discrete noise does not certify the norm 'l2'; it certifies: l0"):
        Discrete(0.8, 1).threshold(1, norm="l2")
    for wrong in (-1, 1.5, True, MOST_CHANGES + 1):
        with pytest.raises(UsageError, match="whole number of coordinates"):
            Discrete(0.8, 1).exact_threshold(wrong)
