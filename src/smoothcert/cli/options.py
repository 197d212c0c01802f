"""Turn typed functions into commands: groups of options, and options derived from the fields of dataclasses."""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from smoothcert.files import STANDARD_OUTPUT
from smoothcert.types import UsageError, unknown_name

Registry = Mapping[str, type[Any]]


def output_folder(help: str) -> Any:
    """The option ``--output`` of a command that writes a folder; ``-`` for standard output is refused."""
    return typer.Option("--output", "-o", help=help, callback=_refuse_standard_output)


def _refuse_standard_output(folder: Path | None) -> Path | None:
    if folder == STANDARD_OUTPUT:
        raise UsageError("this command writes a folder, not standard output; name a folder after -o.")
    return folder


def whole_number(text: str | int, option: str = "the value", least: float | None = None) -> int:
    """Read a whole number, also one written as ``1e5`` or ``100_000``.

    Raises:
        UsageError: If it is not a whole number, or below ``least``.

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
    """Read numbers, as ``a,b,c``.

    Raises:
        UsageError: If one of them is not a number.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} must be numbers such as 0.5,0.3,0.2; got {text!r}.") from None


def check_choice(option: str, value: str | None, known: Iterable[str]) -> None:
    """Refuse a value that is not one of the known ones.

    Raises:
        UsageError: If it is not.
    """
    if value is not None and value not in known:
        raise unknown_name(option, value, known)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A function whose parameters may be groups of options: a dataclass stands for its fields.

    The fields of a group are annotated as the parameters of a command are, and shown in a help panel named by the
    ``panel`` of the class. A field made by :func:`derived` stands for options derived from other dataclasses. The
    function gets each group as one object. Whole numbers may be written as ``1e5``.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Size:
        ...     width: int
        ...     height: int = 1
        >>> def area(size: Size, unit: str = "m²") -> None:
        ...     print(size.width * size.height, unit)
        >>> [*inspect.signature(command(area)).parameters]
        ['width', 'height', 'unit']
        >>> command(area)(width=3, height=2, unit="m²")
        6 m²
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if isinstance(hints[name], type) and is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters += _group_parameters(hints[name])
        else:
            parameters.append(_parameter(name, hints[name], parameter.default))

    @functools.wraps(function)
    def flat(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{each.name: _taken(each, values) for each in fields(group)})
        function(**values)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del flat.__wrapped__  # whose signature would be read instead
    return flat


def derived(classes: Callable[[], Registry], *, skip: Iterable[str] = (), prefix: str = "", panel: str = "") -> Any:
    """A field of a group that holds, by name, the settings given for one of some dataclasses.

    Each field of the dataclasses is an option, described by the ``Args`` of its class.

    Args:
        classes: Gives the dataclasses by name.
        skip: Fields that are not options.
        prefix: What the names of the options begin with, such as ``ray_``.
        panel: The help panel, if it is not that of the group.
    """
    metadata = {"classes": classes, "skip": frozenset(skip), "prefix": prefix, "panel": panel}
    return field(default_factory=dict, metadata=metadata)


def build(kind: str, classes: Registry, name: str, given: Mapping[str, str | bool], **values: Any) -> Any:
    """Make one of some dataclasses from the settings given on the command line.

    Args:
        kind: What the classes are, such as ``procedure``.
        classes: The classes by name.
        name: The class to make.
        given: The settings of a field made by :func:`derived`.
        values: More settings, as values.

    Raises:
        UsageError: If the name is unknown, a setting belongs to another class or is missing, or a value is wrong.
    """
    if name not in classes:
        raise unknown_name(kind, name, classes)
    known = {each.name: each for each in fields(classes[name])}
    for key in given:
        if key not in known:
            owners = [owner for owner, each in classes.items() if key in {one.name for one in fields(each)}]
            raise UsageError(
                f"{_spelled(key, classes)} is an option of {' and '.join(owners)}, not of {name}; drop it or choose "
                f"another --{kind}."
            )
    missing = [key for key, each in known.items() if each.default is MISSING and key not in {**given, **values}]
    if missing:
        raise UsageError(f"{name} needs {' and '.join(_spelled(key, classes) for key in missing)}.")
    return classes[name](**{key: _converted(known[key], text) for key, text in given.items()}, **values)


def _kinds(each: Field[Any]) -> list[str]:
    text = each.type if isinstance(each.type, str) else getattr(each.type, "__name__", str(each.type))
    return [part.strip() for part in text.split("|")]


def _converted(each: Field[Any], text: str | bool) -> Any:
    kinds, option = _kinds(each), "--" + each.name.replace("_", "-")
    if isinstance(text, bool) or "bool" in kinds:
        return text
    if "Sequence[int]" in kinds:
        return whole_numbers(text, option)
    if "Sequence[float]" in kinds:
        from smoothcert.report.metrics import parse_radii

        several = parse_radii(text)
        return several[0] if len(several) == 1 else several
    if "Classifier" in kinds:
        from smoothcert.models import load_model

        return load_model(text)
    if "int" in kinds:
        return whole_number(text, option)
    if "float" in kinds:
        values = numbers(text, option)
        if len(values) > 1:
            raise UsageError(f"{option} takes one number, got {text}.")
        return values[0]
    return text.lower()


