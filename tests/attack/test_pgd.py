"""The attack on the smoothed classifier: against closed forms, within its ball, and never beyond a certificate."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smoothcert import Cohen, Gaussian, Noise, Norm, Smoothed, data, models
from smoothcert.attack import AttackOutcome, AttackSettings, attack_dataset, attack_input
from smoothcert.types import ABSTAIN, UsageError

SIGMA = 0.25
FAST = AttackSettings(steps=5, copies=4, votes=200)


class Line(nn.Module):
    """Two classes on the line: class 1 where a function is positive; its smoothed class is known for small noise."""

    def __init__(self, margin):
        super().__init__()
        self.margin = margin

    def forward(self, x):
        margin = self.margin(x[:, 0])
        return torch.stack([-margin, margin], dim=1)


def outcomes(results):
    return [(r.index, r.radius, r.outcome, r.prediction.counts) for r in results]


@pytest.fixture(scope="module")
def digits():
    """A small network trained on noisy digits for a few seconds, with its smoothed classifier."""
    torch.manual_seed(0)
    x, y = data.load("digits", split="train").arrays()
    model = models.build("digits-cnn")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for _ in range(6):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch] + SIGMA * torch.randn_like(x[batch])), y[batch]).backward()
            optimizer.step()
    return Smoothed(model.eval(), Gaussian(SIGMA), runtime="eager")


def test_under_exact_noise_the_attack_stays_on_the_grid(digits):
    smoothed = Smoothed(digits.model, Gaussian(SIGMA, grid=256), runtime="eager")
    test = data.load("digits", split="test")
    results = attack_dataset(smoothed, test, [0.5], FAST, every=100, progress=False)
    for result in results:
        smoothed.noise.check(result.adversarial)
        assert float(torch.dist(result.adversarial.double(), test[result.index][0].double())) < 0.5
    assert min(result.distance for result in results if result.outcome is not AttackOutcome.BROKEN) > 0.4


@pytest.mark.parametrize("steepness", [0.1, 5.0, 60.0])
@pytest.mark.parametrize("fresh_noise", [True, False])
def test_a_linear_classifier_breaks_exactly_beyond_its_true_radius(steepness, fresh_noise):
    generator = torch.Generator().manual_seed(1)
    w = F.normalize(torch.randn(16, generator=generator), dim=0)
    model = nn.Linear(16, 2)
    with torch.no_grad():
        model.weight.copy_(steepness * torch.stack([-w, w]))
        model.bias.copy_(steepness * torch.tensor([0.3, -0.3]))
    smoothed = Smoothed(model, Gaussian(0.05), input_range=None)
    settings = AttackSettings(copies=8, votes=2_000, fresh_noise=fresh_noise)
    for index, distance in enumerate((0.2, -0.4)):
        at = torch.randn(16, generator=generator)
        x = at + w * (distance - (w @ at - 0.3))
        true, label = abs(distance), int(distance > 0)
        below = attack_input(smoothed, x, label, true - 0.02, settings, index=index, seed=0)
        above = attack_input(smoothed, x, label, true + 0.02, settings, index=index, seed=0)
        assert below.outcome is AttackOutcome.CORRECT
        assert above.outcome is AttackOutcome.BROKEN
        assert above.prediction.label == 1 - label
        assert true < above.distance < true + 0.02


def test_points_stay_in_the_ball_and_in_the_range(digits):
    pixels = data.load("digits")
    radii = [0.3, 2.0, 1.0]
    results = attack_dataset(digits, pixels, radii, replace(FAST, restarts=2), stop=6, progress=False, seed=0)
    assert [(r.index, r.radius) for r in results] == [(i, r) for i in range(6) for r in sorted(radii)]
    moved = 0
    for result in results:
        x = pixels[result.index][0]
        assert result.adversarial.shape == x.shape
        assert float(result.adversarial.min()) >= 0
        assert float(result.adversarial.max()) <= 1
        distance = float((result.adversarial.double() - x.double()).norm())
        assert result.distance == pytest.approx(distance)
        assert distance < result.radius
        moved += distance > 0.25
    assert moved > len(results) / 2


class Coarse(nn.Module):
    """Weights of 8 bits, and inputs with them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 300).to(torch.bfloat16))

    def forward(self, x):
        score = (x * self.weight).sum(1).float()
        return torch.stack([-score, score], dim=1)


