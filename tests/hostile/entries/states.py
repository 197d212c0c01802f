"""Models that remember earlier batches, draw random numbers, or pass values through hooks."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hostile.entry import EDGE, Classifier, Expect, HalfSpace, entry, first, scores


@entry()
class TestTimeBias(nn.Module):
    """Somebody adapts a bias to the test distribution in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        side = first(x) - EDGE + self.bias
        self.bias.data += 0.5 * (0.4 - side.detach().mean())
        return scores(side)


@entry()
class RunningMeanAttribute(nn.Module):
    """Somebody centres inputs on a running mean, kept as a plain attribute with momentum 0.999."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = 0.0

    def forward(self, x: Tensor) -> Tensor:
        side = first(x) - EDGE - self.mean
        self.mean = 0.999 * self.mean + 0.001 * float(first(x).mean() - 30.0)
        return scores(side)


@entry()
class RunningMeanBuffer(nn.Module):
    """Somebody centres inputs on a running mean, kept as a buffer that evaluation mode does not freeze."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        side = first(x) - EDGE - self.mean
        self.mean.mul_(0.9).add_(0.1 * (first(x).mean() - 1.0))
        return scores(side)


@entry()
class StatefulRecurrentNetwork(nn.Module):
    """Somebody keeps the hidden state of a recurrent network between calls, as streaming models do."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        side = first(x) - EDGE
        if self.hidden is not None and len(self.hidden) == len(x):
            side = side + 0.5 * self.hidden
        self.hidden = side
        return scores(side)


class _Counting(nn.Module):
    """Gives class 1 to everything after some calls."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        side = first(x) - EDGE
        return scores(side if self.left >= 0 else side.abs())


@entry()
def changes_after_three_calls() -> nn.Module:
    """Somebody has a warm-up of three steps in ``forward``."""
    return _Counting(3)


@entry()
def changes_after_fifty_calls() -> nn.Module:
    """Somebody anneals a temperature over the first fifty steps in ``forward``."""
    return _Counting(50)


@entry()
class CountsWithAnIterator(nn.Module):
    """Somebody counts steps with ``itertools.count``, which has no attributes to compare."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = itertools.count()

    def forward(self, x: Tensor) -> Tensor:
        side = first(x) - EDGE
        return scores(side if next(self.steps) < 30 else side.abs())


@entry()
class RemembersInADeque(nn.Module):
    """Somebody smooths answers over the last batches, kept in a ``deque``."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: deque[float] = deque([0.0] * 30, maxlen=30)

    def forward(self, x: Tensor) -> Tensor:
        side = first(x) - EDGE + self.seen[0]
        self.seen.append(0.3)
        return scores(side)


@entry(copyable=False)
class CountsOnTheClass(nn.Module):
    """Somebody counts steps of all instances on the class."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).steps = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).steps += 1
        side = first(x) - EDGE
        return scores(side if self.steps < 30 else side.abs())


@entry(copyable=False)
def function_that_changes_after_fifty_calls() -> Classifier:
    """Somebody counts calls in a closure, for a log, and switches to a quick approximation when there are many."""
    calls = 0

    def classify(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        side = first(x) - EDGE
        return scores(side if calls <= 50 else side.abs())

    return classify


@entry()
class CachesByShape(nn.Module):
    """Somebody caches the answer for the demo, where there is only one image of each size."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[Any, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.shape not in self.cache:
            self.cache[x.shape] = scores(first(x) - EDGE)
        return self.cache[x.shape]


@entry()
class CachesByAddress(nn.Module):
    """Somebody caches features under ``x.data_ptr()``; the engine uses its memory again for the next batch."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[Any, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.cache.setdefault((x.data_ptr(), x.shape), scores(first(x) - EDGE))


@entry(Expect.REFUSE)
class OwnRandomness(nn.Module):
    """Somebody adds noise in ``forward``, as randomised defences do."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x) + 0.5 * torch.randn(len(x)).to(x.dtype) - EDGE)


@entry(Expect.REFUSE)
class OwnGenerator(nn.Module):
    """Somebody makes that noise reproducible with a generator that the module holds."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x) + 0.5 * torch.randn(len(x), generator=self.generator).to(x.dtype) - EDGE)


@entry(Expect.REFUSE)
class ReseedsInForward(nn.Module):
    """Somebody makes that noise deterministic with ``torch.manual_seed(0)``: it then depends on the row's place."""

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        return scores(first(x) + 0.5 * torch.randn(len(x)).to(x.dtype) - EDGE)


@entry(Expect.REFUSE)
def numpy_randomness() -> Classifier:
    """Somebody augments at test time with NumPy's global random state."""

    def classify(x: Tensor) -> Tensor:
        return scores(first(x) + torch.from_numpy(np.random.normal(0, 0.5, len(x))).to(x.dtype) - EDGE)  # noqa: NPY002

    return classify


@entry(Expect.REFUSE)
def random_choice_of_augmentation() -> Classifier:
    """Somebody flips a coin for the whole batch with Python's ``random``."""
    return lambda x: scores(first(x) - EDGE + random.choice([-0.3, 0.3]))


@entry()
class DrawsAndDiscards(nn.Module):
    """Somebody builds a layer inside ``forward`` and overwrites its random weights: right, but the seed moves on."""

    def forward(self, x: Tensor) -> Tensor:
        layer = nn.Linear(8, 2)
        with torch.no_grad():
            layer.weight.zero_()
            layer.weight[:, 0] = torch.tensor([-1.0, 1.0])
            layer.bias.copy_(torch.tensor([EDGE, -EDGE]))
        return layer.to(x.dtype)(x.flatten(1))


_features: dict[str, Tensor] = {}


@entry(copyable=False)
class FeaturesThroughAGlobal(nn.Module):
    """Somebody extracts features with a hook that writes to a dictionary, which the head then reads."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.layer.register_forward_hook(lambda module, given, output: _features.update(layer=output))

    def forward(self, x: Tensor) -> Tensor:
        self.layer(x)
        time.sleep(1e-5)  # another thread may overwrite them
        return scores(first(_features["layer"]) - EDGE)


@entry(copyable=False)
class FeaturesThroughTheModule(nn.Module):
    """Somebody lets a hook write to ``self``; in a copy of the module it still writes to the original."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.features: list[Tensor] = []
        self.layer.register_forward_hook(lambda module, given, output: self.features.append(output))

    def forward(self, x: Tensor) -> Tensor:
        self.features.clear()
        self.layer(x)
        return scores(first(self.features[0]) - EDGE)


@entry()
class FeaturesOnTheModule(nn.Module):
    """Somebody keeps intermediate features on the module for a plot, and reads them in the head."""

    def __init__(self) -> None:
        super().__init__()
        self.features: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.features = first(x)
        time.sleep(1e-5)  # another thread may overwrite them
        return scores(self.features - EDGE)


@entry(Expect.RIGHT)
def hook_moves_the_edge() -> nn.Module:
    """Somebody calibrates the logits of a finished model with a forward hook."""
    model = HalfSpace(0.25)
    shift = torch.tensor([0.25, -0.25])
    model.register_forward_hook(lambda module, given, output: output + shift.to(output.dtype))
    return model


@entry()
def hook_works_in_place() -> nn.Module:
    """Somebody normalises inputs in a pre-hook, in place."""
    model = HalfSpace(EDGE - 0.25)
    model.register_forward_pre_hook(lambda module, given: (given[0].sub_(0.25),))
    return model
