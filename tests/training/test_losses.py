"""Losses without an attack equal their definitions, written again in NumPy one input at a time."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator, nn

from smoothcert.noise import Gaussian
from smoothcert.training.methods import Consistency, Macer, NoiseAugmentation, Stability, State

SEEDS = [0, 1, 2]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("m", [1, 3])
def test_gaussian_is_the_cross_entropy_of_noisy_copies(make_case, seed, m):
    case = make_case(seed, classes=3 + seed)
    rows = list(case.rows(m))

    def reference(net):
        return np.mean([net.cross_entropy(x + delta, y) for x, y, deltas in rows for delta in deltas])

    case.check(NoiseAugmentation(m=m), reference)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lam", [0.0, 0.7, 2.0])
def test_stability_draws_the_noisy_prediction_to_the_clean_one_and_back(make_case, seed, lam):
    case = make_case(seed)
    rows = list(case.rows())

    def reference(net):
        losses = []
        for x, y, (delta,) in rows:
            drift = -sum(p * logp for p, logp in zip(net.softmax(x), net.log_softmax(x + delta), strict=True))
            losses.append(net.cross_entropy(x, y) + lam * drift)
        return np.mean(losses)

    case.check(Stability(lam=lam), reference)


def penalty(form, lam, eta, predictions):
    mean = sum(predictions) / len(predictions)
    entropy = -sum(p * math.log(p) for p in mean)
    if form == "mse":
        return lam * np.mean([((a - b) ** 2).sum() for a, b in itertools.combinations(predictions, 2)])
    if form == "xent":
        return lam * np.mean([-(mean * np.log(each)).sum() for each in predictions])
    divergence = np.mean([(mean * np.log(mean / each)).sum() for each in predictions])
    return lam * divergence + (eta * entropy if form == "default" else 0.0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("form", ["default", "xent", "kl", "mse"])
def test_consistency_punishes_predictions_that_differ(make_case, seed, m, form):
    case = make_case(seed)
    rows = list(case.rows(m))

    def reference(net):
        losses = []
        for x, y, deltas in rows:
            predictions = [net.softmax(x + delta) for delta in deltas]
            losses.append(np.mean([-math.log(each[y]) for each in predictions]) + penalty(form, 3.0, 0.4, predictions))
        return np.mean(losses)

    case.check(Consistency(lam=3.0, eta=0.4, m=m, form=form), reference)


def soft_gap(net, x, deltas, beta):
    """The likeliest class at this inverse temperature, and the gap between the quantiles of the first two."""
    p = np.zeros(len(net.logits(x)))
    for delta in deltas:
        logits = beta * net.logits(x + delta)
        p += np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum() / len(deltas)
    first, second = sorted(p)[-1], sorted(p)[-2]
    return int(p.argmax()), stats.norm.ppf(first) - stats.norm.ppf(second)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gamma", [0.8, 8.0])
def test_macer_has_a_hinge_on_the_soft_radius_of_inputs_it_gets_right(make_case, seed, gamma):
    case = make_case(seed, inputs=9, noise=Gaussian(0.7))
    kinds = set()
    rows = list(case.rows(5))

    def reference(net):
        losses = []
        for x, y, deltas in rows:
            top, gap = soft_gap(net, x, deltas, beta=3.0)
            counts = top == y and math.isfinite(gap) and gap <= gamma
            kinds.add((top == y, gap <= gamma))
            losses.append(-math.log(net.smoothed(x, deltas)[y]))
            losses[-1] += 6.0 * 0.7 / 2 * max(0.0, gamma - gap) if counts else 0.0
        return np.mean(losses)

    case.check(Macer(lam=6.0, gamma=gamma, beta=3.0, m=5), reference)
    assert (True, True) in kinds
    assert any(not right for right, _ in kinds)
    assert gamma > 1 or (True, False) in kinds


def test_macer_takes_the_standard_deviation_of_any_noise(make_case, uniform_noise):
    case = make_case(3, noise=uniform_noise)
    rows = list(case.rows(4))

    def reference(net):
        losses = []
        for x, y, deltas in rows:
            top, gap = soft_gap(net, x, deltas, beta=2.0)
            hinge = max(0.0, 8.0 - gap) if top == y else 0.0
            losses.append(-math.log(net.smoothed(x, deltas)[y]) + 0.5 * (0.5 / math.sqrt(3)) / 2 * hinge)
        return np.mean(losses)

    case.check(Macer(lam=0.5, beta=2.0, m=4), reference)


def test_macer_without_its_hinge_is_the_nll_of_the_smoothed_classifier(make_case):
    case = make_case(5)
    nll = np.mean([-math.log(case.net.smoothed(x, deltas)[y]) for x, y, deltas in case.rows(4)])
    assert case.loss(Macer(lam=0.0, m=4)).item() == pytest.approx(nll, rel=1e-12)
    assert case.loss(Macer(lam=16.0, m=4)).item() > nll


def test_deferred_macer_waits_for_the_rate_to_drop(make_case):
    case = make_case(5)
    without, full = case.loss(Macer(lam=0.0, m=4)).item(), case.loss(Macer(m=4)).item()
    assert case.loss(Macer(m=4, deferred=True), rate_dropped=False).item() == without
    assert case.loss(Macer(m=4, deferred=True), rate_dropped=True).item() == full
    assert case.loss(Macer(m=4), rate_dropped=False).item() == full
    assert full > without


def test_macer_can_warm_up(make_case):
    case = make_case(5)
    assert case.loss(Macer(m=4, warmup=2.0), epoch=0.0).item() == case.loss(Macer(m=4, lam=0.0)).item()
    assert case.loss(Macer(m=4, warmup=2.0), epoch=0.5).item() == case.loss(Macer(m=4, lam=4.0)).item()
    assert case.loss(Macer(m=4, warmup=2.0), epoch=2.0).item() == case.loss(Macer(m=4)).item()


EXCLUDED = {
    "wrong": ([0.1, 0.0, 0.0], 1),
    "infinite gap": ([30.0, 0.0, 0.0], 0),
    "gap above gamma": ([0.7, 0.0, 0.0], 0),
}


@pytest.mark.parametrize("kind", EXCLUDED)
def test_macer_leaves_out_what_no_hinge_is_defined_for(still, kind):
    logits, label = EXCLUDED[kind]
    rows = torch.tensor([logits, [0.05, 0.0, -0.1], logits])
    labels = torch.tensor([label, 0, label])
    gradients = {}
    for lam in (0.0, 16.0):
        model = nn.Linear(3, 3)
        with torch.no_grad():
            model.weight.copy_(torch.eye(3))
            model.bias.zero_()
        method, state = Macer(lam=lam, gamma=5.0, m=2), State(generator=Generator())
        x = rows.clone().requires_grad_(True)
        loss = method(model, x, labels, still, state)
        alone = method(model, rows[1:2], labels[1:2], still, state)
        inputs, *weights = torch.autograd.grad(loss, [x, *model.parameters()])
        assert all(slope.isfinite().all() for slope in (inputs, *weights))
        gradients[lam] = loss.item(), alone.item(), inputs
    excess = gradients[16.0][0] - gradients[0.0][0]
    assert excess == pytest.approx((gradients[16.0][1] - gradients[0.0][1]) / 3, rel=1e-5)  # the mean is over all rows
    assert excess > 0
    assert torch.equal(gradients[16.0][2][[0, 2]], gradients[0.0][2][[0, 2]])
    assert not torch.equal(gradients[16.0][2][1], gradients[0.0][2][1])
