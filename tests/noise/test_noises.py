"""The contract of noises, checked on every one of them."""

from __future__ import annotations

import math

import pytest
import torch

from smoothcert.noise import NOISES, Discrete, Gaussian, Noise, Uniform, noise_from_config
from smoothcert.testing import check_noise
from smoothcert.types import Norm, UsageError

EXAMPLES = {
    "gaussian": [Gaussian(0.5), Gaussian(0.5, grid=255), Gaussian(0.25, grid=16)],
    "uniform": [Uniform(0.5), Uniform(2), Uniform(0.5, grid=255), Uniform(1, grid=10)],
    "discrete": [Discrete(0.8, 1), Discrete(0.2, 255), Discrete(0.3, 16)],
}
ALL = [noise for examples in EXAMPLES.values() for noise in examples]
PAIRS = [(noise, norm) for noise in ALL for norm in noise.norms]


def titles(value):
    return value.value if isinstance(value, Norm) else repr(value)


def test_every_noise_has_an_example():
    assert list(EXAMPLES) == list(NOISES)
    assert all(type(noise) is NOISES[name] for name, examples in EXAMPLES.items() for noise in examples)
    assert {norm for noise in ALL for norm in noise.norms} == set(Norm)


@pytest.mark.parametrize("noise", ALL, ids=titles)
def test_config_describes_a_noise_in_plain_values(noise: Noise):
    config = noise.config()
    assert noise_from_config(config) == noise
    assert all(type(value) in (str, int, float) for value in config.values())
    assert repr(noise) == f"{type(noise).__name__}({', '.join(f'{k}={v}' for k, v in config.items() if k != 'name')})"


@pytest.mark.parametrize("noise", ALL, ids=titles)
def test_every_noise_keeps_the_contract(noise: Noise):
    check_noise(noise)


@pytest.mark.parametrize(("noise", "norm"), PAIRS, ids=titles)
def test_an_infinite_radius_is_never_proved(noise: Noise, norm: Norm):
    assert noise.threshold(math.inf, norm, None if norm in (Norm.L0, Norm.L1, Norm.L2) else 4) == 1.0


@pytest.mark.parametrize("noise", ALL, ids=titles)
def test_the_usual_radius_can_be_certified(noise: Noise):
    assert 0.5 < float(noise.threshold(noise.usual_radius)) < 0.93  # what 100 votes prove at most
    assert 0 < noise.scale < 2


@pytest.mark.parametrize(("noise", "norm"), PAIRS, ids=titles)
def test_a_norm_that_depends_on_the_dimension_asks_for_it(noise: Noise, norm: Norm):
    for question in (noise.radius, noise.threshold):
        if norm is Norm.LINF:
            with pytest.raises(UsageError, match=r"linf radius of .* noise depends on the number of coordinates"):
                question(0.9, norm)
            assert float(question(0.9, norm, 4)) > 0
        else:
            assert float(question(0.9, norm)) == float(question(0.9, norm, 100))
        for wrong in (0, -3, 2.5, True):
            with pytest.raises(UsageError, match="dimension must be a whole number"):
                question(0.9, norm, wrong)


@pytest.mark.parametrize("noise", [Gaussian(1), Uniform(1)], ids=titles)
def test_most_noises_take_any_input(noise: Noise):
    noise.check(torch.tensor([-3.0, 0.123, 7.0]))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"name": "gausian", "sigma": 1.0}, "unknown noise 'gausian'; did you mean 'gaussian'"),
        ({"sigma": 1.0}, "unknown noise ''; Known: discrete, gaussian, uniform"),
        ({"name": "uniform", "lamb": 1.0}, "unknown setting of uniform noise 'lamb'; did you mean 'lam'"),
        ({"name": "uniform"}, "uniform noise needs lam"),
        ({"name": "discrete"}, "discrete noise needs keep and levels"),
        ({"name": "uniform", "lam": "1"}, "lam must be a positive number"),
    ],
)
def test_a_wrong_config_is_refused_in_a_sentence(config, match):
    with pytest.raises(UsageError, match=match):
        noise_from_config(config)
