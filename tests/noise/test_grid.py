"""Noise on a grid: its thresholds, its draws, the inputs it takes, and what it takes off a radius."""

from __future__ import annotations

import pickle
from bisect import bisect_right
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from smoothcert.noise import Gaussian, Uniform, noise_from_config
from smoothcert.noise.drawing import StepTable
from smoothcert.noise.thresholds import BITS, Thresholds, gaussian_thresholds, uniform_thresholds
from smoothcert.sampling.copies import NoisyCopies
from smoothcert.types import Norm, UsageError

WHOLE = 2**BITS
SCALES = [(0.25, 255), (0.5, 255), (1.0, 255), (0.12, 256), (0.1, 16), (0.3, 1), (5.0, 1), (1e-3, 1), (0.01, 1000)]


def enclosed(thresholds: Thresholds, true) -> list[bool]:
    """Whether each threshold lies between its integers; ``true`` gives P(z ≤ i) in units of 2⁻⁶²."""
    pairs = zip(thresholds.lower.tolist(), thresholds.upper.tolist(), strict=True)
    return [low <= true(j - thresholds.reach - 1) <= high for j, (low, high) in enumerate(pairs)]


def normal(sigma: float, grid: int):
    return lambda i: mpmath.ncdf((mpmath.mpf(2 * i + 1) / 2) / (mpmath.mpf(sigma) * grid)) * WHOLE


@pytest.mark.parametrize(("sigma", "grid"), SCALES)
def test_every_gaussian_threshold_is_right_to_the_last_unit(sigma, grid):
    found = gaussian_thresholds(sigma, grid)
    assert len(found.lower) == 2 * found.reach + 2
    with mpmath.workprec(200):
        assert all(enclosed(found, normal(sigma, grid)))
        if found.reach > 5:  # and a neighbouring sigma has other thresholds
            assert not all(enclosed(found, normal(float(np.nextafter(sigma, 9)), grid)))
    assert (found.upper - found.lower).max() <= 1  # 2⁻⁶², where 2⁻⁵⁸ is asked for
    assert (found.lower[1:] >= found.upper[:-1]).all()


def test_the_finest_grid():
    found = gaussian_thresholds(0.02, 65_535)
    with mpmath.workprec(200):
        true = normal(0.02, 65_535)
        for j in range(0, len(found.lower), 97):
            assert found.lower[j] <= true(j - found.reach - 1) <= found.upper[j]


@pytest.mark.parametrize(
    ("lam", "grid"), [(0.5, 255), (1.0, 255), (0.3, 255), (2.0, 16), (0.1, 1), (0.5, 1), (1e-9, 7)]
)
def test_every_uniform_threshold_is_an_exact_rational(lam, grid):
    found = uniform_thresholds(lam, grid)

    def true(i: int) -> Fraction:
        p = Fraction(1, 2) + Fraction(2 * i + 1, 2) / (2 * grid * Fraction(lam))
        return min(max(p, Fraction(0)), Fraction(1)) * WHOLE

    assert all(enclosed(found, true))
    assert (found.upper - found.lower).max() <= 1
    assert found.lower[0] == found.upper[0] == 0  # no tails
    assert found.lower[-1] == found.upper[-1] == WHOLE
    assert (found.lower[1:] >= found.upper[:-1]).all()


@pytest.mark.parametrize(
    "found", [gaussian_thresholds(0.5, 255), gaussian_thresholds(0.3, 1), uniform_thresholds(0.3, 255)]
)
def test_the_table_settles_a_cell_only_if_all_its_words_mean_the_same(found):
    table = StepTable(found)
    cells, bounds, values = table.arrays
    lower, upper = found.lower.tolist(), found.upper.tolist()

    def meaning(word: int) -> float | None:
        """The step that all real numbers from the word to the next lead to, by the definition."""
        passed = bisect_right(upper, word)
        certain = passed == len(lower) or word + 1 <= lower[passed]
        inside = 0 < passed < len(lower)
        return passed - 1 - found.reach if certain and inside else None

    for cell, step in enumerate(cells.tolist()):
        first, last = (meaning((cell + more << BITS - 16) - more) for more in (0, 1))
        assert (step == table.none) == (first is None or first != last)
        assert step in (table.none, first)
    words = sorted({w + d for w in lower + upper for d in (-1, 0, 1) if 0 <= w + d < WHOLE})
    found_steps = values[np.searchsorted(bounds, words, side="right")].tolist()
    assert [None if step == table.none else step for step in found_steps] == [meaning(word) for word in words]


