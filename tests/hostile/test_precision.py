"""Certificates near the limits of floating point: no two of them may contradict each other.

Two inputs lie a little apart on both sides of a value that rounding cannot represent, in each of many coordinates.
Rounded before the noise is added, they move apart by many times the noise; rounded afterwards, they do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hostile.judge import attempt
from smoothcert import (
    ABSTAIN,
    Aces,
    Certificate,
    Cohen,
    Consensus,
    Denoised,
    Ensemble,
    Gaussian,
    SmoothcertError,
    Smoothed,
    Uniform,
)
from smoothcert.sampling.sigma import GridSigma

DIMENSION = 784
COHEN = Cohen(n0=50, n=1_000, alpha=1e-12)
_FREE: dict[str, Any] = {"input_range": None}


class Above(nn.Module):
    """Class 1 where the mean of the coordinates exceeds an edge: a half-space, computed without rounding."""

    def __init__(self, edge: float, dtype: torch.dtype, flip: bool = False) -> None:
        super().__init__()
        self.sign = nn.Parameter(torch.tensor(-1.0 if flip else 1.0, dtype=dtype))
        self.edge = edge

    def forward(self, x: Tensor) -> Tensor:
        side = (x.double() - self.edge).sum(dim=1) * self.sign.double()
        return torch.stack([-side, side], dim=1).to(self.sign.dtype)


def _router(model: Above, sigma: float) -> Smoothed:
    return Smoothed(
        model, Gaussian(sigma), experts=[Smoothed(model, Gaussian(sigma), **_FREE) for _ in range(2)], **_FREE
    )


KINDS: dict[str, Callable[[Above, float], Smoothed]] = {
    "plain": lambda model, sigma: Smoothed(model, Gaussian(sigma), **_FREE),
    "ensemble": lambda model, sigma: Smoothed(Ensemble([model, model]), Gaussian(sigma), **_FREE),
    "consensus": lambda model, sigma: Smoothed(Consensus([model] * 3, first=2), Gaussian(sigma), **_FREE),
    "denoised": lambda model, sigma: Smoothed(Denoised(model, nn.Identity()), Gaussian(sigma), **_FREE),
    "per-input": lambda model, sigma: Smoothed(model, Gaussian(sigma), sigma=GridSigma(grid=(sigma,), n=4), **_FREE),
    "router": _router,
    "uniform": lambda model, sigma: Smoothed(model, Uniform(sigma), **_FREE),
}

CASES: dict[str, tuple[torch.dtype, float, float]] = {
    "bfloat16 at sigma 0.01": (torch.bfloat16, 0.599609375, 0.01),
    "bfloat16 near 1": (torch.bfloat16, 1.00390625, 0.01),
    "float16 at sigma 0.001": (torch.float16, 0.600341796875, 0.001),
    "float32 near 1e8": (torch.float32, 1e8 + 4, 1.0),
    "float32 at sigma 1e-9": (torch.float32, 0.75 + 2.0**-25, 1e-9),
}
"""The model's dtype, a value in the middle between two that it can represent, and the noise scale."""


def _sides(dtype: torch.dtype, middle: float, sigma: float) -> list[Tensor]:
    """Two inputs, 0.3 sigma apart, on both sides of the middle; the coordinates differ by much less than rounding."""
    step = 0.15 * sigma / DIMENSION**0.5
    precise = torch.float32 if dtype.itemsize < 4 else torch.float64
    sides = [torch.full((DIMENSION,), middle + sign * step, dtype=torch.float64) for sign in (-1, 1)]
    rounded = [side.to(dtype).double() for side in sides]
    assert (rounded[1] - rounded[0]).norm() > 4 * sigma  # what rounding first would do
    return [side.to(precise) for side in sides]


