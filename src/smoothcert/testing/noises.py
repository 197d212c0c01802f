"""The contract of a noise, with a statistical test that its radius is not longer than true."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from smoothcert.noise import Noise
from smoothcert.stats.binomial import FloatArray
from smoothcert.types import Norm

SAMPLES = 100_000  # of one coordinate
SIGMAS = 4.0  # standard errors by which a frequency must be off to count as a violation
PROBABILITIES = (0.6, 0.8, 0.95)
BINS = 200


def check_noise(noise: Noise, x: Tensor | None = None, *, seed: int = 0) -> None:
    """Check that a noise keeps the contract of ``Noise``, and that no classifier tried here breaks its radius.

    The radius is tested on one and on nine coordinates. The input is moved by the claimed radius along the first
    coordinate and along the diagonal, and two classifiers try to lose their class on the way: a half-space, and the
    likelihood-ratio test between the two inputs, which is the worst of all classifiers if coordinates are independent.
    A radius that is too long by a tenth is found for most noises; passing the test is not a proof.

    Args:
        x: An input with one coordinate that the noise accepts; 0 by default.

    Raises:
        AssertionError: The noise violates the contract.
    """
    at = torch.zeros(1) if x is None else x
    _check_config(noise)
    for norm in noise.norms:
        _check_radius(noise, norm)
    _check_sample(noise, at)
    _check_scale(noise, at, seed)
    for norm in noise.norms:
        for dimension in (1, 9):
            for p in PROBABILITIES:
                _check_worst_case(noise, norm, at.expand(dimension).clone(), p, seed)


def _check_config(noise: Noise) -> None:
    config = noise.config()
    name = config.pop("name")
    assert name == noise.name, f"config() names the noise {name!r}, not {noise.name!r}"
    for key, value in config.items():
        assert type(value) in (str, int, float), f"config() has {key} = {value!r}, which is not text or a number"
    assert type(noise)(**config) == noise, f"{type(noise).__name__}(**config()) is not equal to the noise"
    assert noise.norms, "norms is empty"
    assert all(isinstance(norm, Norm) for norm in noise.norms), "norms must be of the type Norm"


def _check_radius(noise: Noise, norm: Norm) -> None:
    what = f"{noise!r} in {norm.value}"
    p = np.sort(np.concatenate([np.linspace(0, 1, 301), 1 - np.logspace(-9, -2, 30)]))
    radius = noise.radius(p, norm, 49)
    assert radius.shape == p.shape, f"the radius of {what} has the shape {radius.shape} for p of the shape {p.shape}"
    assert not np.isnan(radius).any(), f"the radius of {what} is NaN for some p"
    assert np.all(np.diff(radius) >= 0), f"the radius of {what} decreases somewhere as p grows"
    assert np.all(radius[p <= 0.5] == 0), f"the radius of {what} is not 0 for p of at most 1/2"
    assert radius[-2] > 0, f"the radius of {what} is 0 even for p = {p[-2]}"
    each = [float(noise.radius(q, norm, 49)) for q in p[::40].tolist()]
    assert each == radius[::40].tolist(), f"the radius of {what} differs between an array and single numbers"
    largest = float(noise.radius(1 - 1e-6, norm, 4))
    r = np.arange(math.floor(largest) + 1)[:4] if norm is Norm.L0 else np.linspace(0, largest, 5)[:-1]
    threshold = noise.threshold(r, norm, 4)
    assert np.all(np.diff(threshold) > 0), f"the threshold of {what} does not grow with the radius"
    assert np.all((threshold > 0.5 - 1e-12) & (threshold <= 1)), f"a threshold of {what} is not between 1/2 and 1"
    above, below = np.minimum(threshold + 1e-12, 1), threshold - 1e-12
    assert np.all(noise.radius(above, norm, 4) >= r), f"p above the threshold of {what} does not prove the radius"
    assert np.all(noise.radius(below, norm, 4)[1:] < r[1:]), f"p below the threshold of {what} proves the radius"


def _check_sample(noise: Noise, at: Tensor) -> None:
    for dtype in (torch.float32, torch.float64):
        x = at.to(dtype).expand(2, 5).clone()
        before = x.clone()

        def draw(x: Tensor, seed: int = 3, dtype: torch.dtype = dtype) -> Tensor:
            out = torch.full((6, *x.shape), 9.0, dtype=dtype)
            drawn = noise.sample(x, out, Generator().manual_seed(seed))
            assert drawn is out, "sample() must fill and return its argument out"
            return drawn

        state = torch.get_rng_state()
        first = draw(x)
        assert torch.equal(state, torch.get_rng_state()), "sample() draws from the global generator"
        assert first.shape == (6, 2, 5), f"sample() changed the shape of out to {tuple(first.shape)}"
        assert first.dtype == dtype, f"sample() changed the type of out to {first.dtype}"
        assert torch.equal(x, before), "sample() changed its input"
        assert torch.equal(first, draw(x)), "sample() gives other copies for a generator of the same seed"
        assert not torch.equal(first, draw(x, seed=4)), "sample() does not use its generator"
        assert first.isfinite().all(), "sample() drew a value that is not finite"
        assert bool((first != first.flatten()[0]).any()), "sample() adds no noise"
        batch = torch.stack([x, x])
        both = noise.sample(batch, torch.empty((1, 2, 2, 5), dtype=dtype), Generator().manual_seed(3))
        alone = noise.sample(x, torch.empty((2, 2, 5), dtype=dtype), Generator().manual_seed(3))
        assert torch.equal(both[0], alone), "the noise must depend on the generator and the shape of out only"
        if noise.additive:
            moved = draw(noise.nearest(x + 1)) - 1
            assert torch.allclose(moved, first, atol=1e-5), "the noise depends on the input; set additive = False"


def _check_scale(noise: Noise, at: Tensor, seed: int) -> None:
    copies = _copies(noise, at.double(), 2 * SAMPLES, seed)
    grid = getattr(noise, "grid", None)
    rounding = 0.0 if grid is None else 1 / 12 / grid**2  # the variance that rounding to a grid adds
    expected, measured = math.sqrt(noise.scale**2 + rounding), float(copies.std())
    assert abs(measured - expected) < 0.02 * expected, (
        f"scale is {noise.scale:g}, but the standard deviation of a coordinate is {measured:g}"
    )


def _check_worst_case(noise: Noise, norm: Norm, x: Tensor, p: float, seed: int) -> None:
    """Move the input by the radius of p in several directions, and measure whether a class can be lost on the way."""
    d = len(x)
    claimed = float(noise.radius(p, norm, d))
    if not 0 < claimed < math.inf:
        return
    for moved in _moved(noise, norm, x, claimed):
        change = (moved - x).double().numpy()
        r = _length(change, norm)
        needed = float(noise.threshold(r, norm, d))
        if r == 0 or needed >= 1:
            continue
        n = SAMPLES // d
        share = min(needed + 2 * SIGMAS * math.sqrt(needed * (1 - needed) / n) + 1e-3, 1.0)
        changed = np.flatnonzero(change)
        here, there = (_copies(noise, at, n, seed + k)[:, changed] for k, at in ((1, x), (2, moved)))
        fresh_here, fresh_there = (_copies(noise, at, n, seed + k)[:, changed] for k, at in ((3, x), (4, moved)))
        for name, score in _scores(here, there, np.sign(change[changed])):
            # The class of all copies with a low score, and of some at the edge, so that it has the share at x.
            values = score(here)
            edge = np.quantile(values, share, method="inverted_cdf")
            below, at_edge = float(np.mean(values < edge)), float(np.mean(values == edge))
            part = (share - below) / at_edge

            def frequency(copies: FloatArray, score=score, edge=edge, part=part) -> tuple[float, float]:  # type: ignore[no-untyped-def]
                values = score(copies)
                votes = (values < edge) + part * (values == edge)
                return float(votes.mean()), SIGMAS * float(votes.std()) / math.sqrt(len(votes))

            (at_x, error), (at_moved, other) = frequency(fresh_here), frequency(fresh_there)
            proved = float(noise.radius(max(at_x - error, 0.0), norm, d)) >= r
            assert not (proved and at_moved + other < 0.5), (
                f"the {norm.value} radius of {noise!r} is too long: a {name} has probability {at_x:.3f} at an input of "
                f"{d} coordinate(s), which is claimed to prove radius {r:.4g}, but {at_moved:.3f} at that distance"
            )


def _moved(noise: Noise, norm: Norm, x: Tensor, r: float) -> list[Tensor]:
    """Return inputs about as far from x as r in this norm, or nearer."""
    d = len(x)
    if norm is Norm.L0:
        count = min(math.floor(r), d)
        steps = [(torch.arange(d) < count).to(x) * (1 - 2 * x.round())]
    else:
        first, ones = (torch.arange(d) == 0).to(x), torch.ones_like(x)
        steps = [r * one / _length(one.double().numpy(), norm) for one in (first, ones)]
    moved = [noise.nearest(x + step) for step in steps[: 1 if d == 1 else None]]
    for each in moved:
        noise.check(each)
    return moved


def _length(change: FloatArray, norm: Norm) -> float:
    order = {Norm.L0: 0, Norm.L1: 1, Norm.L2: 2, Norm.LINF: np.inf}[norm]
    return float(np.linalg.norm(change, ord=order))


def _scores(here: FloatArray, there: FloatArray, signs: FloatArray):  # type: ignore[no-untyped-def]
    """Yield functions of copies that are small where the input was not moved."""
    yield "half-space", lambda copies: copies @ signs
    edges = np.unique(np.quantile(np.concatenate([here[:, 0], there[:, 0]]), np.linspace(0, 1, BINS + 1)[1:-1]))
    counts = [np.bincount(np.searchsorted(edges, at.ravel()), minlength=len(edges) + 1) + 0.5 for at in (here, there)]
    ratio: NDArray[np.float64] = np.log(counts[1] / counts[0])
    yield "likelihood-ratio test", lambda copies: ratio[np.searchsorted(edges, copies)].sum(axis=1)


def _copies(noise: Noise, x: Tensor, n: int, seed: int) -> FloatArray:
    out = torch.empty((n, *x.shape), dtype=x.dtype)
    return np.asarray(noise.sample(x, out, Generator().manual_seed(seed)).double())