_SHOWN = {"Sequence[int]": "<int,…>", "Sequence[float]": "<float,…>", "Classifier": "<path>", "Norm": "<norm>"}


def _spelled(name: str, classes: Registry, prefix: str = "") -> str:
    """The option of a field; one that names a model says so, as ``--core`` elsewhere names a log."""
    found = next(one for each in classes.values() for one in fields(each) if one.name == name)
    return f"--{prefix}{name}{'-model' * ('Classifier' in _kinds(found))}".replace("_", "-")


def _derived_parameters(each: Field[Any], panel: str) -> list[inspect.Parameter]:
    classes, skip, prefix = (each.metadata[key] for key in ("classes", "skip", "prefix"))
    owners: dict[str, dict[str, Field[Any]]] = {}
    for owner, one in classes().items():
        for setting in fields(one):
            if setting.init and setting.name not in skip:
                owners.setdefault(setting.name, {})[owner] = setting
    parameters = []
    for name, found in owners.items():
        kinds = [kind for setting in found.values() for kind in _kinds(setting)]
        texts = [_described(classes()[owner]).get(name, "") for owner in found]
        defaults = {owner: _shown(setting.default) for owner, setting in found.items()}
        several = len(set(defaults.values())) > 1
        default = ", ".join(f"{value} for {owner}" if several else value for owner, value in defaults.items() if value)
        default = default if several else default.partition(",")[0] if "Sequence[int]" not in kinds else default
        who = f"{', '.join(found)}: " if len(found) < len(classes()) else ""
        spelled = _spelled(name, classes(), prefix)
        if "bool" in kinds:
            on = next(iter(found.values())).default is True
            hint: Any = bool | None
            info = typer.Option(f"{spelled}/--no-{spelled[2:]}" if on else spelled, help=who + texts[0])
        else:
            shown = next((text for kind, text in _SHOWN.items() if kind in kinds), f"<{kinds[0]}>")
            end = f" [default: {default}]" if default else ""
            hint, info = str | None, typer.Option(spelled, metavar=shown, help=who + texts[0] + end)
        parameters.append(_parameter(prefix + name, Annotated[hint, info], None, each.metadata["panel"] or panel))
    return parameters


def _shown(default: Any) -> str:
    if default is MISSING or default is None:
        return ""
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _described(cls: type[Any]) -> dict[str, str]:
    """The first sentence about each argument in the docstring of a class."""
    section = re.search(r"^Args:\n((?:[ ]+.*\n|\n)+)", (inspect.getdoc(cls) or "") + "\n", flags=re.MULTILINE)
    found = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section[1] if section else "", flags=re.MULTILINE)
    texts = {name: " ".join(text.split()).replace("``", "`") for name, text in found}
    return {name: re.split(r"(?<=\.)\s", text)[0] for name, text in texts.items()}


def _group_parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints, panel = get_type_hints(group, include_extras=True), getattr(group, "panel", "")
    parameters: list[inspect.Parameter] = []
    for each in fields(group):
        if "classes" in each.metadata:
            parameters += _derived_parameters(each, panel)
        else:
            default = inspect.Parameter.empty if each.default is MISSING else each.default
            parameters.append(_parameter(each.name, hints[each.name], default, panel))
    return parameters


def _taken(each: Field[Any], values: dict[str, Any]) -> Any:
    if "classes" not in each.metadata:
        return values.pop(each.name)
    prefix, names = each.metadata["prefix"], dict[str, None]()
    for one in each.metadata["classes"]().values():
        names |= dict.fromkeys(setting.name for setting in fields(one) if prefix + setting.name in values)
    found = {name: values.pop(prefix + name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _parameter(name: str, hint: Any, default: Any, panel: str = "") -> inspect.Parameter:
    """A parameter of a command, in a help panel; a whole number may be written as 1e5."""
    if get_origin(hint) is Annotated:
        kind, info = get_args(hint)[:2]
        info = copy.copy(info)
        if kind in (list[Path], list[Path] | None):
            info.metavar = info.metavar or "<path>"
        if isinstance(info, OptionInfo):
            info.rich_help_panel = info.rich_help_panel or panel or None
            if kind in (int, int | None) and info.parser is None:
                names = [text for text in map(str, (info.default, *(info.param_decls or ()))) if text.startswith("--")]
                option = names[0] if names else "--" + name.replace("_", "-")
                info.parser = functools.partial(whole_number, option=option, least=info.min)
                info.min, info.metavar = None, info.metavar or "<int>"
        elif isinstance(info, ArgumentInfo):
            info.metavar = info.metavar or name.upper()
        hint = Annotated[kind, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
