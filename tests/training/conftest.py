"""A tiny network written twice, in PyTorch and in NumPy one input at a time, and small batches to compare losses on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from smoothcert.noise import Gaussian, Noise
from smoothcert.training.methods import Method, State
from smoothcert.types import Norm


@dataclass(frozen=True)
class Uniform(Noise):
    """Uniform noise on [−width, width], to show that no method is bound to Gaussian noise."""

    width: float = 0.5
    name = "uniform"
    norms = (Norm.L2,)

    @property
    def scale(self) -> float:
        return self.width / math.sqrt(3)

    def sample(self, x: Tensor, out: Tensor, generator: Generator | None = None) -> Tensor:
        return out.uniform_(-self.width, self.width, generator=generator).add_(x)

    def _radius(self, p, norm, dimension):
        raise NotImplementedError

    _threshold = _radius


@dataclass(frozen=True)
class Still(Uniform):
    """No noise at all, so that every copy is the input itself; its scale is set at will."""

    def sample(self, x: Tensor, out: Tensor, generator: Generator | None = None) -> Tensor:
        return out.zero_().add_(x)


class Net:
    """The network in NumPy: tanh hidden layer, one input of any number of values at a time."""

    def __init__(self, weights: list[np.ndarray]) -> None:
        self.weights = weights

    def logits(self, at):
        w, b, v, c = self.weights
        return v @ np.tanh(w @ at + b) + c

    def log_softmax(self, at):
        logits = self.logits(at)
        return logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())

    def softmax(self, at):
        return np.exp(self.log_softmax(at))

    def cross_entropy(self, at, y):
        return -self.log_softmax(at)[y]

    def kl(self, target, at):
        """KL from a distribution to the prediction, with 0 log 0 = 0."""
        return sum(t * (math.log(t) - logp) for t, logp in zip(target, self.log_softmax(at), strict=True) if t > 0)

    def smoothed(self, at, deltas):
        return sum(self.softmax(at + delta) for delta in deltas) / len(deltas)

    def slope(self, at, by_logits):
        """Gradient by the input of what has this gradient by the logits."""
        w, b, v, _ = self.weights
        return w.T @ ((1 - np.tanh(w @ at + b) ** 2) * (v.T @ by_logits))

    def kl_slope(self, target, at):
        return self.slope(at, self.softmax(at) - target)

    def smoothed_nll_slope(self, at, y, deltas):
        """Gradient by the input of −log of the mean probability of y."""
        slope, total = np.zeros_like(at), 0.0
        for delta in deltas:
            p = self.softmax(at + delta)
            error = p.copy()
            error[y] -= 1.0
            slope, total = slope + p[y] * self.slope(at + delta, error), total + p[y]
        return slope / total

    @staticmethod
    def climb(slope: Callable, x, *, steps, step, radius=None, start=None, box=True):
        """Steps of fixed length along the gradient; clamped to [0, 1], then projected to the ball about x."""
        at = x if start is None else start
        for _ in range(steps):
            along = slope(at)
            at = at + step * along / math.sqrt((along**2).sum())
            if box:
                at = np.minimum(np.maximum(at, 0.0), 1.0)
            far = math.sqrt(((at - x) ** 2).sum())
            if radius is not None and far > radius:
                at = x + (at - x) * radius / far
        return at


@dataclass
class Case:
    """A network, inputs, labels, soft labels and a noise."""

    seed: int
    shape: tuple[int, ...] = (5,)
    inputs: int = 6
    classes: int = 3
    noise: Noise = field(default_factory=lambda: Gaussian(0.5))
    sharp: float = 2.0

    def __post_init__(self) -> None:
        generator = Generator().manual_seed(1000 + self.seed)
        layers = nn.Linear(math.prod(self.shape), 4), nn.Linear(4, self.classes)
        self.model = nn.Sequential(nn.Flatten(), layers[0], nn.Tanh(), layers[1]).double()
        with torch.no_grad():
            for weight, size in zip(self.model.parameters(), (1.0, 0.5, self.sharp, 0.3), strict=True):
                weight.normal_(0.0, size, generator=generator)
        x = torch.rand((self.inputs, *self.shape), generator=generator, dtype=torch.float64)
        self.x = (1.4 * x - 0.2).clamp(0, 1)  # some values are on the edge
        with torch.no_grad():
            right = self.model(self.x).argmax(dim=1)
        self.y = torch.where(torch.arange(self.inputs) % 3 < 2, right, (right + 1) % self.classes)
        soft = torch.rand((2, self.inputs, self.classes), generator=generator, dtype=torch.float64)
        soft = soft[0] * (soft[1] < 0.6) + 2 * soft[0, :, :1] * nn.functional.one_hot(self.y, self.classes)
        self.soft = soft / soft.sum(dim=1, keepdim=True)  # with zeros among them

    @property
    def net(self) -> Net:
        return Net([weight.detach().numpy().copy() for weight in self.model.parameters()])

    def state(self, **settings) -> State:
        return State(generator=Generator().manual_seed(self.seed), **{"soft_labels": self.soft, **settings})

    def loss(self, method: Method, **settings) -> Tensor:
        return method(self.model, self.x, self.y, self.noise, self.state(**settings))

    def rows(self, copies: int = 1) -> Iterator[tuple[np.ndarray, int, np.ndarray]]:
        """Each input with its label and the noise that a method with this many copies draws first."""
        delta = (self.state().noisy(self.noise, self.x, copies) - self.x).flatten(2).numpy()
        for number, y in enumerate(self.y.tolist()):
            yield self.x[number].flatten().numpy(), y, delta[:, number]

    def uniforms(self, copies: int, numbers: int = 1) -> np.ndarray:
        """For each input the uniform numbers drawn after the noise of so many copies."""
        state = self.state()
        state.noisy(self.noise, self.x, copies)
        return state.uniform(self.x, numbers).double().numpy().T

    def check(self, method: Method, reference: Callable[[Net], float], rel: float = 1e-9, **settings) -> None:
        """The loss is the reference's, and its gradient by every weight the reference's finite differences."""
        loss = self.loss(method, **settings)
        assert loss.shape == ()
        assert loss.item() == pytest.approx(reference(self.net), rel=rel)
        slopes = torch.autograd.grad(loss, list(self.model.parameters()))
        numeric = []
        for number, weight in enumerate(self.net.weights):
            for index in np.ndindex(weight.shape):
                ends = []
                for move in (1e-5, -1e-5):
                    net = self.net
                    net.weights[number][index] += move
                    ends.append(reference(net))
                numeric.append((ends[0] - ends[1]) / 2e-5)
        exact = torch.cat([slope.flatten() for slope in slopes]).numpy()
        assert exact == pytest.approx(np.array(numeric), rel=1e-5, abs=1e-6 * max(1.0, np.abs(exact).max()))


@pytest.fixture
def make_case() -> type[Case]:
    return Case


@pytest.fixture
def uniform_noise() -> Uniform:
    return Uniform()


@pytest.fixture
def still() -> Still:
    return Still()
