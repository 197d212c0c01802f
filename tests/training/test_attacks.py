"""Attacks: their steps, their limits, what they find, and that they leave no trace on the model."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from smoothcert.noise import Gaussian
from smoothcert.training.attacks import ascend, ddn, frozen, gradient, mean_log_softmax, shorten, smoothed_nll, unit


def noise_of(case, copies):
    return case.state().noisy(case.noise, case.x, copies) - case.x


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 2, 2)])
def test_smoothed_nll_is_minus_the_log_of_the_mean_probability(make_case, seed, shape):
    case = make_case(seed, shape=shape)
    objective = smoothed_nll(case.model, noise_of(case, 3), case.y)
    values, slopes = objective(case.x).tolist(), gradient(objective, case.x).flatten(1).numpy()
    for value, slope, (x, y, deltas) in zip(values, slopes, case.rows(3), strict=True):
        assert value == pytest.approx(-math.log(case.net.smoothed(x, deltas)[y]), rel=1e-12)
        assert slope == pytest.approx(case.net.smoothed_nll_slope(x, y, deltas), rel=1e-9, abs=1e-12)


def test_the_log_of_the_mean_softmax_survives_certain_predictions():
    logits = torch.tensor([[[1000.0, 0.0, -1000.0]], [[0.0, 0.0, -1000.0]]], requires_grad=True)
    values = mean_log_softmax(logits)
    assert values.tolist() == [pytest.approx([math.log(0.75), math.log(0.25), math.log(0.25) - 1000], rel=1e-6)]
    values.sum().backward()
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("radius", [None, 0.4])
@pytest.mark.parametrize("box", [True, False])
def test_ascent_takes_the_steps_of_the_definition(make_case, seed, steps, radius, box):
    case = make_case(seed)
    clamp = {} if box else {"clamp": None}
    objective = smoothed_nll(case.model, noise_of(case, 2), case.y)
    moved = ascend(objective, case.x, steps=steps, step=0.15, radius=radius, **clamp)
    for at, (x, y, deltas) in zip(moved.numpy(), case.rows(2), strict=True):
        along = [y, deltas]
        expected = case.net.climb(
            lambda at, along=along: case.net.smoothed_nll_slope(at, *along),
            x,
            steps=steps,
            step=0.15,
            radius=radius,
            box=box,
        )
        assert at == pytest.approx(expected, rel=1e-8, abs=1e-10)


def test_ascent_may_start_away_from_the_center_of_its_ball(make_case):
    case = make_case(3)
    start = (case.x + 0.1).clamp(0, 1)
    objective = smoothed_nll(case.model, noise_of(case, 2), case.y)
    moved = ascend(objective, start, steps=3, step=0.2, radius=0.3, center=case.x)
    for at, first, (x, y, deltas) in zip(moved.numpy(), start.numpy(), case.rows(2), strict=True):
        along = [y, deltas]
        expected = case.net.climb(
            lambda at, along=along: case.net.smoothed_nll_slope(at, *along),
            x,
            steps=3,
            step=0.2,
            radius=0.3,
            start=first,
        )
        assert at == pytest.approx(expected, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("shape", [(1,), (30,), (3, 5, 5)])
@pytest.mark.parametrize("radius", [0.1, 1.0, 10.0])
def test_ascent_stays_in_the_ball_and_in_the_box_and_climbs(make_case, shape, radius):
    case = make_case(4, shape=shape, inputs=20)
    objective = smoothed_nll(case.model, noise_of(case, 2), case.y)
    moved = ascend(objective, case.x, steps=6, step=radius / 3, radius=radius)
    assert ((moved - case.x).flatten(1).norm(dim=1) <= radius * (1 + 1e-12)).all()
    assert moved.min() >= 0
    assert moved.max() <= 1
    assert objective(moved).mean() > objective(case.x).mean()
    loose = ascend(objective, case.x, steps=6, step=radius / 3, clamp=(-1.0, 3.0))
    assert loose.min() >= -1
    assert loose.max() <= 3
    assert bool((loose < 0).any()) or radius < 1


def test_ascent_stays_where_the_objective_is_flat():
    x = torch.rand(3, 4)
    assert torch.equal(ascend(lambda at: (at * 0).sum(dim=1), x, steps=4, step=0.5, radius=0.3), x)


def test_every_input_is_attacked_on_its_own(make_case):
    case = make_case(5)
    noise = noise_of(case, 2)
    for attack in (
        lambda rows: ascend(smoothed_nll(case.model, noise[:, rows], case.y[rows]), case.x[rows], steps=3, step=0.2),
        lambda rows: ddn(case.model, noise[:, rows], case.x[rows], case.y[rows], steps=5, radius=1.0),
    ):
        alone = torch.cat([attack(slice(row, row + 1)) for row in range(6)])
        assert torch.allclose(alone, attack(slice(None)), atol=1e-10)


def test_unit_and_shorten_change_lengths_only():
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.03, 0.04]]).reshape(3, 1, 2)
    assert unit(rows).flatten(1).tolist() == [pytest.approx([0.6, 0.8]), [0.0, 0.0], pytest.approx([0.6, 0.8])]
    short = shorten(rows, 0.5).flatten(1).tolist()
    assert short == [pytest.approx([0.3, 0.4]), [0.0, 0.0], pytest.approx([0.03, 0.04])]


@pytest.mark.parametrize("radius", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_ddn_finds_errors_within_its_radius_or_returns_the_input(make_case, radius, steps):
    case = make_case(6, shape=(2, 5), inputs=30)
    objective = smoothed_nll(case.model, noise_of(case, 3), case.y)
    found = ddn(case.model, noise_of(case, 3), case.x, case.y, steps=steps, radius=radius)
    moved = (found != case.x).flatten(1).any(dim=1)
    fooled = []
    for at, (_, y, deltas) in zip(found.flatten(1).numpy(), case.rows(3), strict=True):
        fooled.append(int(case.net.smoothed(at, deltas).argmax()) != y)
    assert all(wrong for wrong, away in zip(fooled, moved.tolist(), strict=True) if away)
    assert ((found - case.x).flatten(1).norm(dim=1) <= radius * (1 + 1e-12)).all()
    assert found.min() >= 0
    assert found.max() <= 1
    assert moved.any() == (steps > 1 and radius > 0.1)
    assert (objective(found)[moved] > objective(case.x)[moved]).all()


def test_ddn_keeps_inputs_that_are_wrong_already_and_comes_nearer_with_more_steps(make_case):
    case = make_case(6, inputs=30)
    noise = noise_of(case, 3)
    wrong = [int(case.net.smoothed(x, deltas).argmax()) != y for x, y, deltas in case.rows(3)]
    few, many = (ddn(case.model, noise, case.x, case.y, steps=steps, radius=2.0) for steps in (2, 30))
    assert 0 < sum(wrong) < 30
    assert torch.equal(many[wrong], case.x[wrong])
    both = (few != case.x).any(dim=1) & (many != case.x).any(dim=1)
    far = (few - case.x).norm(dim=1)[both]
    near = (many - case.x).norm(dim=1)[both]
    assert (near <= far + 1e-12).all()
    assert (near < 0.9 * far).any()


def test_ddn_changes_its_norm_by_the_factor_it_is_given(make_case):
    case = make_case(6, inputs=30, noise=Gaussian(0.1))
    noise = noise_of(case, 1)
    lengths = {}
    for factor in (0.05, 0.2):
        found = ddn(case.model, noise, case.x, case.y, steps=3, radius=0.4, factor=factor, clamp=(-9.0, 9.0))
        lengths[factor] = sorted({round(length, 6) for length in (found - case.x).norm(dim=1).tolist()})
    assert set(lengths[0.05]) == {0.0, 0.38, 0.4}
    assert set(lengths[0.2]) == {0.0, 0.32, 0.4}


class Fragile(nn.Module):
    """Records modes and flags of each call; breaks at the call of this number."""

    def __init__(self, inputs: int, breaks_at: int | None = None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double()
        self.body[1].eval()
        self.body[3].bias.requires_grad_(False)
        self.breaks_at, self.calls = breaks_at, []

    def facts(self):
        return [module.training for module in self.modules()], [weight.requires_grad for weight in self.parameters()]

    def forward(self, x):
        self.calls.append(self.facts())
        if len(self.calls) == self.breaks_at:
            raise ArithmeticError("broken")
        return self.body(x)


def attack_with(kind, model, case):
    noise = noise_of(case, 2)
    with frozen(model):
        if kind == "ddn":
            return ddn(model, noise, case.x, case.y, steps=3, radius=1.0)
        return ascend(smoothed_nll(model, noise, case.y), case.x, steps=3, step=0.3, radius=1.0)


@pytest.mark.parametrize("kind", ["pgd", "ddn"])
@pytest.mark.parametrize("training", [True, False])
def test_a_frozen_model_is_evaluated_without_gradients_and_comes_back_as_it_was(make_case, kind, training):
    case, model = make_case(7), Fragile(5)
    model.training = training
    before = model.facts()
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    x = case.x.clone()
    moved = attack_with(kind, model, case)
    assert model.facts() == before
    assert len(model.calls) == 3
    for modes, flags in model.calls:
        assert not any(modes)
        assert not any(flags)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(case.x, x)
    assert case.x.grad is None
    assert not case.x.requires_grad
    assert not moved.requires_grad


@pytest.mark.parametrize("kind", ["pgd", "ddn"])
@pytest.mark.parametrize("call", [1, 2])
def test_a_model_that_breaks_in_an_attack_comes_back_as_it_was(make_case, kind, call):
    case, model = make_case(7), Fragile(5, breaks_at=call)
    before = model.facts()
    with pytest.raises(ArithmeticError):
        attack_with(kind, model, case)
    assert model.facts() == before
    assert any(before[0])
    assert not all(before[0])


def test_a_frozen_model_keeps_the_gradients_it_had(make_case):
    case = make_case(7)
    case.model(case.x).sum().backward()
    before = [weight.grad.clone() for weight in case.model.parameters()]
    for kind in ("pgd", "ddn"):
        attack_with(kind, case.model, case)
    assert all(torch.equal(weight.grad, old) for weight, old in zip(case.model.parameters(), before, strict=True))


def test_attacks_need_no_surrounding_gradients(make_case):
    case = make_case(7)
    for kind in ("pgd", "ddn"):
        usual = attack_with(kind, case.model, case)
        with torch.no_grad():
            assert torch.equal(attack_with(kind, case.model, case), usual)
        assert not np.array_equal(usual.numpy(), case.x.numpy())
