"""A classifier that reads the last bits of its input: certified wrongly under noise in floating point, not on a grid.

All pixels of an input in [¼, ½) are multiples of u = 2⁻²⁵. Noise beyond ½ in size, as single precision has it, is a
multiple of 2u, so that its sum with a pixel, if that is again below ½ and so exact, has the parity of the pixel in
units of u. Two inputs one unit in the last place apart in every pixel are told apart by that, however strong the noise.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from smoothcert import Cohen, Smoothed
from smoothcert.noise import Gaussian, Uniform
from smoothcert.types import Arithmetic, Norm, UsageError

PIXELS = 784
FLOAT = [Gaussian(0.5), Uniform(0.5)]
EXACT = [Gaussian(0.5, grid=255), Uniform(0.5, grid=255)]
HOW = Cohen(n=2_000)


def low_bits(x: Tensor) -> Tensor:
    """Whether most pixels below ½ in size are odd in units of 2⁻²⁵."""
    odd = (x.double() * 2**25).floor().remainder(2)
    share = torch.where(x.abs() < 0.5, odd - 0.5, 0.0).sum(dim=1)
    return torch.stack([-share, share], dim=1).float()


def neighbours() -> tuple[Tensor, Tensor]:
    """An even and an odd input, one unit in the last place apart in every pixel, both next to 100/255."""
    low = torch.full((PIXELS,), 100 / 255)
    if int(low[0].double() * 2**25) % 2:
        low = torch.nextafter(low, torch.zeros(()))
    return low, torch.nextafter(low, torch.ones(()))


def distance(x: Tensor, y: Tensor, norm: Norm) -> float:
    return float((x.double() - y.double()).norm(p={Norm.L1: 1, Norm.L2: 2}[norm]))


@pytest.mark.parametrize("noise", FLOAT, ids=repr)
def test_in_floating_point_two_certificates_contradict_each_other(noise):
    smoothed = Smoothed(low_bits, noise, runtime="eager")
    even, odd = (smoothed.certify(x, HOW) for x in neighbours())
    norm = noise.norms[0]
    assert (even.label, odd.label) == (0, 1)
    assert min(even.radius, odd.radius) > 10_000 * distance(*neighbours(), norm)
    assert distance(*neighbours(), norm) < {Norm.L2: 9e-7, Norm.L1: 3e-5}[norm]
    assert even.arithmetic is odd.arithmetic is Arithmetic.FLOAT
    assert even.offset == 0.0


@pytest.mark.parametrize("noise", EXACT, ids=repr)
def test_on_a_grid_both_inputs_are_one_grid_point(noise):
    smoothed = Smoothed(low_bits, noise, runtime="eager")
    even, odd = (smoothed.certify(x, HOW, seed=1, index=0) for x in neighbours())
    assert (even.label, even.counts) == (odd.label, odd.counts)
    assert even.arithmetic is odd.arithmetic is Arithmetic.EXACT
    for x, certificate in zip(neighbours(), (even, odd), strict=True):
        apart = distance(x, torch.full((PIXELS,), 100 / 255, dtype=torch.float64), noise.norms[0])
        assert apart <= certificate.offset <= 2.001 * apart
        if not certificate.abstained:
            assert certificate.radius <= float(noise.radius(certificate.p_lower)) - apart


@pytest.mark.parametrize("noise", EXACT, ids=repr)
def test_on_a_grid_no_two_certificates_contradict_each_other(noise):
    """Grid points one step apart in one pixel, in some, and in all: whoever is certified that far agrees."""
    smoothed = Smoothed(low_bits, noise, runtime="eager")
    norm, middle = noise.norms[0], torch.full((PIXELS,), 100.0)
    points = []
    for moved in (0, 1, 20, PIXELS):
        for by in (-1.0, 1.0):
            point = middle.clone()
            point[:moved] += by
            points.append(point / 255)
    certificates = [smoothed.certify(x, HOW, index=index) for index, x in enumerate(points)]
    for x, one in zip(points, certificates, strict=True):
        for y, other in zip(points, certificates, strict=True):
            if distance(x, y, norm) < max(one.radius, other.radius) and not (one.abstained or other.abstained):
                assert one.label == other.label


@pytest.mark.parametrize("noise", EXACT, ids=repr)
def test_on_a_grid_inputs_farther_off_are_refused(noise):
    low, _ = neighbours()
    with pytest.raises(UsageError, match="are not multiples of 1/255"):
        Smoothed(low_bits, noise, runtime="eager").certify(low + 5 * 2.0**-25, HOW)
