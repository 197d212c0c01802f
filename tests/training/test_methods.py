"""The contract of training methods, checked on every one of them."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch
from torch import Generator, nn

from smoothcert.noise import Gaussian
from smoothcert.testing import check_method
from smoothcert.training.methods import (
    METHODS,
    CatRS,
    Consistency,
    Macer,
    NoiseAugmentation,
    SmoothAdv,
    SmoothMix,
    Stability,
    State,
)
from smoothcert.types import UsageError

DEFAULTS = [method() for method in METHODS.values()]
VARIANTS = [
    *DEFAULTS,
    NoiseAugmentation(m=3),
    SmoothAdv(attack="ddn", steps=4),
    *[Consistency(form=form, m=3) for form in ("xent", "kl", "mse")],
    SmoothMix(one_step=True, radius=0.5),
    SmoothMix(steps=1, m=1),
    CatRS(mask=False),
    CatRS(count="soft", target="mean", worst="mean", low=False, mask=False),
    CatRS(count="all", target="label"),
]
ATTACKS = [SmoothAdv(), SmoothAdv(attack="ddn"), SmoothMix(), SmoothMix(one_step=True), CatRS(mask=False)]


def title(method):
    changed = {f.name: getattr(method, f.name) for f in fields(method) if getattr(method, f.name) != f.default}
    return " ".join([method.name, *(f"{name}={value}" for name, value in changed.items())])


def test_methods_are_known_by_their_names():
    assert list(METHODS) == ["gaussian", "stability", "smoothadv", "macer", "consistency", "smoothmix", "catrs"]
    assert all(method.name == name for name, method in METHODS.items())


def test_defaults_are_those_of_the_papers():
    assert NoiseAugmentation() == NoiseAugmentation(m=1)
    assert Stability() == Stability(lam=2.0)
    assert SmoothAdv() == SmoothAdv(epsilon=1.0, steps=10, m=4, warmup=10.0, attack="pgd")
    assert Macer() == Macer(lam=16.0, gamma=8.0, beta=16.0, m=16, deferred=False)
    assert Consistency() == Consistency(lam=5.0, eta=0.5, m=2, form="default")
    assert SmoothMix() == SmoothMix(eta=5.0, step=1.0, steps=4, m=4, one_step=False, radius=None)
    assert CatRS() == CatRS(
        lam=1.0,
        m=4,
        steps=4,
        epsilon=1.0,
        late_epsilon=None,
        low=True,
        mask=True,
        count="votes",
        target="soft",
        worst="max",
    )


@pytest.mark.parametrize("method", VARIANTS, ids=title)
def test_every_method_keeps_the_contract(method):
    check_method(method)


@pytest.mark.parametrize("method", VARIANTS, ids=title)
def test_every_method_takes_any_noise(make_case, method, uniform_noise):
    case, seen = make_case(2, shape=(50,)), []
    gaussian = case.loss(method).item()
    case.noise = uniform_noise
    assert case.loss(method).item() != gaussian
    case.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    case.loss(method).backward()
    if method.name in ("gaussian", "macer", "consistency", "catrs"):  # the first points seen are noisy inputs
        offsets = seen[0].reshape(-1, *case.x.shape) - case.x
        assert 0.45 < offsets.abs().max() <= 0.5


def test_losses_without_regularizer_are_gaussian_training_to_the_last_digit(make_case):
    case = make_case(3)
    plain = case.loss(NoiseAugmentation(m=4)).item()
    for form in ("default", "xent", "kl", "mse"):
        assert case.loss(Consistency(lam=0.0, eta=0.0, m=4, form=form)).item() == plain
    for method in (SmoothMix(eta=0.0), SmoothAdv(epsilon=0.0), CatRS(lam=0.0, count="all")):
        assert case.loss(method).item() == pytest.approx(plain, rel=1e-14)
    assert case.loss(Stability(lam=0.0)).item() == pytest.approx(
        nn.functional.cross_entropy(case.model(case.x), case.y).item(), rel=1e-14
    )


class Counter(nn.Module):
    """Counts the rows that pass in training and in evaluation mode."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.rows = model, {True: 0, False: 0}

    def forward(self, x):
        self.rows[self.training] += len(x)
        return self.model(x)


