"""The contract of a training method."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn

from smoothcert.noise import Gaussian, Noise
from smoothcert.training.methods import Method, State

SHAPES = ((1,), (7,), (2, 3), (3, 4, 4))


def check_method(method: Method, noise: Noise | None = None) -> None:
    """Check that a training method is a pure loss whose randomness comes from its state.

    Args:
        noise: ``Gaussian(0.5)`` by default.

    Raises:
        AssertionError: The method violates the contract.
    """
    noise = noise or Gaussian(0.5)
    assert method.copies >= 1, "copies must be at least 1"
    assert method.passes.train > 0, "passes must have train > 0"
    for shape in SHAPES:
        _check_gradient(method, noise, shape)
    _check_seed(method, noise)
    for training in (True, False):
        _check_unchanged(method, noise, training)
    _check_shares(method, noise)


class _Batch:
    """A small network, inputs, labels and soft labels."""

    def __init__(self, shape: tuple[int, ...] = (5,), dtype: torch.dtype = torch.float64) -> None:
        generator = Generator().manual_seed(0)
        self.model: nn.Module = nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), 4), nn.Tanh(), nn.Linear(4, 3)
        ).to(dtype)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.normal_(0.0, 1.0, generator=generator)
        self.x = torch.rand((8, *shape), generator=generator, dtype=dtype)
        right = self.model(self.x).argmax(dim=1)
        self.y = torch.where(torch.arange(8) % 3 < 2, right, (right + 1) % 3)
        soft = torch.rand((8, 3), generator=generator, dtype=dtype) + nn.functional.one_hot(self.y, 3)
        self.soft = soft / soft.sum(dim=1, keepdim=True)

    def loss(
        self,
        method: Method,
        noise: Noise,
        seed: int = 0,
        rows: slice = slice(None),
        place: tuple[int, int] | None = None,
    ) -> Tensor:
        state = State(generator=Generator().manual_seed(seed), soft_labels=self.soft[rows], place=place)
        return method(self.model, self.x[rows], self.y[rows], noise, state)


def _check_gradient(method: Method, noise: Noise, shape: tuple[int, ...]) -> None:
    batch = _Batch(shape, torch.float32)
    loss = batch.loss(method, noise)
    assert loss.shape == (), f"the loss has the shape {tuple(loss.shape)}, but must be a scalar"
    assert loss.dtype == torch.float32, f"the loss of a batch in float32 is {loss.dtype}"
    assert loss.isfinite(), f"the loss is {loss.item()}"
    assert loss.requires_grad, "the loss does not depend on the weights"
    loss.backward()  # type: ignore[no-untyped-call]
    for name, weight in batch.model.named_parameters():
        assert weight.grad is not None, f"the loss does not depend on {name}"
        assert weight.grad.isfinite().all(), f"the gradient by {name} is not finite"
        assert (weight.grad != 0).any(), f"the gradient by {name} is 0"


def _check_seed(method: Method, noise: Noise) -> None:
    batch = _Batch()
    torch.manual_seed(1)
    first = batch.loss(method, noise).item()
    state = torch.get_rng_state()
    again = batch.loss(method, noise).item()
    assert torch.equal(state, torch.get_rng_state()), "the loss draws from the global generator; use state.noisy"
    assert first == again, "the loss differs between two states with the same seed"
    assert batch.loss(method, noise, seed=1).item() != first, "the loss does not depend on the noise"


class _Delicate(nn.Module):
    """Batch statistics, dropout, a part in evaluation mode and a weight without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fixed, self.drop = nn.BatchNorm1d(5), nn.BatchNorm1d(5).eval(), nn.Dropout(0.1)
        self.head = nn.Linear(5, 3)
        self.head.bias.requires_grad_(False)
        self.double()

    def facts(self) -> tuple[list[bool], list[bool]]:
        return [module.training for module in self.modules()], [weight.requires_grad for weight in self.parameters()]

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.drop(self.fixed(self.norm(x))))
        return logits


def _check_unchanged(method: Method, noise: Noise, training: bool) -> None:
    batch, model = _Batch(), _Delicate()
    batch.model = model if training else model.eval()
    before, x, y = model.facts(), batch.x.clone(), batch.y.clone()
    batch.loss(method, noise)
    assert model.facts() == before, "the loss changes the mode of the model, or which weights have gradients"
    assert all(weight.grad is None for weight in model.parameters()), "the loss leaves gradients in the weights"
    assert torch.equal(batch.x, x), "the loss changes the inputs"
    assert torch.equal(batch.y, y), "the loss changes the labels"
    assert not batch.x.requires_grad, "the loss leaves the inputs with requires_grad"
    assert batch.x.grad is None, "the loss leaves a gradient in the inputs"


def _check_shares(method: Method, noise: Noise) -> None:
    """Two processes that share a batch must have the loss of the whole batch on average."""
    batch = _Batch()
    whole = batch.loss(method, noise).item()
    halves = [batch.loss(method, noise, rows=slice(k, k + 4), place=(k, 8)).item() for k in (0, 4)]
    assert math.isclose(sum(halves) / 2, whole, rel_tol=1e-9), (
        "the mean loss of two halves of a batch is not that of the whole batch; draw with state.noisy and "
        "state.uniform, and average over inputs"
    )
