"""Copies of models, their weights, and the inputs that they take."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.classifiers.identity import modules_reached, objects_in

Forward = Callable[[Tensor], Tensor]
"""Maps a batch of inputs to logits."""

COPIED_BYTES = 2**31
"""Weights up to this size are copied; larger ones are shared with the user's model, and checked after each answer."""

_WITH_MODES = (
    nn.modules.batchnorm._NormBase,
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
    nn.MultiheadAttention,
    nn.RNNBase,
)


def own_copy(model: Forward) -> Any:
    """Copy a model, but share large parameters; return None if it cannot be copied, such as a function."""
    weights = weights_in(model)
    large = sum(weight.numel() * weight.element_size() for weight in weights) > COPIED_BYTES
    copied = _copied(model, [weight for weight in weights if large and isinstance(weight, nn.Parameter)])
    return None if copied is model else copied


def shared_copy(module: Any) -> Any:
    """Copy a model, but share its weights; return None if something in it cannot be copied."""
    return _copied(module, [*module.parameters(), *module.buffers()] if isinstance(module, nn.Module) else [])


def _copied(model: Any, shared: Sequence[Tensor]) -> Any:
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    for each in objects_in(model):
        if isinstance(each, Tensor) and not each.is_leaf:  # such as a feature map, which deepcopy refuses
            memo[id(each)] = each.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except Exception:  # objects in a model may raise anything
        return None


class PerThread(threading.local):
    """A copy of a module for each thread, all with the same weights; another callable is shared."""

    def __init__(self, model: Forward) -> None:
        self.model: Forward = (shared_copy(model) if isinstance(model, nn.Module) else None) or model


def weights_in(model: Any) -> list[Tensor]:
    """Return all parameters and buffers, including those of unregistered modules."""
    return list(_weights(model))


def _weights(model: Any) -> Iterator[Tensor]:
    for module in objects_in(model):
        if isinstance(module, nn.Module):
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    yield tensor


def takes(model: Forward) -> tuple[torch.device, torch.dtype]:
    """Return the device and type of the inputs that a model takes: those of its first weight."""
    first = next(_weights(model), None)
    weights = _weights(modules_reached(model)) if first is None else _weights(model)
    weight = next((weight for weight in weights if weight.is_floating_point()), torch.empty(0))
    return weight.device, weight.dtype


def depends_on_mode(module: nn.Module) -> bool:
    """Return whether a module may differ in training mode: such a layer of PyTorch, or code that reads the mode."""
    if isinstance(module, _WITH_MODES):
        return True
    code = getattr(type(module).forward, "__code__", None)
    return "training" in getattr(code, "co_names", ()) and not type(module).__module__.startswith("torch.")
