"""Certificates under noise on a grid: what is taken off a radius, in every procedure."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from smoothcert import Aces, Anytime, Cohen, Gaussian, Smoothed, Staged, Uniform
from smoothcert.certify.base import Task
from smoothcert.noise import Discrete
from smoothcert.sampling.sigma import GridSigma
from smoothcert.types import ABSTAIN, Arithmetic, Norm, Outcome, UsageError, Votes

X = torch.tensor([220.0, 100.0]) / 255
"""An input that single precision does not put on the grid exactly."""

PROCEDURES = [
    Cohen(n=2_000),
    Staged(radius=0.1, stages=(100, 2_000)),
    Anytime(radius=(0.05, 0.1), n_max=5_000),
    Anytime(n_max=2_000),
    Aces(core=lambda x: torch.zeros(len(x), 2), n=2_000, theta=1.0),
]


def gap(x: torch.Tensor, grid: int) -> float:
    """The ℓ1 distance to the grid, which is at least that in any other norm here."""
    places = (x.double() * grid).round().tolist()
    exact = [Fraction(value) - Fraction(int(k), grid) for value, k in zip(x.double().tolist(), places, strict=True)]
    return float(sum(map(abs, exact)))


@pytest.mark.parametrize("procedure", PROCEDURES, ids=lambda procedure: procedure.name)
@pytest.mark.parametrize("noise", [Gaussian(0.5, grid=255), Uniform(0.9, grid=255)], ids=repr)
def test_every_procedure_takes_the_offset_off(half_space, noise, procedure):
    certificate = Smoothed(half_space, noise, runtime="eager").certify(X, procedure)
    assert (certificate.label, certificate.arithmetic) == (1, Arithmetic.EXACT)
    assert 0.5 * gap(X, 255) < certificate.offset < 2.1 * gap(X, 255)
    assert certificate.radius > 0.1
    assert certificate.radius <= float(noise.radius(certificate.p_lower)) - certificate.offset
    if certificate.decisions:
        assert set(certificate.decisions.values()) == {Outcome.CERTIFIED}
    if certificate.routing is not None:
        assert certificate.routing.radius <= float(noise.radius(certificate.routing.p_lower)) - certificate.offset


@pytest.mark.parametrize(
    ("noise", "arithmetic"),
    [(Gaussian(0.5), Arithmetic.FLOAT), (Uniform(0.5), Arithmetic.FLOAT), (Discrete(0.8, 255), Arithmetic.EXACT)],
    ids=repr,
)
def test_noise_without_a_grid_has_no_offset(half_space, noise, arithmetic):
    certificate = Smoothed(half_space, noise, runtime="eager").certify(X, Cohen(n=200))
    assert (certificate.arithmetic, certificate.offset) == (arithmetic, 0.0)


def test_a_target_needs_the_threshold_of_the_longer_radius():
    """A target is certified only if what is proved at the grid point reaches it from the input."""
    noise = Gaussian(0.5, grid=1)
    x = torch.tensor([1.0000002, 0.0])  # two units in the last place from 1
    task = Task(noise, 2, 2, 0, 0, x)
    offset = noise.offset(x, Norm.L2)
    assert offset > 2e-7
    assert task.threshold(0.3, Norm.L2) > float(noise.threshold(0.3))
    assert task.threshold(0.3, Norm.L2) == float(noise.threshold(0.3, offset=offset))
    assert task.radius(task.threshold(0.3, Norm.L2) + 1e-12, Norm.L2) >= 0.3
    assert Task(noise, 2, 2, 0, 0).threshold(0.3, Norm.L2) == float(noise.threshold(0.3))


def test_a_bound_just_above_one_half_keeps_its_class_with_radius_zero():
    task = Task(Gaussian(0.5, grid=1), 2, 1, 0, 0, torch.tensor([1.0000002]))
    votes = Votes(n=10, counts=(4, 6))
    about = {"guess": 1, "norm": Norm.L2, "alpha": 0.1, "alpha_split": {}, "votes": votes, "selection": votes}
    certificate = task.certificate(p_lower=0.5 + 1e-9, **about)
    assert (certificate.label, certificate.radius) == (1, 0.0)
    assert task.certificate(p_lower=0.5, **about).label == ABSTAIN


def test_inputs_share_the_tables_of_a_target():
    """Offsets are powers of two, so that the thresholds of most inputs are the same."""
    generator = torch.Generator().manual_seed(1)
    images = [torch.randint(0, 256, (784,), generator=generator) / 255 for _ in range(50)]
    noise = Gaussian(0.5, grid=255)
    assert len({Task(noise, 2, 784, 0, 0, x).threshold(0.5, Norm.L2) for x in images}) <= 2


def test_a_scale_chosen_for_an_input_keeps_the_grid(half_space):
    smoothed = Smoothed(half_space, Gaussian(0.5, grid=255), sigma=GridSigma(grid=(0.1, 0.2), n=20))
    certificate = smoothed.certify(X, Cohen(n=200))
    assert certificate.noise in ("Gaussian(sigma=0.1, grid=255)", "Gaussian(sigma=0.2, grid=255)")
    assert certificate.arithmetic is Arithmetic.EXACT
    with pytest.raises(UsageError, match="are not multiples of 1/255"):
        smoothed.certify(X + 0.001, Cohen(n=200))