def _contradict(a: Certificate, b: Certificate, x: Tensor, y: Tensor) -> bool:
    """Whether both points are claimed for different classes within reach of each other."""
    orders = {"l1": 1, "l2": 2, "linf": torch.inf}
    apart = float(torch.linalg.vector_norm(x.double() - y.double(), orders[a.norm.value]))
    labels = {a.label, b.label}
    return ABSTAIN not in labels and len(labels) == 2 and a.norm is b.norm and apart <= max(a.radius, b.radius)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_neighbours_do_not_get_contradicting_certificates(case, kind):
    dtype, middle, sigma = CASES[case]
    below, above = _sides(dtype, middle, sigma)
    smoothed = KINDS[kind](Above(middle, dtype), sigma)
    pair = [smoothed.certify(x, COHEN, seed=3, index=i) for i, x in enumerate((below, above))]
    assert not _contradict(*pair, below, above), f"{pair[0]}; {pair[1]}"


@pytest.mark.parametrize("case", CASES)
def test_selectors_and_cores_of_aces_do_not_round_first(case):
    """A core of low precision beside a precise classifier, and the other way round."""
    dtype, middle, sigma = CASES[case]
    below, above = _sides(dtype, middle, sigma)
    coarse, fine = Above(middle, dtype), Above(middle, torch.float64)
    for model, selector in ((coarse, fine), (fine, coarse)):
        procedure = Aces(core=fine, selector=selector, theta=0.5, n0=50, n=1_000, alpha=1e-12)
        smoothed = Smoothed(model, Gaussian(sigma), **_FREE)
        pair = [smoothed.certify(x, procedure, seed=3, index=i) for i, x in enumerate((below, above))]
        assert not _contradict(*pair, below, above), f"{pair[0]}; {pair[1]}"


@pytest.mark.parametrize("case", CASES)
def test_far_from_the_middle_the_same_models_are_certified(case):
    """Otherwise the tests above could not fail."""
    dtype, middle, sigma = CASES[case]
    step = 4 * sigma / DIMENSION**0.5
    x = torch.full((DIMENSION,), middle + step, dtype=torch.float64)
    model = Above(middle, dtype)
    certificate = Smoothed(model, Gaussian(sigma), **_FREE).certify(x, COHEN, seed=3, index=0)
    assert (certificate.label, certificate.radius > sigma) == (1, True)


LAM = 1.0


class Corner(nn.Module):
    """Expert 1 where no coordinate exceeds 1 + λ: under uniform noise around (1, …, 1), always."""

    def forward(self, x: Tensor) -> Tensor:
        inside = (x <= 1 + LAM).all(dim=1).float() - 0.5
        return torch.stack([-inside, inside], dim=1)


def _constant(label: int) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.eye(2)[label].repeat(len(x), 1)


@pytest.mark.parametrize("norm", [None, "linf"])
def test_a_router_does_not_compare_radii_of_different_norms(norm):
    """A small step in every coordinate, short in ℓ2 and long in ℓ1, makes the selector choose the other expert."""
    experts = [Smoothed(_constant(label), Gaussian(0.5), **_FREE) for label in (0, 1)]
    router = Smoothed(Corner(), Uniform(LAM), experts=experts, **_FREE)
    procedure = Cohen(n0=100, n=1_000, alpha=1e-12, norm=norm)
    x, step = torch.ones(DIMENSION), 3.2 * LAM / DIMENSION
    certificate = attempt(lambda: router.certify(x, procedure, seed=0, index=0))
    if isinstance(certificate, SmoothcertError):
        assert norm is None, "both noises certify this norm"
        assert "norm" in str(certificate)
        return
    other = router.certify(x + step, procedure, seed=0, index=1)
    assert (certificate.label, other.label) == (1, 0)
    orders = {"l1": 1, "l2": 2, "linf": torch.inf}
    for one in (certificate, other):
        distance = float(torch.linalg.vector_norm(torch.full((DIMENSION,), step), orders[one.norm.value]))
        assert one.radius < distance, f"{one}, but another class at distance {distance}"