@pytest.mark.parametrize("radius", [0.01, 0.1, 0.5])
def test_coarse_rounding_does_not_lead_out_of_the_ball(radius):
    x = torch.rand(300, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    model = Coarse()
    result = attack_input(Smoothed(model, Gaussian(0.1)), x, int(model(x[None]).argmax()), radius, FAST, seed=0)
    assert result.adversarial.dtype == torch.float32  # rounding to 8 bits is part of the model
    assert 0 < float((result.adversarial.double() - x.double()).norm()) < radius


def test_randomness_depends_on_seed_index_and_radius_only(digits):
    pixels = data.load("digits")
    settings = replace(FAST, restarts=2)

    def found(**options):
        chosen = replace(settings, **options.pop("settings", {}))
        radii, seed = options.pop("radii", [0.4]), options.pop("seed", 0)
        return attack_dataset(digits, pixels, radii, chosen, seed=seed, progress=False, **options)

    together = found(stop=8)
    alone = found(stop=8, settings={"rows": 1})
    some = found(start=1, stop=8, every=3)
    with_another_radius = [r for r in found(stop=8, radii=[0.4, 1e-4]) if r.radius == 0.4]
    single = attack_input(digits, *pixels[4], 0.4, settings, index=4, seed=0)
    for others in (alone, some, with_another_radius, [single]):
        assert len(others) in (8, 3, 1)
        for other in others:
            same = together[other.index]
            assert outcomes([other]) == outcomes([same])
            torch.testing.assert_close(other.adversarial, same.adversarial, rtol=0, atol=1e-5)
    standing = [r for r in together if r.distance > 0]
    assert len(standing) > 4
    for options in ({"seed": 1}, {"settings": {"fresh_noise": False}}, {"settings": {"restarts": 1, "copies": 5}}):
        changed = found(stop=8, **options)
        assert any((changed[r.index].adversarial - r.adversarial).abs().max() > 1e-3 for r in standing)


def test_broken_stays_broken_at_larger_radii():
    band = Smoothed(Line(lambda x: (x - 0.3) ** 2 - 0.01), Gaussian(0.02), input_range=None)
    one_leap = replace(FAST, steps=1)  # at radius 1 it leaps over the band where the class is another
    x = torch.zeros(1)
    assert attack_input(band, x, 1, 1.0, one_leap, seed=0).outcome is AttackOutcome.CORRECT
    small, medium, large = attack_dataset(band, [(x, 1)], [1.0, 0.3, 0.1], one_leap, progress=False, seed=0)
    assert (small.radius, small.outcome) == (0.1, AttackOutcome.CORRECT)
    assert (medium.radius, medium.outcome) == (0.3, AttackOutcome.BROKEN)
    assert (large.radius, large.outcome) == (1.0, AttackOutcome.BROKEN)
    assert large.distance == medium.distance == pytest.approx(0.3, abs=1e-5)


def test_what_is_wrong_from_the_start_is_broken_where_it_stands(half_space):
    smoothed = Smoothed(half_space, Gaussian(0.1))
    results = attack_dataset(smoothed, [(torch.tensor([0.9]), 0)], [0.1, 0.2], FAST, progress=False, seed=0)
    assert [(r.outcome, r.distance, r.prediction.label) for r in results] == [(AttackOutcome.BROKEN, 0.0, 1)] * 2


def test_an_undecided_vote_breaks_nothing(half_space):
    smoothed = Smoothed(half_space, Gaussian(0.1))
    result = attack_input(smoothed, torch.tensor([0.5]), 1, 1e-4, FAST, seed=0)
    assert result.outcome is AttackOutcome.ABSTAINED
    assert result.prediction.label == ABSTAIN


def test_restarts_find_what_the_gradient_at_the_input_hides():
    def margin(x):  # falls to the left, but not below 0; behind a rise to the right it does
        return torch.where(x < 0.1, (0.5 + x).clamp(min=0.2), 0.6 - 3 * (x - 0.1))

    smoothed = Smoothed(Line(margin), Gaussian(0.02), input_range=None)
    x = torch.zeros(1)
    assert attack_input(smoothed, x, 1, 0.6, FAST, seed=0).outcome is AttackOutcome.CORRECT
    assert attack_input(smoothed, x, 1, 0.6, replace(FAST, restarts=8), seed=0).outcome is AttackOutcome.BROKEN


def test_empirical_accuracy_is_at_least_certified_accuracy(digits):
    pixels, radii = data.load("digits"), (0.25, 0.5, 1.0)
    results = attack_dataset(
        digits,
        pixels,
        radii,
        AttackSettings(steps=10, copies=16, votes=500),
        every=25,
        progress=False,
        seed=0,
    )
    procedure = Cohen(n=2_000)
    inputs = ((index, pixels[index][0]) for index in range(0, len(pixels), 25))
    proved = {job.index: answer for job, answer in digits.run(inputs, procedure, procedure.certify, seed=0)}
    broken, certified = [], []
    for radius in radii:
        here = [r for r in results if r.radius == radius]
        broken.append({r.index for r in here if r.outcome is AttackOutcome.BROKEN})
        certified.append({r.index for r in here if (p := proved[r.index]).label == r.label and p.radius >= radius})
        assert len(here) == 20
        assert not broken[-1] & certified[-1]
    assert not any(r.contradicts(proved[r.index].label, proved[r.index].radius) for r in results)
    assert len(certified[0]) > 8  # there is something to contradict
    assert broken[0] < broken[1] < broken[2]  # and the attack is no empty threat
    assert len(broken[2]) > 12


def test_a_contradiction_is_a_sure_other_class_inside_the_certified_ball(half_space):
    smoothed = Smoothed(half_space, Gaussian(0.1))
    broken = attack_input(smoothed, torch.tensor([0.6]), 1, 0.3, FAST, seed=0)
    assert broken.outcome is AttackOutcome.BROKEN
    assert broken.contradicts(1, 0.3)
    assert not broken.contradicts(1, 0.29)  # the certificate does not reach that far
    assert not broken.contradicts(0, 1.0)  # the class it says
    assert not broken.contradicts(ABSTAIN, 0.0)
    undecided = attack_input(smoothed, torch.tensor([0.5]), 1, 1e-4, FAST, seed=0)
    assert not undecided.contradicts(1, 1.0)
    correct = attack_input(smoothed, torch.tensor([0.9]), 1, 0.1, FAST, seed=0)
    assert not correct.contradicts(1, 1.0)
    assert correct.contradicts(0, 1.0)  # a certificate of a class that is not the label


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 10))
    model[1].eval()
    model[3].bias.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    smoothed = Smoothed(model, Gaussian(SIGMA))
    pixels = data.load("digits")
    first = attack_dataset(smoothed, pixels, [0.5], FAST, stop=3, progress=False, seed=0)
    assert outcomes(first) == outcomes(attack_dataset(smoothed, pixels, [0.5], FAST, stop=3, progress=False, seed=0))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model] == [True, False, True, True]
    assert [weight.requires_grad for weight in model[3].parameters()] == [True, False]
    assert all(weight.grad is None for weight in model.parameters())


