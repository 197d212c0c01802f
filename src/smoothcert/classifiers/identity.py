"""What identifies a classifier: its weights, its code, and every plain value that its code can reach."""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_BY_NAME = {*sys.stdlib_module_names, "torch", "numpy", "scipy", "smoothcert"}
"""Packages whose code is told by its name: it changes with their version only, which a run keeps apart."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.memory_format)
_ARRANGED = frozenset(vars(nn.Module())) - {"_forward_hooks", "_forward_pre_hooks"}
_OF_CLASSES = frozenset(("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__firstlineno__"))
_OF_CLASSES |= {"__parameters__", "__orig_bases__", "__abstractmethods__", "__static_attributes__", "_abc_impl"}
_OF_CLASSES |= {"__slotnames__"}  # the copy module keeps it in a class whose instance was copied


def model_identity(model: Any) -> dict[str, Any]:
    """What identifies a classifier, as plain values for run files.

    Args:
        model: A module or any callable.

    Returns:
        ``name``; ``sha256`` of structure and weights, None for a callable without any; ``code``, a SHA-256 of the code
        it runs and of all plain values, tensors and functions that attributes, hooks, closures and the global names in
        that code lead to. Code of PyTorch, NumPy and smoothcert counts by name. Compiled code differs between versions
        of Python, and so does ``code``.

    Example:
        >>> first, second = nn.Linear(2, 2), nn.Linear(2, 2)
        >>> model_identity(first)["sha256"] == model_identity(second)["sha256"]
        False
        >>> double, triple = (functools.partial(torch.mul, other=factor) for factor in (2, 3))
        >>> model_identity(double)["code"] == model_identity(triple)["code"]
        False
    """
    if hasattr(model, "sealed_identity"):  # a classifier that was sealed, and identified then
        return dict(model.sealed_identity)
    name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__qualname__", None)
    weights = _weights_digest(model) if isinstance(model, nn.Module) else None
    reached = _Reached(model.modules() if isinstance(model, nn.Module) else ())
    reached.add(model)
    return {"name": name or type(model).__qualname__, "sha256": weights, "code": reached.digest.hexdigest()}


def leads_outside(model: Any) -> bool:
    """Whether functions in a model, such as hooks, lead to objects that a copy of it would share."""
    reached = _Reached()
    reached.add(model)
    return reached.outside


def modules_reached(model: Any) -> list[nn.Module]:
    """Every module that the functions in a model lead to, which a copy of it would share."""
    reached = _Reached()
    reached.add(model)
    inside = {id(module) for module in modules_in(model)}
    return [each for each in reached.kept if isinstance(each, nn.Module) and id(each) not in inside]


def identity_digest(identity: Mapping[str, Any]) -> str:
    """An identity as one SHA-256."""
    return hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()


def modules_in(value: Any) -> list[nn.Module]:
    """Every module in a module or object, also those that attributes, lists and dicts hold unregistered.

    Functions are not searched: a copy of a function has the same closure, so what is in there is not the copy's.
    """
    return [each for each in _parts(value) if isinstance(each, nn.Module)]


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in a module or object, as :func:`modules_in`."""
    return [each for each in _parts(value) if isinstance(each, Tensor)]


