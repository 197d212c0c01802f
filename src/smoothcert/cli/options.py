"""Groups of options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import typer

from smoothcert.files import STANDARD_OUTPUT
from smoothcert.types import UsageError


def output_folder(help: str) -> Any:
    """The option ``--output`` of a command that writes a folder, so that ``-`` for standard output is refused."""
    return typer.Option("--output", "-o", help=help, callback=_refuse_standard_output)


def _refuse_standard_output(folder: Path | None) -> Path | None:
    if folder == STANDARD_OUTPUT:
        raise UsageError("this command writes a folder, not standard output; name a folder after -o.")
    return folder


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters may be groups: one annotated with a dataclass stands for that class's fields.

    A field is annotated as a parameter of a command would be; the command gets the group as one object.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Size:
        ...     width: int
        ...     height: int = 1
        >>> @grouped
        ... def area(size: Size, unit: str = "m²") -> None:
        ...     print(size.width * size.height, unit)
        >>> [*inspect.signature(area).parameters]
        ['width', 'height', 'unit']
        >>> area(width=3, height=2, unit="m²")
        6 m²
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if isinstance(hints[name], type) and is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters += _parameters(hints[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del flat.__wrapped__  # whose signature would be read instead
    return flat


def _parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