def test_gradients_that_are_no_numbers_move_nothing():
    def margin(x):
        return (1.0 - x) * torch.where(x > 0.55, torch.nan, 1.0)

    smoothed = Smoothed(Line(margin), Gaussian(0.05), input_range=None)
    result = attack_input(smoothed, torch.tensor([0.0]), 1, 1.0, FAST, seed=0)
    assert result.adversarial.isfinite().all()
    assert 0.1 < result.distance < 1.0


def test_adversarial_inputs_can_be_dropped_and_inputs_differ_in_shape():
    smoothed = Smoothed(lambda x: torch.stack([0 * x.mean(1), x.mean(1) - 0.5], dim=1), Gaussian(0.1))
    mixed = [(torch.full((size,), 0.6), 1) for size in (4, 4, 9)]
    results = attack_dataset(smoothed, mixed, [0.05, 0.6], FAST, progress=False, seed=0)
    assert [r.adversarial.numel() for r in results] == [4, 4, 4, 4, 9, 9]
    assert [r.outcome.value for r in results] == ["correct", "broken"] * 3
    dropped = attack_dataset(smoothed, mixed, [0.05, 0.6], FAST, progress=False, keep=False, seed=0)
    assert [r.adversarial for r in dropped] == [None] * 6
    assert outcomes(dropped) == outcomes(results)


