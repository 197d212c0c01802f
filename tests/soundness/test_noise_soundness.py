"""False claims stay within alpha for every noise in every norm, on classifiers whose worst case is known exactly.

Each case is a classifier with a known probability of its top class at the input and a known distance to the nearest
input at which that class no longer has more than half of the probability. Votes are drawn with the exact probability
and go through the real procedures. The last tests lengthen the radius on purpose and show that the check notices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor

from smoothcert.certify import Anytime, Cohen, Staged
from smoothcert.certify.base import Task, answer
from smoothcert.noise import NOISES, Discrete, Gaussian, Noise, Uniform
from smoothcert.sampling import Draw
from smoothcert.stats import lower_bound
from smoothcert.types import Certificate, Norm, Votes

QUICK, FULL = 500, 20_000
RUNS = [QUICK, pytest.param(FULL, marks=pytest.mark.soundness)]
ALPHAS = [0.05, 0.001]
N = 400


@dataclass(frozen=True)
class Case:
    """A classifier at an input.

    Attributes:
        noise: The noise.
        norm: The norm.
        dimension: Coordinates of the input.
        p: The probability of its top class there.
        truth: The largest radius that may be claimed: up to it (in ℓ0, with it) the top class has more than half.
        x: The input, where the noise has a grid.
    """

    noise: Noise
    norm: Norm
    dimension: int
    p: float
    truth: float
    x: Tensor | None = None


def tightest(n: int, alpha: float) -> float:
    """A probability just below the lower bound of some count, so that a false bound is as likely as it may be."""
    bounds = lower_bound(np.arange(n + 1), n, alpha)
    return float(bounds[int(np.argmax(bounds > 0.7))]) - 1e-9


def half_space(sigma: float, p: float) -> float:
    """The distance to a plane beyond which Gaussian noise falls with probability 1 − p."""
    return float(sigma * special.ndtri(p))


def gaussian_l2(p: float) -> Case:
    """One side of a plane: the nearest point on it is straight ahead."""
    return Case(Gaussian(0.5), Norm.L2, 7, p, half_space(0.5, p))


def gaussian_linf(p: float) -> Case:
    """One side of a plane across the diagonal: a step of r in every coordinate leads r√d towards it."""
    return Case(Gaussian(0.5), Norm.LINF, 49, p, half_space(0.5, p) / 7)


def uniform_l1(p: float) -> Case:
    """One side of a plane across a coordinate: at distance m from it, p = ½ + m/2λ."""
    return Case(Uniform(0.6), Norm.L1, 7, p, 2 * 0.6 * (p - 0.5))


def uniform_linf(p: float) -> Case:
    """A class that fills all that the diagonal step to (r, …, r) loses, and of the rest as much as makes up p.

    It loses the share 1 − (1 − r/2λ)^d there, and only that: with p = 3/2 − (1 − r/2λ)^d, one half is left.
    """
    lam, dimension = 0.6, 5
    r = 2 * lam * (1 - (1.5 - p) ** (1 / dimension))
    return Case(Uniform(lam), Norm.LINF, dimension, p, r)


def uniform_linf_corner(p: float) -> Case:
    """All but a corner box: its share q^d grows to (q + r/2λ)^d with a step of r towards it."""
    lam, dimension = 0.6, 5
    return Case(Uniform(lam), Norm.LINF, dimension, p, 2 * lam * (0.5 ** (1 / dimension) - (1 - p) ** (1 / dimension)))


MARGIN = 30.5
"""Steps from an input on a grid to the plane between two grid points, on the far side of which is another class."""


def exact_gaussian_l2(p: float) -> Case:
    """At 0, all grid points above −30 in the first coordinate: of real inputs, those beyond a plane."""
    return Case(Gaussian(MARGIN / 255 / float(special.ndtri(p)), grid=255), Norm.L2, 1, p, MARGIN / 255, torch.zeros(1))


def exact_uniform_l1(p: float) -> Case:
    """The same under uniform noise."""
    return Case(Uniform(MARGIN / 255 / (2 * p - 1), grid=255), Norm.L1, 1, p, MARGIN / 255, torch.zeros(1))


def beside_the_grid(case: Case) -> Case:
    """The same around 77/255, at an input two units in the last place nearer to the plane."""
    x = torch.tensor([77 / 255])
    for _ in range(2):
        x = torch.nextafter(x, torch.zeros(1))
    return replace(case, x=x, truth=float(Fraction(float(x)) - (77 - Fraction(MARGIN)) / 255))


def exact_gaussian_l2_beside(p: float) -> Case:
    return beside_the_grid(exact_gaussian_l2(p))


def exact_uniform_l1_beside(p: float) -> Case:
    return beside_the_grid(exact_uniform_l1(p))


EXACT = (exact_gaussian_l2, exact_uniform_l1, exact_gaussian_l2_beside, exact_uniform_l1_beside)
CONTINUOUS = (gaussian_l2, gaussian_linf, uniform_l1, uniform_linf, uniform_linf_corner, *EXACT)
SHARP = (gaussian_l2, gaussian_linf, uniform_l1, uniform_linf, *EXACT[:2])
"""Classifiers that attain the certificate."""


def shares(keep: Fraction, levels: int, pixels: int, changed: int, most: int) -> Fraction:
    """The probability that at most ``most`` pixels of an image of zeros look lit, when some of them are changed."""
    dark, lit = 1 - keep, 1 - (1 - keep) / levels
    total = [Fraction(1)]
    for pixel in range(pixels):
        chance = lit if pixel < changed else dark
        total = [
            (total[k] * (1 - chance) if k < len(total) else 0) + (total[k - 1] * chance if k else 0)
            for k in range(len(total) + 1)
        ]
    return sum(total[: most + 1], Fraction(0))


def pixel_vote(keep: float, levels: int, pixels: int, most: int) -> Case:
    """An image of zeros is dark while at most ``most`` of its pixels look lit; each changed pixel makes that rarer."""
    exact = Fraction(str(keep))
    chances = [shares(exact, levels, pixels, changed, most) for changed in range(pixels + 1)]
    assert chances == sorted(chances, reverse=True)  # so the worst change of r pixels is any change of r pixels
    truth = max(changed for changed, chance in enumerate(chances) if chance > Fraction(1, 2))
    return Case(Discrete(keep, levels), Norm.L0, pixels, float(chances[0]), truth)


def at_the_threshold(keep: float, levels: int, changes: int) -> Case:
    """The classifier of Neyman and Pearson for so many changes, a hair too unlikely for them."""
    noise = Discrete(keep, levels)
    return Case(noise, Norm.L0, 49, float(noise.exact_threshold(changes)) - 1e-12, changes - 1)


DISCRETE = [
    pixel_vote(0.8, 1, 9, 3),
    pixel_vote(0.8, 1, 9, 4),
    pixel_vote(0.9, 1, 25, 5),
    pixel_vote(0.6, 1, 15, 7),
    pixel_vote(0.5, 4, 8, 5),
    pixel_vote(0.3, 255, 6, 4),
    at_the_threshold(0.8, 1, 1),
    at_the_threshold(0.8, 1, 2),
    at_the_threshold(0.2, 255, 1),
    at_the_threshold(0.2, 255, 2),
]


def title(case: Case) -> str:
    return f"{case.noise} {case.norm.value} p={case.p:.6f}"


def within(false: int, runs: int, level: float) -> bool:
    """Whether so many false claims are plausible when each happens with probability at most ``level``."""
    return bool(stats.binomtest(false, runs, level, alternative="greater").pvalue > 1e-4)


def certificates(case: Case, procedure: Cohen | Staged | Anytime, runs: int) -> list[Certificate]:
    """Certificates from votes drawn with the exact probability."""
    rng = np.random.default_rng(11)

    def draw(request: Draw) -> tuple[Votes, ...]:
        k = int(rng.binomial(request.n, case.p))
        return (Votes(n=request.n, counts=(request.n - k, k)),)

    tasks = (Task(case.noise, 2, case.dimension, seed=0, index=index, x=case.x) for index in range(runs))
    return [answer(procedure.certify(task), draw) for task in tasks]


def false_claims(case: Case, procedure: Cohen | Staged | Anytime, runs: int) -> int:
    return sum(c.label == 0 or c.radius > case.truth for c in certificates(case, procedure, runs))


def cohen(alpha: float, norm: Norm) -> Cohen:
    return Cohen(n0=40, n=N, alpha=alpha, norm=norm)


def test_every_noise_is_here_in_every_norm():
    cases = [*(make(0.8) for make in CONTINUOUS), *DISCRETE]
    assert {(case.noise.name, case.norm) for case in cases} == {
        (name, norm) for name, noise in NOISES.items() for norm in noise.norms
    }


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("make", CONTINUOUS)
def test_false_radii_stay_within_alpha(make: Callable[[float], Case], alpha: float, runs: int):
    case = make(tightest(N, alpha))
    false = false_claims(case, cohen(alpha, case.norm), runs)
    assert within(false, runs, alpha)
    if make in SHARP:  # and false radii come up about as often as they may
        assert within(runs - false, runs, 1 - 0.8 * alpha)


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("case", DISCRETE, ids=title)
def test_false_numbers_of_pixels_stay_within_alpha(case: Case, alpha: float, runs: int):
    assert within(false_claims(case, cohen(alpha, case.norm), runs), runs, alpha)


@pytest.mark.parametrize("runs", [50, pytest.param(5_000, marks=pytest.mark.soundness)])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("staged", [True, False])
@pytest.mark.parametrize("case", [*(make(0.65) for make in CONTINUOUS), *DISCRETE[6:]], ids=title)
def test_false_targets_stay_within_alpha(case: Case, staged: bool, alpha: float, runs: int):
    """The target lies just beyond the truth."""
    radius = case.truth + 1 if case.norm is Norm.L0 else case.truth * (1 + 1e-6)
    procedure = (
        Staged(radius=radius, stages=(60, 200, N), alpha=alpha, beta=alpha, n0=40, norm=case.norm)
        if staged
        else Anytime(radius=radius, n_max=N, alpha=alpha, beta=alpha, norm=case.norm)
    )
    assert within(false_claims(case, procedure, runs), runs, alpha)


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("make", EXACT)
def test_false_radii_from_exact_draws_stay_within_alpha(make: Callable[[float], Case], alpha: float, runs: int):
    """As above, with votes that are counted on the copies that the noise itself draws."""
    case = make(tightest(N, alpha))
    assert case.x is not None
    case.noise.check(case.x)
    start, generator = float(case.noise.nearest(case.x)), torch.Generator().manual_seed(13)

    def draw(request: Draw) -> tuple[Votes, ...]:
        copies = case.noise.sample(case.x, torch.empty(request.n, 1), generator)
        k = int((copies > start - (MARGIN / 255)).sum())
        return (Votes(n=request.n, counts=(request.n - k, k)),)

    tasks = (Task(case.noise, 2, 1, seed=0, index=index, x=case.x) for index in range(runs))
    given = [answer(cohen(alpha, case.norm).certify(task), draw) for task in tasks]
    false = sum(c.label == 0 or c.radius > case.truth for c in given)
    assert within(false, runs, alpha)
    if make in SHARP:
        assert within(runs - false, runs, 1 - 0.8 * alpha)


def test_the_pixel_vote_by_enumeration():
    """Against every outcome of a small image, over every change of r pixels."""
    keep, levels, pixels, most = 0.5, 2, 4, 2
    case, exact = pixel_vote(keep, levels, pixels, most), Fraction(str(keep))
    least = []
    for changed in range(pixels + 1):
        worst = Fraction(1)
        for where in itertools.combinations(range(pixels), changed):
            for values in itertools.product(range(1, levels + 1), repeat=changed):
                image = [values[where.index(pixel)] if pixel in where else 0 for pixel in range(pixels)]
                dark = Fraction(0)
                for outcome in itertools.product(range(levels + 1), repeat=pixels):
                    if sum(value > 0 for value in outcome) <= most:
                        same = sum(a == b for a, b in zip(image, outcome, strict=True))
                        dark += exact**same * ((1 - exact) / levels) ** (pixels - same)
                worst = min(worst, dark)
        least.append(worst)
    assert float(least[0]) == case.p
    assert case.truth == max(r for r, chance in enumerate(least) if chance > Fraction(1, 2))


@pytest.mark.parametrize("case", DISCRETE[:6], ids=title)
def test_exact_probabilities_prove_no_more_than_the_truth(case: Case):
    assert float(case.noise.radius(case.p, case.norm, case.dimension)) <= case.truth


def test_the_truth_is_attained_where_it_should_be():
    for make in SHARP:
        case = make(0.83)
        assert float(case.noise.radius(case.p, case.norm, case.dimension)) == pytest.approx(case.truth, rel=1e-12)
    loose = uniform_linf_corner(0.83)
    assert float(loose.noise.radius(0.83, Norm.LINF, 5)) < 0.99 * loose.truth
    for case in DISCRETE[6:]:
        assert float(case.noise.radius(case.p, case.norm, case.dimension)) == case.truth
        assert float(case.noise.radius(case.p + 1e-11, case.norm, case.dimension)) == case.truth + 1


@pytest.mark.parametrize("make", SHARP)
def test_the_check_notices_a_radius_that_is_too_long(monkeypatch, make: Callable[[float], Case]):
    real = type(make(0.8).noise).radius
    monkeypatch.setattr(type(make(0.8).noise), "radius", lambda self, *rest: 1.1 * real(self, *rest))
    case = make(tightest(N, 0.05))
    assert not within(false_claims(case, cohen(0.05, case.norm), QUICK), QUICK, 0.05)


def test_the_check_notices_a_norm_that_is_mistaken_for_another(monkeypatch):
    case = gaussian_linf(tightest(N, 0.05))
    monkeypatch.setattr(Gaussian, "_stretch", lambda *_: math.sqrt(36.0))
    assert not within(false_claims(case, cohen(0.05, case.norm), QUICK), QUICK, 0.05)


@pytest.mark.parametrize("make", EXACT)
def test_exact_probabilities_on_a_grid_prove_no_more_than_the_truth(monkeypatch, make: Callable[[float], Case]):
    case = make(0.83)
    task = Task(case.noise, 2, 1, seed=0, index=0, x=case.x)
    assert task.radius(case.p, case.norm) <= case.truth
    assert task.threshold(case.truth, case.norm) >= case.p
    monkeypatch.setattr(type(case.noise), "offset", lambda *_: 0.0)  # beside the grid it is needed
    assert (task.radius(case.p, case.norm) > case.truth) == (make not in SHARP)


def test_the_check_notices_one_pixel_too_many(monkeypatch):
    real = Discrete.radius
    monkeypatch.setattr(Discrete, "radius", lambda self, *rest: real(self, *rest) + 1)
    for case in DISCRETE[6:]:
        assert not within(false_claims(case, cohen(0.05, case.norm), QUICK), QUICK, 0.05)
