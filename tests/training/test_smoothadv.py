"""SmoothAdv equals its definition with an attack of its own, written again in NumPy one input at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smoothcert.training.methods import NoiseAugmentation, SmoothAdv

SEEDS = [0, 1, 2]
SHAPES = [(5,), (2, 3), (1, 2, 4)]


def mean_cross_entropy(net, points, m, rows):
    """Cross-entropy at the attacked points, each shared by all copies."""
    total = 0.0
    for at, (_, y, deltas) in zip(points, rows, strict=True):
        total += sum(net.cross_entropy(at + delta, y) for delta in deltas) / m
    return total / len(points)


def pgd(net, x, y, deltas, epsilon, steps):
    return net.climb(
        lambda at: net.smoothed_nll_slope(at, y, deltas), x, steps=steps, step=2 * epsilon / steps, radius=epsilon
    )


def ddn(net, x, y, deltas, epsilon, steps):
    """Rony et al. (2019), Algorithm 1: a direction by gradient, a norm by success."""
    offset, norm, found = np.zeros_like(x), epsilon, None
    for k in range(steps):
        p = net.smoothed(x + offset, deltas)
        slope = net.smoothed_nll_slope(x + offset, y, deltas)
        fooled = int(p.argmax()) != y
        if fooled and (found is None or (offset**2).sum() < (found**2).sum()):
            found = offset
        rate = 0.01 + (1.0 - 0.01) * (1 + math.cos(math.pi * k / steps)) / 2
        offset = offset + rate * slope / np.linalg.norm(slope)
        norm = min(norm * (0.95 if fooled else 1.05), epsilon)
        offset = np.clip(x + norm * offset / np.linalg.norm(offset), 0.0, 1.0) - x
    return x if found is None else x + found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize(("epsilon", "steps"), [(0.25, 1), (0.5, 3), (1.5, 4)])
def test_pgd_is_cross_entropy_at_the_adversary_of_the_smoothed_classifier(make_case, seed, m, epsilon, steps):
    case = make_case(seed, shape=SHAPES[seed], classes=3 + seed)
    rows = list(case.rows(m))
    points = [pgd(case.net, x, y, deltas, epsilon, steps) for x, y, deltas in rows]
    lengths = [np.linalg.norm(at - x) for at, (x, _, _) in zip(points, rows, strict=True)]
    assert max(lengths) == pytest.approx(epsilon) or epsilon > 1  # the ball is reached, or else the box
    assert any(((at == 0) | (at == 1)).any() for at in points)
    case.check(
        SmoothAdv(epsilon=epsilon, steps=steps, m=m), lambda net: mean_cross_entropy(net, points, m, rows), rel=1e-8
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("epsilon", "steps", "m"), [(0.3, 4, 1), (0.8, 12, 2), (2.0, 6, 3)])
def test_ddn_is_cross_entropy_at_the_nearest_adversary_found(make_case, seed, epsilon, steps, m):
    case = make_case(seed, shape=SHAPES[seed], inputs=9)
    rows = list(case.rows(m))
    points = [ddn(case.net, x, y, deltas, epsilon, steps) for x, y, deltas in rows]
    moved = [bool((at != x).any()) for at, (x, _, _) in zip(points, rows, strict=True)]
    assert not all(moved)
    assert any(moved) or epsilon < 0.5
    method = SmoothAdv(epsilon=epsilon, steps=steps, m=m, attack="ddn")
    case.check(method, lambda net: mean_cross_entropy(net, points, m, rows), rel=1e-8)


@pytest.mark.parametrize("attack", ["pgd", "ddn"])
def test_an_attack_of_radius_0_is_no_attack(make_case, attack):
    case = make_case(3)
    plain = case.loss(NoiseAugmentation(m=3)).item()
    assert case.loss(SmoothAdv(epsilon=0.0, m=3, attack=attack)).item() == pytest.approx(plain, rel=1e-13)
    assert case.loss(SmoothAdv(epsilon=0.5, m=3)).item() > plain


@pytest.mark.parametrize("attack", ["pgd", "ddn"])
def test_epsilon_warms_up_linearly(make_case, attack):
    case = make_case(4, inputs=12)

    def at(epsilon, warmup, epoch):
        return case.loss(SmoothAdv(epsilon=epsilon, warmup=warmup, m=2, attack=attack), epoch=epoch).item()

    assert at(1.0, 10.0, 0) == pytest.approx(case.loss(NoiseAugmentation(m=2)).item(), rel=1e-13)
    assert at(1.0, 10.0, 2.5) == at(0.25, 0.0, 0)
    assert at(1.0, 10.0, 5) == at(0.5, 0.0, 0)
    assert at(1.0, 10.0, 10) == at(1.0, 0.0, 0) == at(1.0, 10.0, math.inf)
    assert at(1.0, 10.0, 99) == at(1.0, 0.0, 0)
    assert len({at(1.0, 10.0, epoch) for epoch in (0, 2.5, 5, 10)}) == 4