COUNTED = [
    *[method for method in VARIANTS if method.name != "catrs" or not method.mask],
    SmoothAdv(m=3, steps=2),
    CatRS(mask=False, m=2, steps=3),
    CatRS(lam=0.0),
    SmoothMix(eta=0.0),
    SmoothMix(eta=0.0, one_step=True),
    SmoothAdv(epsilon=0.0),
]


@pytest.mark.parametrize("method", COUNTED, ids=title)
def test_passes_are_those_that_are_run(make_case, method):
    case = make_case(4)
    case.model = Counter(case.model)
    case.loss(method)
    passes = method.passes
    assert case.model.rows == {True: (passes.train + passes.forward) * 6, False: passes.attack * 6}
    assert passes.train > 0
    assert method.copies >= 1


def test_copies_are_the_noisy_copies_of_an_input():
    assert {name: method().copies for name, method in METHODS.items()} == {
        "gaussian": 1, "stability": 1, "smoothadv": 4, "macer": 16, "consistency": 2, "smoothmix": 4, "catrs": 4
    }  # fmt: skip
    for method in (NoiseAugmentation, SmoothAdv, Macer, Consistency, SmoothMix, CatRS):
        assert method(m=7).copies == 7


def test_confident_training_attacks_no_more_than_it_says(make_case):
    case = make_case(4, inputs=9)
    case.model = Counter(case.model)
    case.loss(CatRS())
    passes = CatRS().passes
    assert case.model.rows[True] <= passes.train * 9
    assert case.model.rows[False] <= passes.attack * 9


class Delicate(nn.Module):
    """Batch statistics, dropout, a part in evaluation mode and a weight without gradient; may break in an attack."""

    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.norm, self.old, self.drop = nn.BatchNorm1d(5), nn.BatchNorm1d(5).eval(), nn.Dropout(0.1)
        self.head, self.breaks = nn.Linear(5, 3), breaks
        self.head.bias.requires_grad_(False)
        self.double()

    def facts(self):
        return [module.training for module in self.modules()], [weight.requires_grad for weight in self.parameters()]

    def forward(self, x):
        if self.breaks and not self.training:
            raise ArithmeticError("broken")
        return self.head(self.drop(self.old(self.norm(x))))


@pytest.mark.parametrize("method", ATTACKS, ids=title)
def test_a_model_that_breaks_in_an_attack_is_left_as_it_was(make_case, method):
    case = make_case(5)
    case.model = Delicate(breaks=True)
    before = case.model.facts()
    with pytest.raises(ArithmeticError, match="broken"):
        case.loss(method)
    assert case.model.facts() == before


@pytest.mark.parametrize("method", ATTACKS, ids=title)
def test_attacks_do_not_move_batch_statistics(make_case, method):
    case = make_case(5)
    case.model = Delicate()
    case.loss(method)
    assert case.model.norm.num_batches_tracked == (1 if method.name == "smoothadv" else 2)
    assert case.model.old.num_batches_tracked == 0


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_parts_of_a_batch_draw_what_the_whole_draws(make_case, uniform_noise, cut):
    x = make_case(7, shape=(2, 3)).x
    for noise in (Gaussian(0.5), uniform_noise):
        drawn = []
        for rows, place in ((slice(0, 6), None), (slice(0, cut), (0, 6)), (slice(cut, 6), (cut, 6))):
            state = State(generator=Generator().manual_seed(3), place=place)
            drawn.append((state.noisy(noise, x[rows], 3), state.uniform(x[rows], 2), state.noisy(noise, x[rows])))
        for whole, *parts in zip(*drawn, strict=True):
            assert torch.equal(torch.cat(parts, dim=1), whole)
        assert drawn[0][0].shape == (3, 6, 2, 3)
        assert drawn[0][1].shape == (2, 6)


def test_a_state_draws_noise_about_the_inputs_and_uniform_numbers():
    state = State(generator=Generator().manual_seed(0))
    x = torch.rand(2000, 5)
    offsets = state.noisy(Gaussian(0.5), x, 2) - x
    assert offsets.mean().abs() < 0.02
    assert offsets.std() == pytest.approx(0.5, abs=0.01)
    assert abs((offsets[0] * offsets[1]).mean()) < 0.01
    numbers = state.uniform(x, 3)
    assert 0 <= numbers.min() < 0.001 < 0.999 < numbers.max() < 1
    assert numbers.mean() == pytest.approx(0.5, abs=0.01)


