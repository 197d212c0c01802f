"""Registries that plug-ins extend: by the entry points of an installed package, or by a file that the user names.

Nothing is imported until a registry is listed, or a name is looked up that is not one of ours. A name of ours is never
replaced.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from smoothcert.specifiers import import_code
from smoothcert.types import UsageError, unknown_name

GROUPS = {
    "noises": "smoothcert.noise",
    "procedures": "smoothcert.certify",
    "methods": "smoothcert.training.methods",
    "models": "smoothcert.models",
    "denoisers": "smoothcert.models",
    "datasets": "smoothcert.data",
}
"""What a plug-in can add, and the module of the registry; the group of entry points is ``smoothcert.noises`` etc."""

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Plugin:
    """A part that a plug-in defines, and its origin: a package with its version, and the SHA-256 of the file."""

    part: Any
    origin: str
    package: str | None = None


class Registry(Mapping[str, T]):
    """Parts of one kind by name: ours in their order, then those of plug-ins.

    A plug-in that cannot be used is skipped with a warning; a lookup of its name explains why.

    Args:
        group: One of ``GROUPS``.
        kind: What it holds, for messages.
        base: The class that a part is derived from, or that it is an instance of; None for any callable.
        own: Our parts.
        reserved: More names that plug-ins may not use.
    """

    def __init__(
        self, group: str, kind: str, base: type | None, own: Mapping[str, T], *, reserved: Collection[str] = ()
    ) -> None:
        self.group, self.kind, self.base, self.own = group, kind, base, dict(own)
        self._reserved = {*own, *reserved}
        self._plugins: dict[str, Plugin] = {}
        self._problems: dict[str, str] = {}
        self._loaded = False
        _REGISTRIES[group] = self

    def __getitem__(self, name: str) -> T:
        if name in self._reserved:
            return self.own[name]
        self._load()
        part: T = self._plugins[name].part
        return part

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter([*self.own, *self._plugins])

    def __len__(self) -> int:
        self._load()
        return len(self.own) + len(self._plugins)

    def __or__(self, other: Mapping[str, T]) -> dict[str, T]:
        return {**self, **other}

    def unknown(self, name: str, *more: str) -> UsageError:
        """Return the error for a name that is neither here nor one of ``more``."""
        if name in self._problems:
            return UsageError(f"the {self.kind} {name!r} cannot be used: {self._problems[name]}.")
        known = str(unknown_name(self.kind, name, (*self, *more))).removesuffix(".")
        return UsageError(f"{known}; if a plug-in defines it, install it or give --plugin FILE.")

    def plugin(self, name: str) -> Plugin | None:
        """Return the plug-in that defines a name; None for ours and for unknown ones."""
        if name not in self.own:
            self._load()
        return self._plugins.get(name)

    def add(self, name: str, plugin: Plugin) -> None:
        """Add the part of a plug-in.

        Raises:
            UsageError: It is not of the right kind, or its name is taken.
        """
        before = self._plugins.get(name)
        if before is not None and _place(before.part) != _place(plugin.part):
            raise UsageError(f"there is another {self.kind} {name!r}, of {before.origin}; rename one of them")
        self._check(name, plugin.part)
        self._plugins[name] = plugin

    def _load(self) -> None:
        """Import the entry points, once; a plug-in that looks in here meanwhile finds those before it."""
        if self._loaded:
            return
        self._loaded = True
        found: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=f"smoothcert.{self.group}"):
            found.setdefault(entry.name, []).append(entry)
        for name, entries in found.items():
            try:
                if len(entries) > 1:
                    raise UsageError("each of these packages has one; uninstall all but one")
                self.add(name, _loaded(entries[0]))
            except (Exception, SystemExit) as error:  # the code of others may raise anything
                packages = " and ".join(sorted({_package(entry) for entry in entries}))
                reason = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
                self._problems[name] = f"the plug-in {packages} was skipped: {reason}".rstrip(".")
                warnings.warn(f"the {self.kind} {name!r}: {self._problems[name]}.", stacklevel=3)

    def _check(self, name: str, part: Any) -> None:
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is not a name of letters, digits, '.', '_' and '-'")
        if name in self._reserved:
            raise UsageError(f"the name {name!r} belongs to smoothcert; choose another")
        if self.base is None or not inspect.isabstract(self.base):  # not a class, but an object
            expected = "a callable" if self.base is None else f"a {self.base.__name__}"
            if not (callable(part) if self.base is None else isinstance(part, self.base)):
                raise UsageError(f"it is a {type(part).__name__}, not {expected}")
        elif not (isinstance(part, type) and issubclass(part, self.base)):
            raise UsageError(f"it is not a class derived from {self.base.__name__}")
        elif inspect.isabstract(part):
            missing = ", ".join(sorted(vars(part)["__abstractmethods__"]))
            raise UsageError(f"{part.__name__} does not define {missing}")
        elif "__dataclass_fields__" not in vars(part):
            raise UsageError(f"{part.__name__} must have the decorator @dataclass(frozen=True)")
        else:
            self._check_settings(part)
        if self.base is not None and getattr(part, "name", None) != name:
            raise UsageError(f"its name is {getattr(part, 'name', None)!r}, not {name!r}; make them equal")

    def _check_settings(self, part: type) -> None:
        """Refuse a setting of another type than a setting of the same name, with which it shares an option."""
        others = (*self.own.items(), *((name, plugin.part) for name, plugin in self._plugins.items()))
        for other, cls in others:
            types = {} if _place(cls) == _place(part) else {each.name: type_text(each.type) for each in fields(cls)}
            for each in fields(part):
                known = types.get(each.name, type_text(each.type))
                if set(known) - {"None"} != set(type_text(each.type)) - {"None"}:
                    raise UsageError(
                        f"its setting {each.name} has the type {each.type!s}, but that of {other} has "
                        f"{' | '.join(known)}; use this type or another name"
                    )


_REGISTRIES: dict[str, Registry[Any]] = {}


def register(part: T, group: str | None = None, name: str | None = None) -> T:
    """Add a noise, procedure, training method, architecture, denoiser or dataset, as a plug-in file or a script does.

    Args:
        part: A class derived from ``Noise``, ``Procedure`` or ``Method`` (then this is a decorator), a
            ``models.ModelInfo``, or a function from a split to a dataset.
        group: One of ``GROUPS``; needed for denoisers and datasets only.
        name: The name of a dataset; other parts have one.

    Returns:
        The part.

    Raises:
        UsageError: The part is not of the right kind, or its name is taken.

    Example::

        @sc.register
        @dataclass(frozen=True)
        class Laplace(sc.Noise): ...

        sc.register(ModelInfo("my-cnn", build_cnn, (1, 28, 28), 10))
        sc.register(load_letters, "datasets", "letters")
    """
    if group is None:
        group = next((found.group for found in _REGISTRIES.values() if _fits(part, found.base)), None)
        if group is None:
            raise UsageError(f"{part!r} is not a Noise, Procedure, Method or ModelInfo; name its group.")
    if group not in GROUPS:
        raise unknown_name("group of plug-ins", group, GROUPS)
    key = name or getattr(part, "name", None)
    if not isinstance(key, str):
        raise UsageError(f"{part!r} has no name; give one.")
    import_module(GROUPS[group])
    frame = inspect.currentframe()
    file = None if frame is None or frame.f_back is None else frame.f_back.f_globals.get("__file__")
    plugin = Plugin(part, _origin(file))
    try:
        for entry in entry_points(group=f"smoothcert.{group}"):
            if entry.name == key and not _defines(entry, part):
                raise UsageError(f"the package {_package(entry)} has one of this name; rename yours, or uninstall it")
        _REGISTRIES[group].add(key, plugin)
    except UsageError as error:
        raise UsageError(f"{key!r} cannot be added to the {group}: {error}.") from error
    return part


def load_plugins(places: Collection[str]) -> None:
    """Import files or modules that call :func:`register`.

    Raises:
        UsageError: One cannot be imported, or registers something invalid.
    """
    for place in places:
        import_code(str(Path(place).expanduser()) if place.endswith(".py") else place)


def kind_and_origin(part: object) -> tuple[str, str] | None:
    """Return what a noise, procedure or method is called, as ``noise laplace``, and the origin of its plug-in, if any.

    Returns:
        None for ours and for other objects; an empty origin for a class that is not registered.
    """
    for registry in _REGISTRIES.values():
        if _fits(part, registry.base) and not type(part).__module__.startswith("smoothcert."):
            name = str(getattr(part, "name", type(part).__name__))
            plugin = registry._plugins.get(name)
            return f"{registry.kind} {name}", plugin.origin if plugin and plugin.part is type(part) else ""
    return None


def packages() -> list[str]:
    """Return the names of the packages whose plug-ins are loaded."""
    plugins = (plugin for registry in _REGISTRIES.values() for plugin in registry._plugins.values())
    return sorted({plugin.package for plugin in plugins if plugin.package is not None})


def type_text(annotation: object) -> list[str]:
    """Return the alternatives of a field's type as text.

    Example:
        >>> type_text("float | None"), type_text(int)
        (['float', 'None'], ['int'])
    """
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return [part.strip() for part in text.split("|")]


def _loaded(entry: EntryPoint) -> Plugin:
    part = entry.load()
    file = getattr(sys.modules.get(entry.module), "__file__", None)
    name = None if entry.dist is None else entry.dist.name
    return Plugin(part, f"{_package(entry)}, {_origin(file)}", name)


def _package(entry: EntryPoint) -> str:
    return entry.module if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _origin(file: str | None) -> str:
    if file is None or not Path(file).is_file():
        return "an interactive session"
    return f"{Path(file).name} sha256:{hashlib.sha256(Path(file).read_bytes()).hexdigest()}"


def _fits(part: object, base: type | None) -> bool:
    return base is not None and (isinstance(part, base) or (isinstance(part, type) and issubclass(part, base)))


def _place(part: object) -> object:
    """Where a class or function is defined; a cell of a notebook may define it again."""
    if hasattr(part, "__qualname__") and hasattr(part, "__module__"):
        return part.__module__, part.__qualname__
    return part


def _defines(entry: EntryPoint, part: object) -> bool:
    """Return whether an entry point names this very part, which its module also registers."""
    return _place(part) == (entry.module, entry.attr)
