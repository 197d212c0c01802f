"""Model identity: hashes of the weights, the code, and every plain value that the code can reach."""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from importlib import metadata
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from smoothcert.plugins import kind_and_origin

_BY_NAME = {*sys.stdlib_module_names, "torch", "numpy", "scipy", "smoothcert"}
"""Packages whose code is hashed by name: it changes only with their versions, which a run records."""

_BY_VERSION = {"transformers": "transformers", "timm": "timm", "diffusers": "diffusers", "sklearn": "scikit-learn"}
_BY_VERSION |= {"jax": "jax", "jaxlib": "jaxlib"}
"""Packages whose code is hashed by name and version; their functions lead to caches and loggers that change."""

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.memory_format)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_OF_MODULES = frozenset(vars(nn.Module()))
_OF_CLASSES = frozenset(("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__firstlineno__"))
_OF_CLASSES |= {"__parameters__", "__orig_bases__", "__abstractmethods__", "__static_attributes__", "_abc_impl"}
_OF_CLASSES |= {"__slotnames__"}  # the copy module keeps it in a class whose instance was copied


def model_identity(model: Any) -> dict[str, Any]:
    """Identify a module or any callable by plain values for run files.

    Returns:
        ``name``; ``sha256`` of structure and weights, None for a callable without any; ``code``, a SHA-256 of the code
        it runs and of all plain values, tensors and functions that attributes, hooks, closures and the global names in
        that code lead to. Code of PyTorch, NumPy and smoothcert counts by name, that of transformers, timm, diffusers
        and scikit-learn by name and version. ``code`` depends on the version of
        Python.

    Example:
        >>> double, triple = (functools.partial(torch.mul, other=factor) for factor in (2, 3))
        >>> model_identity(double)["code"] == model_identity(triple)["code"]
        False
    """
    if hasattr(model, "sealed_identity"):  # a sealed classifier was identified when it was sealed
        return dict(model.sealed_identity)
    module = isinstance(model, nn.Module)
    name = type(model).__name__ if module else getattr(model, "__qualname__", None)
    code = _Reached(model, model.modules() if module else ()).digest.hexdigest()
    return {
        "name": name or type(model).__qualname__,
        "sha256": _weights_digest(model) if module else None,
        "code": code,
    }


def code_origins(*parts: object) -> dict[str, str]:
    """Return where those noises, procedures and methods come from that are not ours, as ``noise laplace``.

    It is the plug-in, if one registered the class, and a hash of the class: a cell of a notebook may define it again.
    """
    found = {}
    for part in parts:
        known = kind_and_origin(part)
        if known is not None:
            name, origin = known
            code = f"code sha256:{_Reached(type(part)).digest.hexdigest()}"
            found[name] = f"{origin}, {code}" if origin else code
    return found


def identity_digest(identity: Mapping[str, Any]) -> str:
    """Hash an identity to one SHA-256."""
    return hashlib.sha256(repr(sorted(identity.items())).encode()).hexdigest()


def leads_outside(model: Any) -> bool:
    """Return whether functions in a model, such as hooks, lead to objects that a copy of it would share."""
    return _Reached(model).outside


def modules_reached(model: Any) -> list[nn.Module]:
    """Return every module that the functions in a model lead to, which a copy of it would share."""
    inside = {id(module) for module in modules_in(model)}
    return [each for each in _Reached(model).kept if isinstance(each, nn.Module) and id(each) not in inside]


def modules_in(value: Any) -> list[nn.Module]:
    """Return every module in a module or object, including unregistered ones in attributes, lists and dicts.

    Functions are not searched: a copy of a function has the same closure, so its contents do not belong to the copy.
    """
    return [each for each in objects_in(value) if isinstance(each, nn.Module)]


