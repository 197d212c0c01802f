"""Ways in which users change a classifier while the library holds it; each moves its edge from EDGE to MOVED."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hostile.entry import EDGE, Classifier, HalfSpace, first, scores

MOVED = 0.201
"""Between two points of the grid, so that rounding decides no vote."""
"""The edge after the change."""


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return x - self.shift


class Everything(nn.Module):
    """A half-space whose edge is the sum of a parameter, a buffer and plain attributes of several types."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([EDGE]))
        self.register_buffer("offset", torch.zeros(1))
        self.threshold = 0.0
        self.levels = [0.0, 0.0]
        self.options = {"edge": 0.0}
        self.table = np.zeros(3, dtype=np.float32)
        self.plain = torch.zeros(1)
        self.layer = _Layer()

    def forward(self, x: Tensor) -> Tensor:
        kept = self.threshold + self.levels[1] + self.options["edge"] + float(self.table[1])
        return scores(first(self.layer(x)) - self.weight - self.offset - self.plain - kept)


class Moved(HalfSpace):
    """What each of the changes makes of it."""

    def __init__(self) -> None:
        super().__init__(MOVED)


def _by(amount: float = MOVED - EDGE) -> float:
    return amount


def _step(model: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.weight.grad = torch.tensor([-_by()])
    optimizer.step()


def _load(model: Any) -> None:
    model.load_state_dict({**model.state_dict(), "weight": torch.tensor([MOVED])})


def _add_in_place(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.add_(_by())


def _write_numpy(model: Any) -> None:
    model.weight.detach().numpy()[0] = MOVED


def _patch(model: Any) -> None:
    plain = model.forward
    model.forward = lambda x: plain(x - _by())


def _replace_layer(model: Any) -> None:
    model.layer = _Layer()
    model.layer.shift = _by()


def _hook(model: Any) -> None:
    model.register_forward_pre_hook(lambda module, given: (given[0] - _by(),))


MODULE_CHANGES: dict[str, Callable[[Any], None]] = {
    "weight through data": lambda model: model.weight.data.fill_(MOVED),
    "weight data replaced": lambda model: setattr(model.weight, "data", torch.tensor([MOVED])),
    "weight replaced": lambda model: setattr(model, "weight", nn.Parameter(torch.tensor([MOVED]))),
    "weight in place": lambda model: _add_in_place(model.weight),
    "weight through numpy": _write_numpy,
    "optimizer step": _step,
    "state dict": _load,
    "buffer through data": lambda model: model.offset.data.fill_(_by()),
    "plain number": lambda model: setattr(model, "threshold", _by()),
    "plain list": lambda model: model.levels.__setitem__(1, _by()),
    "plain dictionary": lambda model: model.options.update(edge=_by()),
    "plain array": lambda model: model.table.__setitem__(1, _by()),
    "plain tensor": lambda model: model.plain.fill_(_by()),
    "number in a layer": lambda model: setattr(model.layer, "shift", _by()),
    "another layer": _replace_layer,
    "another forward": _patch,
    "a hook": _hook,
}


@dataclass
class Box:
    """An object that a function refers to."""

    edge: float = EDGE

    def __call__(self, x: Tensor) -> Tensor:
        return scores(first(x) - self.edge)


_edge = EDGE


def _global_function() -> tuple[Classifier, Callable[[], None]]:
    global _edge
    _edge = EDGE

    def change() -> None:
        global _edge
        _edge = MOVED

    return (lambda x: scores(first(x) - _edge)), change


def _closure() -> tuple[Classifier, Callable[[], None]]:
    edge = EDGE

    def change() -> None:
        nonlocal edge
        edge = MOVED

    return (lambda x: scores(first(x) - edge)), change


def _default() -> tuple[Classifier, Callable[[], None]]:
    def classify(x: Tensor, edge: float = EDGE) -> Tensor:
        return scores(first(x) - edge)

    return classify, lambda: setattr(classify, "__defaults__", (MOVED,))


def _object() -> tuple[Classifier, Callable[[], None]]:
    box = Box()
    return box, lambda: setattr(box, "edge", MOVED)


def _closed_object() -> tuple[Classifier, Callable[[], None]]:
    box = Box()
    return (lambda x: box(x)), lambda: setattr(box, "edge", MOVED)


def _closed_module() -> tuple[Classifier, Callable[[], None]]:
    net = HalfSpace()
    return (lambda x: net(x)), lambda: setattr(net, "edge", MOVED)


def _closed_weight() -> tuple[Classifier, Callable[[], None]]:
    net = nn.Linear(8, 2)
    with torch.no_grad():
        net.weight.zero_()
        net.weight[:, 0] = torch.tensor([-1.0, 1.0])
        net.bias.copy_(torch.tensor([EDGE, -EDGE]))
    return (lambda x: net(x.flatten(1))), lambda: net.bias.data.copy_(torch.tensor([MOVED, -MOVED]))


def _another_code() -> tuple[Classifier, Callable[[], None]]:
    def classify(x: Tensor) -> Tensor:
        return scores(first(x) - 0.5)

    def reloaded(x: Tensor) -> Tensor:
        return scores(first(x) - 0.201)

    return classify, lambda: setattr(classify, "__code__", reloaded.__code__)


FUNCTION_CHANGES = {
    "global variable": _global_function,
    "closure variable": _closure,
    "default argument": _default,
    "attribute of an object": _object,
    "attribute of a closed object": _closed_object,
    "attribute of a closed module": _closed_module,
    "weight of a closed module": _closed_weight,
    "code of a function": _another_code,
}


def _module(name: str) -> tuple[Classifier, Callable[[], None]]:
    model = Everything()
    return model, lambda: MODULE_CHANGES[name](model)


CHANGES: dict[str, Callable[[], tuple[Classifier, Callable[[], None]]]] = {
    **{name: lambda name=name: _module(name) for name in MODULE_CHANGES},
    **FUNCTION_CHANGES,
}
"""Each makes a classifier and what changes it."""
