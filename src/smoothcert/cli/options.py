"""Turn typed functions into commands, and the fields of dataclasses into options."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from smoothcert.files import STANDARD_OUTPUT
from smoothcert.plugins import Registry, type_text
from smoothcert.types import UsageError, unknown_name

Classes = Mapping[str, type[Any]]
T = TypeVar("T")


def hardware(help: str, **settings: Any) -> Any:
    """Make an option in the panel about hardware."""
    return typer.Option(rich_help_panel="Hardware", help=help, **settings)


Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change a setting of the recipe: epochs=10, noise.sigma=0.25 …"),
]
DataRoot = Annotated[Path | None, "Folder of the named datasets."]
Device = Annotated[str, hardware("cpu, cuda, cuda:1 … or auto.")]
FreshTraining = Annotated[bool, typer.Option("--fresh", help="Delete the earlier training in the folder first.")]
Threads = Annotated[int | None, hardware("CPU threads per process.", min=1)]


def checked(check: Callable[[Any], None], *names: str, help: str) -> Any:
    """Make an option whose value, if it is given, is checked before the command runs."""

    def callback(value: Any) -> Any:
        if value is not None:
            check(value)
        return value

    return typer.Option(*names, help=help, callback=callback)


def choice(what: str, known: Iterable[str], help: str, *names: str) -> Any:
    """Make an option that accepts only known names, which its help lists."""
    listed = list(known)

    def check(value: str) -> None:
        if value not in listed:
            raise unknown_name(what, value, listed)

    return checked(check, *names, help=f"{help}: {', '.join(listed)}.")


def output_file(help: str) -> Any:
    """Make the option ``--output`` of a command that writes a file, in a folder that exists."""

    def check(file: Path) -> None:
        if not file.parent.is_dir():
            raise UsageError(f"the folder {file.parent} does not exist; create it first.")

    return checked(check, "--output", "-o", help=f"{help}; - is standard output.")


def output_folder(help: str) -> Any:
    """Make the option ``--output`` of a command that writes a folder, which cannot be standard output."""

    def check(folder: Path) -> None:
        if folder == STANDARD_OUTPUT:
            raise UsageError("this command writes a folder, not standard output; name a folder after -o.")

    return checked(check, "--output", "-o", help=help)


def whole_number(text: str | int, option: str = "the value", least: float | None = None) -> int:
    """Read a whole number, also one written as ``1e5`` or ``100_000``.

    Example:
        >>> whole_number("1e5"), whole_number("100_000")
        (100000, 100000)
    """
    try:
        number = int(text)
    except ValueError:
        try:
            number = int(float(text))
            exact = number == float(text)
        except (ValueError, OverflowError):
            exact = False
        if not exact:
            raise UsageError(f"{option} must be a whole number such as 1000 or 1e5, got {text!r}.") from None
    if least is not None and number < least:
        raise UsageError(f"{option} must be at least {least}, got {text}.")
    return number


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Read whole numbers, as ``a,b,c``."""
    return tuple(whole_number(part, f"each of {option}") for part in text.split(","))


