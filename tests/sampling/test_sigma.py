"""Noise scales chosen for each input: against plain loops, closed forms and quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats
from torch import nn

from smoothcert.sampling.seeds import BLOCK, MODELLING, block_seed
from smoothcert.sampling.sigma import GridSigma, OptimizeSigma, sigma_generator
from smoothcert.types import UsageError


@pytest.fixture(autouse=True)
def _same_weights_every_time():
    torch.manual_seed(0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def optimize_sigma(model, x, sigma, *, generator, **settings):
    return OptimizeSigma(**settings)(model, x, sigma, generator)


def grid_sigma(model, x, grid, *, n, generator):
    return GridSigma(grid=tuple(grid), n=n)(model, x, torch.ones(len(x), dtype=torch.float64), generator)


class Slab(nn.Module):
    """Class 1 within ``width`` of the middle of the first coordinate, with a soft edge; class 0 elsewhere."""

    def __init__(self, width: float = 0.4, sharpness: float = 12.0) -> None:
        super().__init__()
        self.width, self.sharpness = width, sharpness

    def logit(self, first: torch.Tensor) -> torch.Tensor:
        return self.sharpness * (self.width - (first - 0.5).abs())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logit = self.logit(x.flatten(1)[:, 0])
        return torch.stack([-logit, logit], dim=1)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


def reference(weight, bias, x, sigma, *, steps, n, step, clamp, interval, noise):
    """Algorithm 1 for one input of a linear classifier: loops, and the derivative by hand.

    With q_i the softmax of copy i: dq_i/dσ = q_i (v_i − q_i·v_i) where v_i = W ε_i are the slopes of its logits; then
    dR/dσ = gap/2 + σ/2 (p_A'/φ(Φ⁻¹ p_A) − p_B'/φ(Φ⁻¹ p_B)), a clamped probability having no slope.
    """
    for k in range(steps):
        p, slope = np.zeros(len(bias)), np.zeros(len(bias))
        for i in range(n):
            q = softmax(weight @ (x + sigma * noise[k][i]) + bias)
            v = weight @ noise[k][i]
            p += q / n
            slope += q * (v - q @ v) / n
        second, first = np.argsort(p)[-2:]
        total = 0.0
        gap = 0.0
        for c, sign in ((first, 1), (second, -1)):
            z = stats.norm.ppf(min(max(p[c], clamp[0]), clamp[1]))
            gap += sign * z
            if clamp[0] < p[c] < clamp[1]:
                total += sign * slope[c] / stats.norm.pdf(z)
        sigma = min(max(sigma + step * (gap / 2 + sigma / 2 * total), interval[0]), interval[1])
    return sigma


@pytest.mark.parametrize(("n", "steps", "step"), [(1, 7, 0.01), (3, 5, 0.1), (8, 1, 0.5), (2, 30, 0.2)])
def test_equals_a_reference_in_plain_loops(n, steps, step):
    rng = np.random.default_rng(n)
    model = nn.Linear(6, 4).double()
    with torch.no_grad():
        model.weight.mul_(4)
    weight, bias = (p.detach().numpy() for p in (model.weight, model.bias))
    x, start = rng.random((5, 6)), rng.uniform(0.1, 1.0, 5)
    settings = {"steps": steps, "n": n, "step": step, "clamp": (0.02, 0.98), "interval": (0.05, 1.2)}
    found = optimize_sigma(
        model, torch.from_numpy(x), torch.from_numpy(start), **settings, generator=[generator(i) for i in range(5)]
    )
    for i in range(5):
        own = generator(i)
        noise = [torch.randn((n, 6), generator=own, dtype=torch.float64).numpy() for _ in range(steps)]
        expected = reference(weight, bias, x[i], start[i], **settings, noise=noise)
        assert float(found[i]) == pytest.approx(expected, rel=1e-9)
    assert not np.allclose(found.numpy(), start)


def test_one_generator_gives_every_input_of_a_batch_fresh_noise():
    model, x = nn.Linear(20, 3), torch.full((4, 20), 0.5)
    found = optimize_sigma(model, x, torch.full((4,), 0.5), steps=3, step=0.1, generator=generator())
    assert len(set(found.tolist())) == 4


def test_climbs_at_the_known_rate_where_the_class_is_sure():
    """A linear model far from its boundary: both probabilities are clamped, so dR/dσ is exactly Φ⁻¹(0.98)."""
    model = nn.Linear(2, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-200.0, 0.0], [200.0, 0.0]]))
        model.bias.copy_(torch.tensor([100.0, -100.0]))
    x = torch.tensor([[1.0, 0.5]], dtype=torch.float64)
    found = optimize_sigma(model, x, torch.tensor([0.02], dtype=torch.float64), steps=100, generator=generator())
    assert float(found) == pytest.approx(0.02 + 100 * 1e-4 * stats.norm.ppf(0.98), rel=1e-9)


def test_climbs_on_a_linear_model_to_where_the_radius_stops_growing():
    """A steep half-space at distance m has R = min(σ Φ⁻¹(0.98), m): it grows up to σ = m / Φ⁻¹(0.98), not further."""
    steep = nn.Linear(2, 2)
    with torch.no_grad():
        steep.weight.copy_(torch.tensor([[-5e3, 0.0], [5e3, 0.0]]))
        steep.bias.copy_(torch.tensor([2.5e3, -2.5e3]))
    x, best = torch.tensor([[0.8, 0.5]]), 0.3 / stats.norm.ppf(0.98)
    found = [
        float(optimize_sigma(steep, x, torch.tensor([0.02]), steps=k, n=2000, step=2e-3, generator=generator()))
        for k in (10, 25, 60)
    ]
    assert found[0] < found[1] < found[2]
    assert found[0] == pytest.approx(0.02 + 10 * 2e-3 * stats.norm.ppf(0.98), rel=1e-4)
    assert found[2] > 0.9 * best


@pytest.mark.parametrize("start", [0.08, 0.3])
def test_finds_the_best_sigma_of_a_slab_from_both_sides(start):
    """Where too much noise leaves the class, one σ is best; found here by quadrature and a scalar search."""
    model = Slab()
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    weights = weights / math.sqrt(2 * math.pi)

    def radius(sigma: float) -> float:
        logit = model.logit(torch.from_numpy(0.5 + sigma * nodes)).numpy()
        p = float(weights @ special.expit(2 * logit))
        quantiles = stats.norm.ppf(np.clip([p, 1 - p], 0.02, 0.98))
        return sigma / 2 * float(quantiles[0] - quantiles[1])

    best = optimize.minimize_scalar(lambda s: -radius(s), bounds=(0.02, 0.6), method="bounded").x
    found = optimize_sigma(
        model,
        torch.full((1, 2), 0.5),
        torch.tensor([start]),
        steps=150,
        n=400,
        step=5e-3,
        generator=generator(),
    )
    assert radius(float(found)) > 0.98 * radius(best)
    assert radius(float(found)) > 1.1 * radius(start)
    on_grid = grid_sigma(model, torch.full((1, 2), 0.5), np.arange(1, 61) / 100, n=20_000, generator=generator())
    assert radius(float(on_grid)) > 0.98 * radius(best)


def test_company_in_the_batch_does_not_change_a_scale():
    model, x = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5)).double(), torch.rand(6, 8).double()
    start = torch.linspace(0.1, 0.6, 6, dtype=torch.float64)
    for solver in (OptimizeSigma(steps=20, n=2, step=0.02), GridSigma(n=20)):
        together = solver(model, x, start, [sigma_generator(5, i) for i in range(6)])
        few = solver(model, x[[4, 1]], start[[4, 1]], [sigma_generator(5, i) for i in (4, 1)])
        assert few.tolist() == pytest.approx(together[[4, 1]].tolist(), rel=1e-12)
        alone = solver(model, x[4:5], start[4:5], sigma_generator(5, 4))
        assert float(alone) == pytest.approx(float(together[4]), rel=1e-12)
    assert torch.equal(GridSigma(n=20)(model, x, start, [sigma_generator(5, i) for i in range(6)]), together)


def test_the_noise_of_the_choice_is_that_of_no_vote():
    assert sigma_generator(3, 8).initial_seed() == block_seed(3, 8, MODELLING, 0)
    votes = {block_seed(3, 8, stage, block) for stage in (*range(29), 30, 31) for block in range(100_000 // BLOCK)}
    assert sigma_generator(3, 8).initial_seed() not in votes
    assert sigma_generator(3, 8).initial_seed() != sigma_generator(3, 9).initial_seed()


def test_grid_equals_a_reference_in_plain_loops():
    model, grid, n = nn.Linear(3, 3).double(), (0.4, 0.1, 0.9), 4
    with torch.no_grad():
        model.weight.mul_(6)
    weight, bias = (p.detach().numpy() for p in (model.weight, model.bias))
    x, own = torch.rand(1, 3, dtype=torch.float64), generator(1)
    radii = {}
    for sigma in sorted(grid):
        noise = torch.randn((n, 3), generator=own, dtype=torch.float64).numpy()
        p = sorted(np.mean([softmax(weight @ (x[0].numpy() + sigma * e) + bias) for e in noise], axis=0))
        quantiles = stats.norm.ppf(np.clip([p[-1], p[-2]], 0.02, 0.98))
        radii[sigma] = sigma / 2 * (quantiles[0] - quantiles[1])
    assert float(grid_sigma(model, x, grid, n=n, generator=generator(1))) == max(radii, key=radii.__getitem__)


def test_the_papers_grid_takes_200_evaluations():
    for n in (1, 2, 4, 10):
        solver = GridSigma(n=n)
        assert len(solver.grid) * n == 200
        assert solver.grid[0] == n / 200
        assert solver.grid[-1] == 1.0
    assert GridSigma(n=1, grid=(0.25, 0.5)).grid == (0.25, 0.5)


def test_stays_in_its_interval_and_survives_invalid_logits():
    model = nn.Linear(2, 2)
    inside = optimize_sigma(
        model, torch.rand(3, 2), torch.full((3,), 0.3), steps=50, step=10.0, interval=(0.2, 0.4), generator=generator()
    )
    assert bool(((inside >= 0.2) & (inside <= 0.4)).all())
    start = torch.tensor([0.3, 0.5])
    broken = lambda x: x * torch.tensor(float("nan"))  # noqa: E731
    assert torch.equal(optimize_sigma(broken, torch.rand(2, 2), start, steps=3, generator=generator()), start)
    assert grid_sigma(broken, torch.rand(2, 2), (0.2, 0.1), n=2, generator=generator()).tolist() == [0.1, 0.1]
    assert torch.equal(optimize_sigma(model, torch.rand(2, 2), start, steps=0, generator=generator()), start)


def test_modes_weights_and_gradients_are_left_alone():
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    own = torch.full_like(model[0].weight, 7.0)
    model[0].weight.grad = own
    with torch.inference_mode():  # as inside a certification
        optimize_sigma(model, torch.rand(3, 2), torch.full((3,), 0.3), steps=2, step=0.1, generator=generator())
    grid_sigma(model, torch.rand(3, 2), (0.3, 0.5), n=2, generator=generator())
    assert model.training
    assert model[2].training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(model[0].weight.grad, torch.full_like(own, 7.0))
    assert model[3].weight.grad is None


def test_settings_as_plain_values():
    assert OptimizeSigma().config() == {
        "name": "optimize",
        "steps": 100,
        "n": 1,
        "step": 1e-4,
        "clamp": (0.02, 0.98),
        "interval": (0.01, 10.0),
    }
    assert GridSigma(grid=(0.5,), n=3).config() == {"name": "grid", "grid": (0.5,), "n": 3, "clamp": (0.02, 0.98)}


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: OptimizeSigma(steps=-1), "steps must be a whole number"),
        (lambda: OptimizeSigma(n=0), "n must be a whole number"),
        (lambda: OptimizeSigma(step=0.0), "step must be a positive number"),
        (lambda: OptimizeSigma(clamp=(0.0, 1.0)), "clamp must be"),
        (lambda: OptimizeSigma(interval=(0.0, 1.0)), "interval must be"),
        (lambda: GridSigma(grid=(0.0, 0.5)), "positive scales"),
        (lambda: GridSigma(n=True), "n must be a whole number"),
    ],
)
def test_refuses_settings(make, match):
    with pytest.raises(UsageError, match=match):
        make()


@pytest.mark.parametrize(
    ("x", "sigma", "match"),
    [
        (torch.rand(3, 2), torch.rand(2) + 0.1, "one floating-point sigma per input"),
        (torch.rand(2), torch.rand(2) + 0.1, "one floating-point sigma per input"),
        (torch.ones(2, 2, dtype=torch.int64), torch.rand(2) + 0.1, "one floating-point sigma per input"),
        (torch.rand(2, 2), torch.tensor([0.5, 0.001]), "between 0.01 and 10"),
        (torch.rand(2, 2), torch.tensor([0.5, float("nan")]), "between 0.01 and 10"),
    ],
)
def test_refuses_batches(x, sigma, match):
    with pytest.raises(UsageError, match=match):
        optimize_sigma(nn.Linear(2, 2), x, sigma, steps=1, generator=generator())


def test_refuses_too_few_generators_and_models_without_classes():
    x, sigma = torch.rand(2, 2), torch.full((2,), 0.5)
    with pytest.raises(UsageError, match="1 generators for 2 inputs"):
        optimize_sigma(nn.Linear(2, 2), x, sigma, steps=1, generator=[generator()])
    with pytest.raises(UsageError, match="at least 2 classes"):
        optimize_sigma(nn.Linear(2, 1), x, sigma, steps=1, generator=generator())