def test_a_state_stands_for_a_training_past_its_warm_up_by_default():
    state = State(generator=Generator())
    assert (state.epoch, state.rate_dropped, state.soft_labels, state.place) == (math.inf, True, None, None)


@pytest.mark.parametrize("method", DEFAULTS, ids=title)
def test_every_method_refuses_labels_that_do_not_fit(make_case, method):
    case = make_case(8)
    case.y = case.y[:-1]
    with pytest.raises(UsageError, match="as many labels as inputs, got 6 inputs and 5 labels"):
        case.loss(method)


@pytest.mark.parametrize("method", VARIANTS, ids=title)
def test_every_method_says_when_soft_labels_are_missing(make_case, method):
    case = make_case(8)
    if not method.needs_soft_labels:
        assert case.loss(method, soft_labels=None).item() == case.loss(method).item()
        return
    for missing in (None, case.soft[:-1]):
        with pytest.raises(UsageError, match=r"needs a soft label for each input; pass them as State\(soft_labels=…\)"):
            case.loss(method, soft_labels=missing)


def test_soft_labels_are_needed_for_the_target_or_the_count():
    assert CatRS().needs_soft_labels
    assert CatRS(lam=0.0, count="soft").needs_soft_labels
    assert CatRS(target="label", count="soft").needs_soft_labels
    assert not CatRS(lam=0.0).needs_soft_labels
    assert not CatRS(target="mean").needs_soft_labels
    assert not any(method.needs_soft_labels for method in DEFAULTS if method.name != "catrs")


NONSENSE = {
    "int": (-1,),
    "float": (-0.5, math.nan),
    "float | None": (-0.5, math.nan),
    "str": ("no such thing",),
    "bool": (),
}
SENSELESS = [
    (name, field.name, value)
    for name, method in METHODS.items()
    for field in fields(method)
    for value in NONSENSE[field.type]
    if field.name != "late_from" and (field.name, value) != ("late_epsilon", math.nan)
]


@pytest.mark.parametrize(("name", "setting", "value"), SENSELESS)
def test_every_setting_refuses_what_makes_no_sense(name, setting, value):
    with pytest.raises(UsageError, match=rf"\b{setting}\b.*\."):
        METHODS[name](**{setting: value})


def test_a_later_epsilon_must_be_a_number():
    with pytest.raises(UsageError, match="late_epsilon"):
        CatRS(late_epsilon=math.nan)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("gaussian", {"m": 0}, "m must be at least 1, got 0"),
        ("smoothadv", {"attack": "fgsm"}, "attack must be pgd or ddn, got 'fgsm'"),
        ("smoothadv", {"steps": 0}, "steps must be at least 1, got 0"),
        ("smoothadv", {"m": 0}, "m must be at least 1, got 0"),
        ("macer", {"gamma": 0.0}, "gamma and beta must be positive"),
        ("macer", {"beta": 0.0}, "gamma and beta must be positive"),
        ("macer", {"m": 0}, "m must be at least 1, got 0"),
        ("consistency", {"m": 1}, "m must be at least 2, as predictions are compared, got 1"),
        ("consistency", {"form": "l1"}, "form must be one of default, xent, kl, mse, got 'l1'"),
        ("smoothmix", {"step": 0.0}, "step must be positive"),
        ("smoothmix", {"steps": 0}, "steps must be at least 1, got 0"),
        ("smoothmix", {"m": 0}, "m must be at least 1, got 0"),
        ("smoothmix", {"radius": 0.0}, "radius must be positive"),
        ("catrs", {"steps": 0}, "steps must be at least 1, got 0"),
        ("catrs", {"m": 0}, "m must be at least 1, got 0"),
        ("catrs", {"low": False, "lam": 0.0}, "without L_low, lam must be positive"),
        ("catrs", {"count": "half"}, "count must be one of votes, soft, all, got 'half'"),
        ("catrs", {"target": "hard"}, "target must be one of soft, mean, label, got 'hard'"),
        ("catrs", {"worst": "min"}, "worst must be one of max, mean, got 'min'"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(name, settings, sentence):
    with pytest.raises(UsageError, match=sentence):
        METHODS[name](**settings)