def objects_in(value: Any) -> Iterator[Any]:
    """Yield the value and all objects in it, each once."""
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
    """Everything that a value leads to, and its digest without the weights of ``weighed`` modules."""

    def __init__(self, value: Any, weighed: Iterable[nn.Module] = ()) -> None:
        self.digest = hashlib.sha256()
        self.kept: list[Any] = []  # all objects, which keeps their ids unique
        self.outside = False  # whether a function leads to an object that could change
        self._weighed = {id(module) for module in weighed}
        self._places: dict[int, int] = {}
        self._depth = 0  # functions on the path to the current object
        self._add(value)

    def _add(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self._say(type(value).__name__, repr(value))
            return
        if id(value) in self._places:  # it may contain itself
            self._say("seen", str(self._places[id(value)]))
            return
        self._places[id(value)] = len(self.kept)
        self.kept.append(value)
        self.outside |= self._depth > 0 and _is_shared(value)
        if isinstance(value, Tensor):
            self._say("tensor", f"{value.dtype} {() if nn.parameter.is_lazy(value) else tuple(value.shape)}")
            _update(self.digest, value)
        elif isinstance(value, np.ndarray):
            self._say("array", f"{value.dtype} {value.shape}")
            if value.dtype.hasobject:
                self._add(value.tolist())
            else:
                self.digest.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, np.generic):
            self._say("scalar", f"{value.dtype} {value!r}")
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.MethodType):
            self._say("method", value.__func__.__qualname__, value.__func__, value.__self__)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self._say("builtin", value.__qualname__, value.__self__)
        elif isinstance(value, functools.partial):
            self._add_each("partial", [value.func, *value.args])
            self._add_entries(value.keywords)
        elif isinstance(value, types.ModuleType):
            self._say("module", value.__name__)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, (property, classmethod, staticmethod, functools.cached_property)):
            functions = [getattr(value, name, None) for name in ("fget", "__func__", "func")]
            self._add_each(type(value).__name__, functions)
        elif isinstance(value, Enum):
            self._say("enum", str(value))
        elif isinstance(value, Mapping):
            self._add_entries(value)
        elif isinstance(value, (list, tuple, deque)):
            self._add_each(type(value).__name__, value)
        elif isinstance(value, (set, frozenset)):
            self._add_each("set", sorted(value, key=repr))
        elif isinstance(value, fx.Graph):  # its own attributes are caches, and lead to all of PyTorch
            self._add_each(f"graph {value}", [node.target for node in value.nodes if callable(node.target)])
        elif isinstance(value, torch._ops.OpOverload):
            self._say("operator", str(value))
        elif any(kind.__module__.startswith("sympy.") for kind in type(value).__mro__):  # it keeps its hash
            self._say("expression", repr(value))
        elif type(value).__module__.startswith("jaxlib."):  # an array, or a function that keeps what it compiled
            self._add(value.__wrapped__ if hasattr(value, "__wrapped__") else np.asarray(value))
        elif isinstance(value, torch.jit.ScriptModule):
            self._say("script", str(value.inlined_graph))
            self._add_entries(value.state_dict())
        else:
            self._add_object(value)

    def _add_object(self, value: Any) -> None:
        self._add(type(value))
        self._say("name", str(getattr(value, "__name__", "")))  # for example of an operator
        attributes = dict(getattr(value, "__dict__", {}))
        if isinstance(value, nn.Module):  # `training` is left out, because sealing sets it
            weighed, hidden = id(value) in self._weighed, value._non_persistent_buffers_set
            self._add_entries(dict(value.named_children()))
            self._add_entries({} if weighed else value._parameters)
            self._add_entries({key: held for key, held in value._buffers.items() if key in hidden or not weighed})
            for name in _HOOKS:
                self._add_each(name, list(attributes.get(name, {}).values()))
            attributes = {name: held for name, held in attributes.items() if name not in _OF_MODULES}
        for kind in type(value).__mro__:
            slots = getattr(kind, "__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                    attributes[name] = getattr(value, name)
        self._add_entries(attributes)
        if not attributes and not isinstance(value, nn.Module):
            with suppress(Exception):  # the state of an iterator or a random generator; a lock has none
                self._add_each("state", [part for part in value.__reduce_ex__(4)[1:3] if part is not None])

    def _add_function(self, function: types.FunctionType) -> None:
        self._say("function", f"{function.__module__}.{function.__qualname__}{_version(function.__module__)}")
        home = function.__globals__.get("__name__")  # where it was written; functools.wraps changes its own __module__
        by_name = home is not None and _by_name(home)
        if by_name and _by_name(function.__module__):
            return
        if not by_name:  # else a decorator of a package around a user's function, which its closure holds
            self._add_code(function.__code__)
        self._add_each("defaults", [function.__defaults__, function.__kwdefaults__])
        self._depth += 1
        self._add_entries(vars(function))
        done = function.__name__ == "__init__"  # it does not run again
        self._depth -= done
        for cell in function.__closure__ or ():
            try:
                self._add(cell.cell_contents)
            except ValueError:  # a name without a value yet
                self._say("cell", "empty")
        for name in () if by_name else sorted(_global_names(function.__code__)):
            if name in function.__globals__:
                self._say("global", name, function.__globals__[name])
        self._depth -= not done

    def _add_code(self, code: types.CodeType) -> None:
        self._say("code", repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars)))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(constant)
            else:  # the order in a set differs between processes
                plain = sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
                self._say("constant", repr(plain))

    def _add_class(self, kind: type) -> None:
        self._say("class", f"{kind.__module__}.{kind.__qualname__}{_version(kind.__module__)}")
        for each in kind.__mro__:
            if not _by_name(each.__module__):
                names = sorted(vars(each).keys() - _OF_CLASSES)  # pickling by value may change their order
                self._add_entries({name: vars(each)[name] for name in names})

    def _add_entries(self, entries: Mapping[Any, Any]) -> None:
        self._say("entries", str(len(entries)), *(each for entry in entries.items() for each in entry))

    def _add_each(self, kind: str, values: Any) -> None:
        self._say(kind, str(len(values)), *values)

    def _say(self, kind: str, text: str, *parts: Any) -> None:
        data = text.encode(errors="backslashreplace")
        self.digest.update(f"{kind} {len(data)} ".encode() + data)
        for part in parts:
            self._add(part)


def _is_shared(value: Any) -> bool:
    """Return whether a value that a function leads to could change, or be changed, while the function runs."""
    if isinstance(value, (Tensor, nn.Module, np.ndarray, list, dict, set, bytearray)):
        return True
    if isinstance(value, (*_PLAIN, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, tuple)):
        return False
    return not _by_name(type(value).__module__) and not isinstance(value, (property, classmethod, staticmethod))


def _by_name(module: str | None) -> bool:
    return module is None or module.partition(".")[0] in _BY_NAME | _BY_VERSION.keys()


@functools.cache
def _version(module: str | None) -> str:
    """Return the version of a package whose code counts by name and version, in a form to append to a name."""
    package = _BY_VERSION.get((module or "").partition(".")[0])
    return f" {metadata.version(package)}" if package else ""


def _global_names(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_global_names, inner))
