"""Modules behind lambdas, methods and objects, where no ``eval()`` reaches them, and modules that cannot be copied."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from hostile.entries.modes import Dropping, Normed
from hostile.entry import EDGE, SHAPE, Classifier, Expect, HalfSpace, entry, first, scores


@entry()
def lambda_around_batch_norm() -> Classifier:
    """Somebody writes ``lambda z: net(z)`` around a network that was just trained."""
    net = Normed().train()
    return lambda z: net(z)


@entry()
def lambda_around_dropout() -> Classifier:
    """Somebody does the same with a network that has dropout."""
    net = Dropping().train()
    return lambda z: net(z)


@entry(Expect.RIGHT)
def lambda_around_evaluated_network() -> Classifier:
    """Somebody puts the normalisation in a lambda around a network in evaluation mode."""
    net = Normed().eval()
    return lambda z: net((z - 0.0) / 1.0)


@entry()
def closure_two_levels_deep() -> Classifier:
    """Somebody wraps the wrapper: the network is in the closure of a function in a closure."""
    net = Normed().train()

    def logits(z: Tensor) -> Tensor:
        return net(z)

    return lambda z: logits(z)


_global_net = Normed()


@entry()
def lambda_around_a_global() -> Classifier:
    """Somebody works in a notebook, where the network is a global variable in training mode."""
    global _global_net
    _global_net = Normed().train()
    return lambda z: _global_net(z)


def _apply(net: nn.Module, z: Tensor, *, scale: float) -> Tensor:
    return net(z) * scale


@entry()
def partial_around_batch_norm() -> Classifier:
    """Somebody binds the network with ``functools.partial``."""
    return functools.partial(_apply, Normed().train(), scale=1.0)


@entry()
def default_argument_around_batch_norm() -> Classifier:
    """Somebody binds the network as a default argument, as is done in loops."""
    trained = Normed().train()
    return lambda z, net=trained: net(z)


@entry()
def bound_forward() -> Classifier:
    """Somebody passes ``net.forward`` instead of ``net``."""
    return Normed().train().forward


class _Service:
    """Holds a network, as a class for deployment does."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, z: Tensor) -> Tensor:
        return self.net(z)

    def logits(self, z: Tensor) -> Tensor:
        return self.net(z)


@entry()
def object_around_batch_norm() -> Classifier:
    """Somebody has a callable object that holds the network."""
    return _Service(Normed().train())


@entry()
def method_of_an_object() -> Classifier:
    """Somebody passes a method of an object that holds the network."""
    return _Service(Normed().train()).logits


class _Slots:
    __slots__ = ("net",)

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, z: Tensor) -> Tensor:
        return self.net(z)


@entry()
def object_with_slots() -> Classifier:
    """Somebody saves memory with ``__slots__``, so that the object has no ``__dict__`` to look into."""
    return _Slots(Normed().train())


@entry()
def function_with_an_attribute() -> Classifier:
    """Somebody keeps the network as an attribute of the function."""

    def classify(z: Tensor) -> Tensor:
        return classify.net(z)  # type: ignore[attr-defined]

    classify.net = Normed().train()  # type: ignore[attr-defined]
    return classify


@entry(training=True)
class NetworkInAList(nn.Module):
    """Somebody keeps layers in a plain list, where ``eval()`` and ``parameters()`` do not find them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Identity(), Normed()]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@entry(training=True)
class NetworkInADictionary(nn.Module):
    """Somebody keeps one network for each task in a plain dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = {"digits": Normed(), "letters": Dropping()}

    def forward(self, x: Tensor) -> Tensor:
        return self.nets["digits"](x)


@entry(copyable=False)
class HoldsALock(Normed):
    """Somebody protects a counter with a lock, which cannot be copied; the model is in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def forward(self, x: Tensor) -> Tensor:
        with self.lock:
            return super().forward(x)


@entry(training=True, copyable=False)
class HoldsALockInTraining(HoldsALock):
    """Somebody leaves that model in training mode."""


def _numbers() -> Iterator[int]:
    yield from range(10**9)


@entry(copyable=False)
class HoldsAGenerator(Normed):
    """Somebody keeps a data iterator on the model, which cannot be copied; the model is in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.data = _numbers()


@entry(training=True, copyable=False)
class HoldsAGeneratorInTraining(HoldsAGenerator):
    """Somebody leaves that model in training mode."""


@entry(training=True, copyable=False)
class CopiesToItself(Normed):
    """Somebody makes the model a singleton: ``copy.deepcopy`` gives the same object back."""

    def __deepcopy__(self, memo: object) -> CopiesToItself:
        return self


@entry(training=True)
def data_parallel() -> nn.Module:
    """Somebody wraps the model in ``DataParallel`` and runs on a machine without GPUs."""
    return nn.DataParallel(Normed())


@entry()
def functional_call() -> Classifier:
    """Somebody calls the module with a dictionary of parameters, as meta-learning codes do."""
    net = Normed().train()
    state = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    return lambda z: torch.func.functional_call(net, state, (z,))


@entry(Expect.RIGHT)
def vectorised_over_rows() -> Classifier:
    """Somebody writes the classifier for one image and applies ``torch.vmap``."""
    return torch.vmap(lambda row: torch.stack([EDGE - row[0, 0, 0], row[0, 0, 0] - EDGE]))


@entry()
def traced_in_training() -> nn.Module:
    """Somebody traces the model in training mode, which writes that mode into the graph."""
    return torch.jit.trace(Normed().train(), torch.rand(4, *SHAPE), check_trace=False)


@entry(Expect.RIGHT)
def numpy_function() -> Classifier:
    """Somebody calls a scikit-learn model through NumPy."""

    def classify(x: Tensor) -> Tensor:
        side = x.numpy()[:, 0, 0, 0] - np.float32(EDGE)
        return torch.from_numpy(np.stack([-side, side], axis=1))

    return classify


@entry()
def numpy_output() -> Classifier:
    """Somebody forgets to turn the output of such a model back into a tensor."""
    return lambda x: np.stack([EDGE - x.numpy()[:, 0, 0, 0], x.numpy()[:, 0, 0, 0] - EDGE], axis=1)


@entry()
def numpy_shares_memory() -> Classifier:
    """Somebody works in place on the NumPy view of the batch, which is the batch itself."""

    def classify(x: Tensor) -> Tensor:
        rows = x.numpy()
        rows -= np.float32(0.25)
        return scores(first(x) - EDGE + 0.25)

    return classify


@entry(Expect.RIGHT)
def in_small_requests() -> Classifier:
    """Somebody asks a service that takes at most 60 images at a time."""
    service = HalfSpace()
    return lambda x: torch.cat([service(part) for part in x.split(60)])