@pytest.mark.parametrize(
    "noise", [Gaussian(0.25, 255), Gaussian(1.0, 255), Gaussian(0.5, 16), Uniform(0.5, 255)], ids=repr
)
def test_an_invalid_draw_is_rare(noise):
    found = noise._thresholds(noise._width, noise.grid)
    invalid = int((found.upper - found.lower).sum() + found.lower[0] + WHOLE - found.upper[-1])
    assert invalid / WHOLE < 2.0**-48


def drawn(noise, count: int, seed: int) -> np.ndarray:
    out = noise.sample(torch.zeros(1), torch.empty(count, 1), torch.Generator().manual_seed(seed))
    steps = (out.double() * noise.grid).round().long()
    assert torch.equal(out, steps.float() / noise.grid)
    return steps.flatten().numpy()


def cells_of(distribution, grid: int, steps: np.ndarray) -> float:
    """The p-value of a χ² test of steps against a continuous distribution rounded to the grid."""
    reach = int(np.abs(steps).max()) + 2
    edges = (np.arange(-reach, reach + 2) - 0.5) / grid
    edges[0], edges[-1] = -np.inf, np.inf
    expected = np.diff(distribution.cdf(edges)) * len(steps)
    observed = np.bincount(steps + reach, minlength=2 * reach + 1)
    inner = np.flatnonzero(expected >= 10)
    inner = np.arange(inner[0], inner[-1] + 1)
    pooled = [
        np.concatenate([[x[: inner[0]].sum()], x[inner], [x[inner[-1] + 1 :].sum()]]) for x in (observed, expected)
    ]
    keep = pooled[1] > 0
    assert pooled[0][~keep].sum() == 0
    return float(stats.chisquare(pooled[0][keep], pooled[1][keep] * len(steps) / pooled[1].sum()).pvalue)


@pytest.mark.parametrize(("sigma", "grid"), [(0.25, 255), (0.5, 255), (1.0, 255), (0.25, 16), (0.3, 1)])
def test_gaussian_draws_have_the_distribution_of_the_rounded_gaussian(sigma, grid):
    steps = drawn(Gaussian(sigma, grid), 2_000_000, seed=11)
    assert cells_of(stats.norm(scale=sigma), grid, steps) > 1e-3
    assert cells_of(stats.norm(scale=1.01 * sigma), grid, steps) < 1e-6
    assert cells_of(stats.norm(scale=sigma), grid, steps[np.abs(steps) < 3.3 * sigma * grid]) < 1e-9
    for distance in (1, 2, 3, 4, 4.5):  # the tails, one by one
        least = int(np.ceil(distance * sigma * grid))
        share = 2 * stats.norm.sf((least - 0.5) / grid / sigma)
        assert stats.binomtest(int((np.abs(steps) >= least).sum()), len(steps), share).pvalue > 1e-4


@pytest.mark.parametrize(("lam", "grid"), [(0.5, 255), (1.0, 255), (0.3, 16)])
def test_uniform_draws_have_the_distribution_of_the_rounded_uniform(lam, grid):
    steps = drawn(Uniform(lam, grid), 1_000_000, seed=12)
    assert np.abs(steps).max() == np.ceil(lam * grid - 0.5)
    assert cells_of(stats.uniform(-lam, 2 * lam), grid, steps) > 1e-3
    assert cells_of(stats.uniform(-1.02 * lam, 2.04 * lam), grid, steps) < 1e-9


@pytest.mark.parametrize("noise", [Gaussian(0.5, 255), Uniform(0.5, 255)], ids=repr)
def test_coordinates_and_copies_are_independent(noise):
    out = noise.sample(torch.zeros(4), torch.empty(100_000, 4), torch.Generator().manual_seed(3)).double().numpy()
    assert np.abs(np.corrcoef(out.T) - np.eye(4)).max() < 0.015
    assert abs(np.corrcoef(out[:-1, 0], out[1:, 0])[0, 1]) < 0.015