def _parts(value: Any) -> Iterator[Any]:
    """The value and all objects in it, each once."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, (*_PLAIN, type, types.ModuleType, types.FunctionType)):
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, Tensor):
            continue
        if isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, (list, tuple, set, frozenset)):
            waiting += each
        elif isinstance(each, types.MethodType):
            waiting.append(each.__self__)
        elif isinstance(each, functools.partial):
            waiting += [each.func, *each.args, *each.keywords.values()]
        waiting += getattr(each, "__dict__", {}).values()


def _weights_digest(model: nn.Module) -> str:
    digest = hashlib.sha256(repr(model).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if isinstance(tensor, Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            _update(digest, tensor)
    return digest.hexdigest()


def _update(digest: Any, tensor: Tensor) -> None:
    if nn.parameter.is_lazy(tensor) or tensor.is_meta:
        return
    if tensor.is_quantized or tensor.layout is not torch.strided:
        tensor = tensor.dequantize() if tensor.is_quantized else tensor.to_dense()
    array = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg()
    digest.update(array.reshape(-1).view(torch.uint8).numpy().data)


class _Reached:
    """A digest of everything that a value leads to, but for the weights of modules that have a digest already."""

    def __init__(self, weighed: Iterable[nn.Module] = ()) -> None:
        self.digest = hashlib.sha256()
        self._weighed = {id(module) for module in weighed}
        self._places: dict[int, int] = {}
        self.kept: list[Any] = []  # so that no two of them have one id
        self._functions = 0  # how many functions led to where we are
        self.outside = False

    def add(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self._say(type(value).__name__, repr(value))
            return
        if id(value) in self._places:  # known, and perhaps within itself
            self._say("seen", str(self._places[id(value)]))
            return
        self._places[id(value)] = len(self.kept)
        self.kept.append(value)
        self.outside |= self._functions > 0 and _is_shared(value)
        self._add_new(value)

    def _add_new(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._say("tensor", f"{value.dtype} {() if nn.parameter.is_lazy(value) else tuple(value.shape)}")
            _update(self.digest, value)
        elif isinstance(value, np.ndarray):
            self._say("array", f"{value.dtype} {value.shape}")
            if value.dtype.hasobject:
                self.add(value.tolist())
            else:
                self.digest.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, np.generic):
            self._say("scalar", f"{value.dtype} {value!r}")
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.MethodType):
            self._say("method", value.__func__.__qualname__)
            self.add(value.__func__)
            self.add(value.__self__)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self._say("builtin", value.__qualname__)
            self.add(value.__self__)
        elif isinstance(value, functools.partial):
            self._each("partial", [value.func, *value.args])
            self._entries(value.keywords)
        elif isinstance(value, types.ModuleType):
            self._say("module", value.__name__)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, (property, classmethod, staticmethod, functools.cached_property)):
            parts = ("fget", "__func__", "func")
            self._each(type(value).__name__, [getattr(value, part, None) for part in parts])
        elif isinstance(value, Enum):
            self._say("enum", str(value))
        elif isinstance(value, Mapping):
            self._entries(value)
        elif isinstance(value, (list, tuple, deque)):
            self._each(type(value).__name__, value)
        elif isinstance(value, (set, frozenset)):
            self._each("set", sorted(value, key=repr))
        elif isinstance(value, torch.jit.ScriptModule):
            self._say("script", str(value.inlined_graph))
            self._entries(value.state_dict())
        else:
            self._add_object(value)

    def _add_object(self, value: Any) -> None:
        self.add(type(value))
        self._say("name", str(getattr(value, "__name__", "")))  # of an operator, say
        attributes = dict(getattr(value, "__dict__", {}))
        if isinstance(value, nn.Module):  # `training` is left out, as sealing sets it
            self._entries(dict(value.named_children()))
            weighed, hidden = id(value) in self._weighed, value._non_persistent_buffers_set
            self._entries({} if weighed else value._parameters)
            self._entries({key: held for key, held in value._buffers.items() if key in hidden or not weighed})
            attributes = {name: held for name, held in attributes.items() if name not in _ARRANGED}
            hooks = ("_forward_hooks", "_forward_pre_hooks")
            for name in hooks:
                self._each(name, list(attributes.pop(name, {}).values()))
        for kind in type(value).__mro__:
            for name in _names(getattr(kind, "__slots__", ())):
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    attributes[name] = getattr(value, name)
        self._entries(attributes)
        if not attributes and not isinstance(value, nn.Module):
            with suppress(
                Exception
            ):  # an iterator or a generator of random numbers tells its state so, a lock does not
                self._each("state", [part for part in value.__reduce_ex__(4)[1:3] if part is not None])

    def _add_function(self, function: types.FunctionType) -> None:
        self._say("function", f"{function.__module__}.{function.__qualname__}")
        if _by_name(function.__module__):
            return
        self._add_code(function.__code__)
        self._each("defaults", [function.__defaults__, function.__kwdefaults__])
        self._functions += 1
        self._entries(vars(function))
        self._functions -= 1
        inside = function.__name__ != "__init__"  # which has run already
        self._functions += inside
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # a name that has no value yet
                self._say("cell", "empty")
        for name in sorted(_global_names(function.__code__)):
            if name in function.__globals__:
                self._say("global", name)
                self.add(function.__globals__[name])
        self._functions -= inside

    def _add_code(self, code: types.CodeType) -> None:
        self._say("code", repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars)))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(constant)
            else:  # the order in a set differs from process to process
                self._say(
                    "constant", repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
                )

    def _add_class(self, kind: type) -> None:
        self._say("class", f"{kind.__module__}.{kind.__qualname__}")
        for each in kind.__mro__:
            if not _by_name(each.__module__):
                names = sorted(vars(each).keys() - _OF_CLASSES)  # a class that was sent here may have another order
                self._entries({name: vars(each)[name] for name in names})

    def _entries(self, entries: Mapping[Any, Any]) -> None:
        self._say("entries", str(len(entries)))
        for key, value in entries.items():
            self.add(key)
            self.add(value)

    def _each(self, what: str, values: Any) -> None:
        self._say(what, str(len(values)))
        for value in values:
            self.add(value)

    def _say(self, kind: str, text: str) -> None:
        data = text.encode(errors="backslashreplace")
        self.digest.update(f"{kind} {len(data)} ".encode() + data)


def _is_shared(value: Any) -> bool:
    """Whether a value that a function leads to could change, or be changed, while the function runs."""
    if isinstance(value, (Tensor, nn.Module, np.ndarray, list, dict, set, bytearray)):
        return True
    if isinstance(value, (*_PLAIN, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, tuple)):
        return False
    return not _by_name(type(value).__module__) and not isinstance(value, (property, classmethod, staticmethod))


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _by_name(module: str | None) -> bool:
    return module is None or module.partition(".")[0] in _BY_NAME


def _global_names(code: types.CodeType) -> set[str]:
    """The names that code, and code within it, may look up globally."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_global_names, inner))
