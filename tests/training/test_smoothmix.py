"""SmoothMix equals its definition with an attack of its own, written again in NumPy one input at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smoothcert.noise import Gaussian
from smoothcert.training.methods import NoiseAugmentation, SmoothMix

SEEDS = [0, 1, 2]
SHAPES = [(5,), (2, 3), (1, 2, 4)]


def adversaries(net, x, y, deltas, *, step, steps, radius):
    """The points after the first and the last step."""

    def slope(at):
        return net.smoothed_nll_slope(at, y, deltas)

    points = [net.climb(slope, x, steps=count, step=step, radius=radius) for count in (1, steps)]
    return points[0], points[1]


def mixture_loss(net, y, deltas, clean, last, share, eta):
    prediction = net.smoothed(clean, deltas)
    loss = sum(net.cross_entropy(clean + delta, y) for delta in deltas) / len(deltas)
    if int(prediction.argmax()) != y:
        return loss
    target = (1 - share) * prediction + share * np.full(len(prediction), 1 / len(prediction))
    mixed = (1 - share) * clean + share * last
    return loss + eta * sum(net.kl(target, mixed + delta) for delta in deltas) / len(deltas)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("one_step", [False, True])
@pytest.mark.parametrize(("step", "steps", "radius"), [(0.3, 4, None), (0.4, 3, 0.6), (0.5, 1, None), (0.5, 2, 0.3)])
def test_the_loss_is_that_of_the_definition(make_case, seed, m, one_step, step, steps, radius):
    case = make_case(seed, shape=SHAPES[seed], classes=3 + seed, inputs=9, noise=Gaussian(0.2))
    rows, shares = list(case.rows(m)), 0.5 * case.uniforms(m)[:, 0]
    attacked = [adversaries(case.net, x, y, deltas, step=step, steps=steps, radius=radius) for x, y, deltas in rows]
    starts = [first if one_step else x for (x, _, _), (first, _) in zip(rows, attacked, strict=True)]
    right = [case.net.smoothed(start, deltas).argmax() == y for start, (_, y, deltas) in zip(starts, rows, strict=True)]
    assert not all(right)
    assert any(right)

    def reference(net):
        losses = [
            mixture_loss(net, y, deltas, start, last, share, eta=3.0)
            for start, (_, y, deltas), (_, last), share in zip(starts, rows, attacked, shares, strict=True)
        ]
        return np.mean(losses)

    method = SmoothMix(eta=3.0, step=step, steps=steps, m=m, one_step=one_step, radius=radius)
    case.check(method, reference, rel=1e-6)  # the shares are drawn in single precision


def test_without_a_ball_the_adversary_goes_as_far_as_its_steps_and_the_box_let_it(make_case):
    case = make_case(1, shape=(40,), inputs=4)
    delta = case.state().noisy(case.noise, case.x, 2) - case.x
    x = case.x * 0.2 + 0.4
    first, last = SmoothMix(step=0.2, steps=6, m=2).adversaries(case.model, x, case.y, delta)
    assert (first - x).norm(dim=1).tolist() == pytest.approx([0.2] * 4)
    assert ((last - x).norm(dim=1) > 0.6).all()
    _, near = SmoothMix(step=0.2, steps=6, m=2, radius=0.5).adversaries(case.model, x, case.y, delta)
    assert ((near - x).norm(dim=1) <= 0.5 + 1e-12).all()
    _, far = SmoothMix(step=3.0, steps=6, m=2).adversaries(case.model, x, case.y, delta)
    assert far.min() == 0
    assert far.max() == 1


def test_weight_0_is_gaussian_training(make_case):
    case = make_case(2)
    plain = case.loss(NoiseAugmentation(m=3)).item()
    assert case.loss(SmoothMix(eta=0.0, m=3)).item() == pytest.approx(plain, rel=1e-13)
    assert case.loss(SmoothMix(eta=1.0, m=3)).item() > plain


def test_weight_0_with_one_step_is_cross_entropy_at_the_first_point(make_case):
    case = make_case(2)
    losses = []
    for x, y, deltas in case.rows(3):
        first, _ = adversaries(case.net, x, y, deltas, step=0.5, steps=1, radius=None)
        losses.append(np.mean([case.net.cross_entropy(first + delta, y) for delta in deltas]))
    loss = case.loss(SmoothMix(eta=0.0, step=0.5, m=3, one_step=True)).item()
    assert loss == pytest.approx(np.mean(losses), rel=1e-9)


def test_where_the_smoothed_classifier_is_wrong_only_the_cross_entropy_counts(make_case):
    case = make_case(3)
    wrong = [case.net.smoothed(x, deltas).argmin() for x, _, deltas in case.rows(2)]
    case.y = torch.tensor(wrong)
    plain = case.loss(NoiseAugmentation(m=2)).item()
    assert case.loss(SmoothMix(eta=50.0, m=2)).item() == pytest.approx(plain, rel=1e-13)
