"""Copies of models that share nothing with them, and what a model needs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.classifiers.identity import modules_in, modules_reached, tensors_in
from smoothcert.types import UsageError

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


def shared_copy(module: Any) -> Any:
    """A copy with the same weights, or None where something in the module cannot be copied."""
    return _copied(module, [*module.parameters(), *module.buffers()] if isinstance(module, nn.Module) else [])


class PerThread(threading.local):
    """A copy of a module for each thread that asks for it, all with the same weights; anything else is shared."""

    def __init__(self, model: Forward) -> None:
        self.model: Forward = (shared_copy(model) if isinstance(model, nn.Module) else None) or model


def own_copy(model: Forward) -> Any:
    """A copy that shares nothing with the model but large weights; None where it cannot be copied, as a function."""
    shared = weights_in(model) if sum(map(_size, weights_in(model))) > COPIED_BYTES else []
    copied = _copied(model, shared)
    return None if copied is model else copied


def _copied(model: Any, shared: Sequence[Tensor]) -> Any:
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    for tensor in tensors_in(model):
        if not tensor.is_leaf:  # as a feature map that was kept in training; it cannot be copied with its graph
            memo[id(tensor)] = tensor.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except Exception:  # whatever the objects in it raise
        return None


def shares_weights(own: Any, model: Any) -> bool:
    return bool({id(t) for t in weights_in(own)} & {id(t) for t in weights_in(model)})


def weights_in(model: Any) -> list[Tensor]:
    return [
        tensor
        for module in modules_in(model)
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None
    ]


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def refuse_uninitialised(model: Any) -> None:
    if any(nn.parameter.is_lazy(tensor) for tensor in weights_in(model)):
        raise UsageError(
            "the model has lazy layers without weights; run it once on a batch of its inputs and train it first."
        )


def takes(model: Forward) -> tuple[torch.device, torch.dtype]:
    """Where a model takes its inputs, and in which type: those of its first weight."""
    weights = weights_in(model) or weights_in(modules_reached(model))
    weight = next((weight for weight in weights if weight.is_floating_point()), torch.empty(0))
    return weight.device, weight.dtype


def depends_on_mode(module: nn.Module) -> bool:
    """Whether a module may work differently in training mode: a layer of PyTorch that does, or code that asks."""
    if isinstance(module, _WITH_MODES):
        return True
    code = getattr(type(module).forward, "__code__", None)
    return "training" in getattr(code, "co_names", ()) and not type(module).__module__.startswith("torch.")