@dataclass(frozen=True)
class OnlyL1(Noise):
    name: ClassVar[str] = "only-l1"
    norms: ClassVar[tuple[Norm, ...]] = (Norm.L1,)
    scale = 1.0

    def sample(self, x, out, generator=None):
        return out.normal_(generator=generator).add_(x)

    def _radius(self, p, norm, dimension): ...

    def _threshold(self, r, norm, dimension): ...


@pytest.mark.parametrize("radii", [[], [0.0], [0.5, -1.0], [float("nan")], [float("inf")]])
def test_radii_that_are_none_are_refused(half_space, radii):
    with pytest.raises(UsageError, match="needs radii above 0"):
        attack_dataset(Smoothed(half_space, Gaussian(0.1)), [(torch.tensor([0.5]), 1)], radii)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"steps": 0}, "steps must be a whole number"),
        ({"copies": 1.5}, "copies must be a whole number"),
        ({"restarts": 0}, "restarts must be"),
        ({"rows": 0}, "rows must be"),
        ({"votes": 0}, "n must be a whole number of samples"),
        ({"alpha": 1.0}, "alpha must lie strictly between"),
        ({"votes": 10}, "10 votes always abstain"),
    ],
)
def test_settings_are_checked(options, match):
    with pytest.raises(UsageError, match=match):
        AttackSettings(**options)
    AttackSettings(votes=11)


def no_graph(x):
    with torch.no_grad():
        return torch.cat([x, 1 - x], dim=1)


@pytest.mark.parametrize(
    "model",
    [
        no_graph,
        lambda x: torch.cat([x, 1 - x], dim=1).round(),
        lambda x: torch.tensor([[0.0, 1.0]]).repeat(len(x), 1).requires_grad_(),
        lambda x: torch.from_numpy(x.repeat(1, 2).numpy()),
    ],
    ids=["no graph", "flat", "unused", "numpy"],
)
def test_a_model_without_gradients_is_refused(model):
    with pytest.raises(UsageError, match=r"has no gradient by its input \(.+\), which the attack needs"):
        attack_input(Smoothed(model, Gaussian(0.1)), torch.tensor([0.5]), 1, 0.5, FAST)


def test_wrong_inputs_are_refused(half_space):
    smoothed = Smoothed(half_space, Gaussian(0.1))
    inputs = [(torch.tensor([0.5]), 1)]
    with pytest.raises(UsageError, match="no input selected"):
        attack_dataset(smoothed, inputs, [0.5], start=1)
    with pytest.raises(UsageError, match="input 3 has label 2, but the model has 2 classes"):
        attack_input(smoothed, torch.tensor([0.5]), 2, 0.5, index=3)
    with pytest.raises(UsageError, match="outside the declared range"):
        attack_input(smoothed, torch.tensor([1.5]), 1, 0.5)
    with pytest.raises(UsageError, match="seed must be between 0"):
        attack_input(smoothed, torch.tensor([0.5]), 1, 0.5, seed=-1)
    with pytest.raises(UsageError, match="does not certify the norm"):
        attack_input(Smoothed(half_space, OnlyL1()), torch.tensor([0.5]), 1, 0.5)