def numbers(text: str, option: str) -> tuple[float, ...]:
    """Read numbers, as ``a,b,c``."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} must be numbers such as 0.5,0.3,0.2; got {text!r}.") from None


class Group:
    """A group of options in one help panel; its subclasses are dataclasses."""

    panel: ClassVar[str] = ""

    def __init_subclass__(cls, panel: str = "") -> None:
        cls.panel = panel or cls.panel


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function whose parameters are options, arguments and groups of them.

    A parameter is annotated with its help (an option) or with what typer accepts. The fields of a :class:`Group` are
    options, and the function gets one object. A field made by :func:`derived` stands for options derived from other
    dataclasses. Whole numbers may be written as ``1e5``.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Size(Group):
        ...     width: Annotated[int, "The width."]
        ...     height: Annotated[int, "The height."] = 1
        >>> def area(size: Size, unit: Annotated[str, "The unit."] = "m²") -> None:
        ...     print(size.width * size.height, unit)
        >>> [*inspect.signature(command(area)).parameters]
        ['width', 'height', 'unit']
        >>> command(area)(width=3, height=2, unit="m²")
        6 m²
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    plugins: list[inspect.Parameter] = []  # options that only plug-ins add
    for name, parameter in inspect.signature(function).parameters.items():
        if isinstance(hints[name], type) and issubclass(hints[name], Group):
            groups[name] = hints[name]
            parameters += _group_parameters(hints[name])
            plugins += _group_parameters(hints[name], plugins=True)
        else:
            parameters.append(_parameter(name, hints[name], parameter.default))
    names = Counter(parameter.name for parameter in (*parameters, *plugins))
    clashing = {parameter.name for parameter in plugins if names[parameter.name] > 1}
    parameters += [parameter for parameter in plugins if parameter.name not in clashing]
    for name in sorted(clashing):
        option = "--" + name.replace("_", "-")
        warnings.warn(f"{option} of a plug-in is left out here, as another option has this name.", stacklevel=2)

    @functools.wraps(function)
    def flat(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{each.name: _taken(each, values, clashing) for each in fields(group)})
        function(**values)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    flat.__doc__ = re.sub(r"\n( {4}smoothcert )", r"\n\n\1", inspect.getdoc(function) or "")  # space between examples
    del flat.__wrapped__  # whose signature typer would read instead
    return flat


def derived(classes: Classes, *, skip: Iterable[str] = (), prefix: str = "") -> Any:
    """Make the field of a group that holds, by name, the settings given for one of some dataclasses.

    Each field of the dataclasses, except those to ``skip``, is an option described by the ``Args`` of its class. An
    option of a plug-in is left out of commands that have another option of its name.
    """

    def settings(some: Classes) -> list[str]:
        every = dict.fromkeys(each.name for cls in some.values() for each in fields(cls) if each.init)
        return [name for name in every if name not in skip]

    own = settings(classes.own if isinstance(classes, Registry) else classes)
    plugins = [name for name in settings(classes) if name not in own]
    about = {"classes": classes, "names": own, "plugins": plugins, "prefix": prefix}
    return field(default_factory=dict, metadata=about)


def build(kind: str, classes: Mapping[str, type[T]], name: str, given: Mapping[str, str | bool], **values: Any) -> T:
    """Make one of some dataclasses from the settings ``given`` in a field made by :func:`derived`, and ``values``.

    Raises:
        UsageError: If the name is unknown, a setting is missing or belongs to another class, or a value is invalid.
    """
    if name not in classes:
        raise classes.unknown(name) if isinstance(classes, Registry) else unknown_name(kind, name, classes)
    cls: Any = classes[name]
    known = {each.name: each for each in fields(cls)}
    for key in given:
        if key not in known:
            owners = " and ".join(_owners(key, classes))
            raise UsageError(
                f"{_spelled(key, classes)} is an option of {owners}, not of {name}; drop it or choose another --{kind}."
            )
    missing = [key for key, each in known.items() if each.default is MISSING and key not in {**given, **values}]
    if missing:
        raise UsageError(f"{name} needs {' and '.join(_spelled(key, classes) for key in missing)}.")
    made: T = cls(**{key: _converted(known[key], text) for key, text in given.items()}, **values)
    return made


def _owners(name: str, classes: Classes) -> dict[str, Field[Any]]:
    """The fields of this name, by the name of their class."""
    return {owner: each for owner, cls in classes.items() for each in fields(cls) if each.name == name}


def _kinds(each: Field[Any]) -> list[str]:
    return type_text(each.type)


def _converted(each: Field[Any], text: str | bool) -> Any:
    kinds, option = _kinds(each), "--" + each.name.replace("_", "-")
    if isinstance(text, bool):
        return text
    if "Sequence[int]" in kinds:
        return whole_numbers(text, option)
    if "Sequence[float]" in kinds:
        from smoothcert.report.metrics import parse_radii

        several = parse_radii(text)
        return several[0] if len(several) == 1 else several
    if "Classifier" in kinds:
        from smoothcert.compositions import load_model

        return load_model(text)
    if "int" in kinds:
        return whole_number(text, option)
    if "float" in kinds:
        values = numbers(text, option)
        if len(values) > 1:
            raise UsageError(f"{option} accepts one number, got {text}.")
        return values[0]
    return text.lower()


_SHOWN = {"Sequence[int]": "<int,…>", "Sequence[float]": "<float,…>", "Classifier": "<path>", "Norm": "<norm>"}


def _spelled(name: str, classes: Classes, prefix: str = "") -> str:
    """The option of a field; that of a model ends with ``-model``, as ``--core`` of other commands is a log."""
    first = next(iter(_owners(name, classes).values()))
    return f"--{prefix}{name}{'-model' * ('Classifier' in _kinds(first))}".replace("_", "-")


def _derived_parameter(name: str, classes: Classes, prefix: str, panel: str) -> inspect.Parameter:
    owners, spelled = _owners(name, classes), _spelled(name, classes, prefix)
    first, kinds = next(iter(owners.values())), [kind for one in owners.values() for kind in _kinds(one)]
    help = f"{', '.join(owners)}: " if len(owners) < len(classes) else ""
    help += _described(classes[next(iter(owners))]).get(name, "")
    if "bool" in kinds:
        names = f"{spelled}/--no-{spelled[2:]}" if first.default is True else spelled
        return _parameter(prefix + name, Annotated[bool | None, typer.Option(names, help=help)], None, panel)
    defaults = {owner: _default_text(one.default) for owner, one in owners.items()}
    if len(set(defaults.values())) == 1:
        default = defaults[next(iter(owners))]
    else:
        default = ", ".join(f"{text} for {owner}" for owner, text in defaults.items() if text)
    metavar = next((text for kind, text in _SHOWN.items() if kind in kinds), f"<{kinds[0]}>")
    info = typer.Option(spelled, metavar=metavar, help=help + (f" [default: {default}]" if default else ""))
    return _parameter(prefix + name, Annotated[str | None, info], None, panel)


def _default_text(default: Any) -> str:
    if default is MISSING or default is None:
        return ""
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _described(cls: type[Any]) -> dict[str, str]:
    """The first sentence about each argument in the docstring of a class."""
    texts: dict[str, str] = {}
    for each in reversed(cls.__mro__):  # a field may be described by the class it is inherited from
        section = re.search(
            r"^(?:Args|Attributes):\n((?:[ ]+.*\n|\n)+)",
            inspect.cleandoc(each.__doc__ or "") + "\n",
            flags=re.MULTILINE,
        )
        texts |= re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", flags=re.MULTILINE)
    whole = {name: " ".join(text.split()).replace("``", "`") for name, text in texts.items()}
    return {name: re.split(r"(?<=\.)\s", text)[0] for name, text in whole.items()}


def _group_parameters(group: Any, *, plugins: bool = False) -> list[inspect.Parameter]:
    """The parameters of a group, or those that only plug-ins add to it."""
    hints = get_type_hints(group, include_extras=True)
    parameters: list[inspect.Parameter] = []
    for each in fields(group):
        if "classes" in each.metadata:
            classes, prefix = each.metadata["classes"], each.metadata["prefix"]
            names = each.metadata["plugins" if plugins else "names"]
            parameters += [_derived_parameter(name, classes, prefix, group.panel) for name in names]
        elif not plugins:
            default = inspect.Parameter.empty if each.default is MISSING else each.default
            parameters.append(_parameter(each.name, hints[each.name], default, group.panel))
    return parameters


def _taken(each: Field[Any], values: dict[str, Any], clashing: Collection[str]) -> Any:
    if "classes" not in each.metadata:
        return values.pop(each.name)
    prefix = each.metadata["prefix"]
    names = [*each.metadata["names"], *(name for name in each.metadata["plugins"] if prefix + name not in clashing)]
    found = {name: values.pop(prefix + name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _parameter(name: str, hint: Any, default: Any, panel: str = "") -> inspect.Parameter:
    kind, info = get_args(hint)[:2]
    option = "--" + name.replace("_", "-")
    # An option with a name is a flag without a --no- form.
    info = typer.Option(option, help=info) if isinstance(info, str) else copy.copy(info)
    if kind in (list[Path], list[Path] | None):
        info.metavar = info.metavar or "<path>"
    if isinstance(info, OptionInfo):
        info.rich_help_panel = info.rich_help_panel or panel or None
        if kind in (int, int | None):
            names = [str(text) for text in (info.default, *(info.param_decls or ())) if str(text).startswith("--")]
            info.parser = functools.partial(whole_number, option=[*names, option][0], least=info.min)
            info.min, info.metavar = None, info.metavar or "<int>"
        elif info.parser is not None:
            kind = str | None
    else:
        info.metavar = info.metavar or name.upper()
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])