@pytest.mark.parametrize("noise", [Gaussian(0.5, 255), Uniform(0.5, 255)], ids=repr)
@pytest.mark.parametrize("shape", [(1, 7, 9), (5,)])
def test_copies_do_not_depend_on_the_batches_they_are_drawn_in(noise, shape):
    x = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(1)) / 255
    place = {"seed": 5, "index": 3, "stage": 1}

    def copies(sizes):
        filler, start, parts = NoisyCopies(x), 0, []
        for size in sizes:
            rows = torch.empty(size, *shape)
            filler.fill(rows, x, noise, start=start, **place)
            parts.append(rows)
            start += size
        return torch.cat(parts)

    assert torch.equal(copies([130]), copies([20, 1, 39, 70]))
    assert torch.equal(copies([130]), copies([7] * 18 + [4]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grid", [255, 16, 1000, 65_535])
def test_a_copy_is_the_quotient_of_its_integer_whatever_the_input_was(dtype, grid):
    places = torch.cat([torch.arange(-3000, 3000), torch.tensor([-(2**20), 2**20, 2**20 - 1])])
    at = places.to(dtype) / grid
    still = Uniform(1e-7, grid).sample(at, torch.empty(2, *at.shape, dtype=dtype))
    exact = np.array([float(Fraction(k, grid)) for k in places.tolist()])  # Python rounds to nearest
    if dtype == torch.float32:
        numbers = np.array(places.tolist(), np.float32)
        exact = (numbers / np.float32(grid)).astype(np.float64)  # which IEEE 754 rounds to nearest
    assert still[0].double().tolist() == still[1].double().tolist() == exact.tolist()
    noise = Gaussian(20 / grid, grid)
    moved = noise.sample(at, torch.empty(3, *at.shape, dtype=dtype), torch.Generator().manual_seed(2))
    steps = noise.sample(torch.zeros_like(at), torch.empty(3, *at.shape, dtype=dtype), torch.Generator().manual_seed(2))
    sums = (steps.double() * grid).round() + places
    assert torch.equal(moved, sums.to(dtype) / grid)


def test_a_half_precision_copy_is_rounded_once_more():
    x, noise = torch.arange(0, 256) / 255, Gaussian(0.5, 255)
    wide = noise.sample(x, torch.empty(2, 256), torch.Generator().manual_seed(1))
    narrow = noise.sample(x, torch.empty(2, 256, dtype=torch.bfloat16), torch.Generator().manual_seed(1))
    assert torch.equal(narrow, wide.bfloat16())


class Cut(Gaussian):
    """Gaussian noise whose thresholds are known so badly that some draws are invalid."""

    @staticmethod
    def _thresholds(sigma, grid):
        return cut(sigma, grid)


def cut(sigma: float, grid: int) -> Thresholds:
    whole, reach = gaussian_thresholds(sigma, grid), int(3 * sigma * grid)
    middle = slice(whole.reach - reach, whole.reach + reach + 2)
    return Thresholds(whole.lower[middle] - 2**44, whole.upper[middle], reach)


def test_an_invalid_draw_makes_its_whole_copy_nan():
    x, out = torch.full((1, 8, 8), 0.2), torch.empty(4_000, 1, 8, 8)
    Cut(0.5, 255).sample(x, out, torch.Generator().manual_seed(1))
    rows = out.isnan().flatten(1)
    invalid = rows.any(dim=1)
    assert torch.equal(invalid, rows.all(dim=1))
    thresholds = cut(0.5, 255)
    mass = (thresholds.upper - thresholds.lower).sum() + thresholds.lower[0] + WHOLE - thresholds.upper[-1]
    share = 1 - (1 - mass / WHOLE) ** 64
    assert 0.1 < share < 0.9
    assert stats.binomtest(int(invalid.sum()), len(out), share).pvalue > 1e-4
    assert torch.equal(out[~invalid], (out[~invalid] * 255).round() / 255)


def test_draws_beyond_the_last_threshold_are_invalid():
    whole = gaussian_thresholds(0.5, 255)
    middle = slice(whole.reach - 100, whole.reach + 102)  # z from −100 to 100
    table = StepTable(Thresholds(whole.lower[middle], whole.upper[middle], 100))
    out, invalid = table.draw(200_000, torch.device("cpu"), torch.Generator().manual_seed(1))
    assert sorted(out.unique().tolist()) == [table.none, *range(-100, 101)]
    assert (out == table.none).nonzero()[:, 0].tolist() == invalid.tolist()
    assert stats.binomtest(len(invalid), len(out), 2 * stats.norm.sf(100.5 / 127.5)).pvalue > 1e-4


@pytest.mark.parametrize("noise", [Gaussian(0.5, 255), Uniform(1.0, 255)], ids=repr)
def test_inputs_on_the_grid_are_taken(noise):
    k = torch.arange(-600, 600)
    noise.check(k.float() / 255)
    noise.check(k.double() / 255)
    noise.check((k.float() / 255).double())
    noise.check(k.float() * (1 / 255))
    noise.check(torch.tensor([2.0**20 / 255]))
    near = k.float() / 255
    for _ in range(2):
        noise.check(near)
        near = torch.nextafter(near, torch.full_like(near, 9.0))
    noise.check(torch.zeros(3, 0))


@pytest.mark.parametrize(
    "values",
    [
        [0.5],
        [0.0, 0.1234],
        [float("nan")],
        [float("inf")],
        [1e30],
        [2.0**21 / 255],
        [1 / 255 + 1e-7],
        [1e-8],
        [127.5 / 255],
    ],
)
def test_any_other_input_is_refused_in_a_sentence(values):
    x = torch.tensor(values, dtype=torch.float64)
    with pytest.raises(
        UsageError, match=r"1 of \d values of the input, such as .*, are not multiples of 1/255"
    ) as error:
        Gaussian(0.5, 255).check(x)
    for advice in ("(x * 255).round() / 255", "another grid", "--float", "grid=None"):
        assert advice in str(error.value)


def test_half_precision_cannot_hold_the_grid():
    with pytest.raises(UsageError, match="are not multiples of 1/255"):
        Gaussian(0.5, 255).check((torch.arange(256) / 255).bfloat16())
    Gaussian(0.5, 256).check((torch.arange(256) / 256).bfloat16())


def test_a_third_unit_in_the_last_place_is_too_far():
    k = torch.arange(1, 255).float()
    near = (k.double() / 255).numpy()
    unit = np.spacing(near.astype(np.float32)).astype(np.float64)
    noise = Gaussian(0.5, 255)
    noise.check(torch.from_numpy(near + 1.99 * unit))
    for value, step in zip(near, unit, strict=True):
        with pytest.raises(UsageError):
            noise.check(torch.tensor([value + 2.01 * step], dtype=torch.float64))


@settings(max_examples=200, deadline=None)
@given(
    grid=st.sampled_from([1, 2, 3, 16, 255, 1000, 65_535]),
    places=st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=20),
    moves=st.lists(st.floats(-1.9, 1.9), min_size=20, max_size=20),
    double=st.booleans(),
)
def test_an_offset_never_understates(grid, places, moves, double):
    values = []
    for k, move in zip(places, moves, strict=False):
        unit = float(np.spacing(np.float32(max(abs(k), 1) / grid)))
        values.append(k / grid + (move if double else round(move)) * unit)
    x = torch.tensor(values, dtype=torch.float64)
    x = x if double else x.float()
    try:
        Gaussian(0.5, grid).check(x)
    except UsageError:  # rounding pushed it past two units
        return
    gaps = [abs(Fraction(v) - Fraction(k, grid)) for v, k in zip(x.double().tolist(), places, strict=True)]
    lengths = {Norm.L1: sum(gaps), Norm.LINF: max(gaps)}
    for noise, norm in (
        (Uniform(0.5, grid), Norm.L1),
        (Uniform(0.5, grid), Norm.LINF),
        (Gaussian(0.5, grid), Norm.LINF),
    ):
        offset = Fraction(noise.offset(x, norm))
        assert lengths[norm] <= offset <= 2.001 * float(lengths[norm])
    offset, square = Fraction(Gaussian(0.5, grid).offset(x, Norm.L2)), sum(gap**2 for gap in gaps)
    assert square <= offset**2 <= 4.001 * float(square) + 1e-300
    assert (offset == 0) == (square == 0)


def test_offsets_of_tiny_numbers_do_not_vanish():
    for value in (5e-324, 1e-320, 1e-200, 1e-40):
        x = torch.full((4,), value, dtype=torch.float64)
        assert Fraction(Gaussian(0.5, 255).offset(x)) ** 2 >= 4 * Fraction(value) ** 2
        assert Fraction(Uniform(0.5, 255).offset(x)) >= 4 * Fraction(value)


def test_without_a_grid_there_is_no_offset_and_any_input_will_do():
    x = torch.tensor([0.1234, 7.0])
    for noise in (Gaussian(0.5), Uniform(0.5)):
        assert noise.offset(x) == 0.0
        assert noise.nearest(x) is x
        assert not noise.exact
        noise.check(x)
    with pytest.raises(UsageError, match="does not certify the norm"):
        Gaussian(0.5, 255).offset(x, Norm.L1)


def test_radius_and_threshold_account_for_the_offset():
    noise, offsets = Gaussian(0.5, 255), np.array([0.0, 2.0**-20, 0.1, 5.0])
    radius = noise.radius(0.9, offset=offsets)
    whole = float(noise.radius(0.9))
    assert radius[0] == whole
    assert all(
        Fraction(r) <= Fraction(whole) - Fraction(o)
        for r, o in zip(radius[1:3].tolist(), offsets[1:3].tolist(), strict=True)
    )
    assert radius == pytest.approx(np.maximum(whole - offsets, 0), abs=1e-12)
    threshold = noise.threshold(0.3, offset=offsets)
    assert threshold[0] == noise.threshold(0.3)
    assert threshold[2] >= noise.threshold(0.3 + 0.1)
    assert np.all(noise.radius(np.minimum(threshold + 1e-12, 1), offset=offsets)[:3] >= 0.3)
    assert np.all(noise.radius([0.5, 0.4], offset=0.1) == 0)


def test_the_nearest_input_is_on_the_grid():
    noise, x = Gaussian(0.5, 255), torch.rand(50, generator=torch.Generator().manual_seed(1))
    near = noise.nearest(x)
    noise.check(near)
    assert float((near - x).abs().max()) < 0.51 / 255


@pytest.mark.parametrize("grid", [0, -1, 65_536, 2.0, "255", True, float("nan")])
@pytest.mark.parametrize("noise", [Gaussian, Uniform])
def test_refuses_grid(noise, grid):
    with pytest.raises(UsageError, match="grid must be a whole number of steps from 1 to 65535"):
        noise(0.5, grid)


def test_refuses_noise_that_spans_too_many_steps():
    Gaussian(2.0, 65_535)  # no table is made before it is needed
    with pytest.raises(UsageError, match=r"spans 1\.97e\+05 steps, more than the 131072 .* a coarser grid"):
        Gaussian(3.0, 65_535)


def test_a_noise_without_a_grid_is_described_as_ever():
    assert Gaussian(0.5).config() == {"name": "gaussian", "sigma": 0.5}
    assert repr(Gaussian(0.5)) == "Gaussian(sigma=0.5)"
    assert noise_from_config({"name": "uniform", "lam": 0.5}) == Uniform(0.5)
    assert Gaussian(0.5, 255).config() == {"name": "gaussian", "sigma": 0.5, "grid": 255}
    assert repr(Uniform(0.5, grid=255)) == "Uniform(lam=0.5, grid=255)"
    assert len({Gaussian(0.5), Gaussian(0.5, 255), Gaussian(0.5, 16), Gaussian(0.5, grid=None)}) == 3


def test_a_table_is_not_sent_with_its_noise():
    noise = Gaussian(0.5, 255)
    noise.sample(torch.zeros(3), torch.empty(2, 3))
    sent = pickle.dumps(noise)
    assert len(sent) < 500
    assert pickle.loads(sent) == noise
    assert replace(noise, sigma=0.25) == Gaussian(0.25, 255)


def test_draws_are_the_same_in_and_out_of_inference_mode():
    noise, x, out = Gaussian(0.7, 255), torch.zeros(9), torch.empty(20, 9)
    with torch.inference_mode():
        inside = noise.sample(x, out, torch.Generator().manual_seed(4)).clone()
    assert torch.equal(noise.sample(x, out, torch.Generator().manual_seed(4)), inside)
