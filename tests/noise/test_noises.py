"""The contract of noises, checked on every one of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from smoothcert.noise import NOISES, Discrete, Gaussian, Noise, Uniform, noise_from_config
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


@pytest.mark.parametrize(("noise", "norm"), PAIRS, ids=titles)
def test_radius_grows_with_p_and_is_zero_at_one_half(noise: Noise, norm: Norm):
    p = np.concatenate([np.linspace(0, 1, 301), 1 - np.logspace(-9, -2, 30)])
    p.sort()
    radius = noise.radius(p, norm, 49)
    assert radius.shape == p.shape
    assert np.all(np.diff(radius) >= 0)
    assert np.all(radius[p <= 0.5] == 0)
    assert radius[-2] > 0
    assert noise.radius(p.reshape(1, -1), norm, 49).tolist() == [radius.tolist()]
    assert [float(noise.radius(q, norm, 49)) for q in p[::40].tolist()] == radius[::40].tolist()


@pytest.mark.parametrize(("noise", "norm"), PAIRS, ids=titles)
def test_a_bound_above_the_threshold_proves_the_radius_and_none_below_does(noise: Noise, norm: Norm):
    r = np.array([0.0, 1.0, 2.0, 3.0]) if norm is Norm.L0 else np.array([0.0, 0.01, 0.02, 0.05])
    p = noise.threshold(r, norm, 4)
    assert np.all(np.diff(p) > 0)
    assert np.all((p > 0.5) & (p <= 1))
    assert np.all(noise.radius(np.minimum(p + 1e-12, 1), norm, 4) >= r)
    assert np.all(noise.radius(p - 1e-12, norm, 4)[1:] < r[1:])
    assert noise.threshold(r.reshape(2, 2), norm, 4).tolist() == p.reshape(2, 2).tolist()
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


@pytest.mark.parametrize("noise", ALL, ids=titles)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_drawn_depends_on_the_generator_and_the_shape_only(noise: Noise, dtype):
    generator = torch.Generator()

    def draw(x, seed=3):
        return noise.sample(x, torch.full((6, *x.shape), 9.0, dtype=dtype), generator.manual_seed(seed))

    zeros, ones = torch.zeros(2, 5, dtype=dtype), torch.ones(2, 5, dtype=dtype)
    assert draw(zeros).dtype == dtype
    assert torch.equal(draw(zeros), draw(zeros))
    assert not torch.equal(draw(zeros), draw(zeros, seed=4))
    if noise.additive:
        assert torch.allclose(draw(ones) - 1, draw(zeros), atol=1e-6)
    assert draw(zeros).unique().numel() > 1
    batch = torch.stack([zeros, ones])  # one copy of each, as in training
    drawn = noise.sample(batch, torch.empty(1, 2, 2, 5, dtype=dtype), generator.manual_seed(3))
    assert torch.equal(drawn[0, 0], noise.sample(zeros, torch.empty(2, 2, 5, dtype=dtype), generator.manual_seed(3))[0])
    out = torch.empty(4, 2, 5, dtype=dtype)
    assert noise.sample(zeros, out) is out  # without a generator, from PyTorch's own


@pytest.mark.parametrize("noise", ALL, ids=titles)
def test_the_scale_is_the_standard_deviation_of_a_coordinate(noise: Noise):
    out = noise.sample(torch.zeros(1), torch.empty(200_000, 1), torch.Generator().manual_seed(5))
    rounded = 0.0 if getattr(noise, "grid", None) is None else 1 / 12 / noise.grid**2  # the variance that rounding adds
    assert float(out.double().std()) == pytest.approx((noise.scale**2 + rounded) ** 0.5, rel=0.01)


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
