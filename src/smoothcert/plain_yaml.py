"""YAML files of recipes and compositions: plain values only, every key once, and errors in one sentence."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from smoothcert.types import UsageError, unknown_name

MAX_BYTES = 100_000

_TAG = "tag:yaml.org,2002:"
_TAG_OF_UNION = re.compile("<[a-z]+>")  # how our unions of pydantic models mark their members in the place of an error
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?$")


class _Loader(yaml.SafeLoader):
    """Plain values only: no anchors, tags, dates or numbers in other bases, but 1e-4 is a number as in YAML 1.2."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  (declared so by the base class)

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None or getattr(event, "tag", None) is not None:
            problem = "anchors, aliases and tags are not allowed"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else key
            if name in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {name!r} appears twice", problem_mark=key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes text that ``_Loader`` reads as the same text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(f"{_TAG}str", value, style=None if value.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)
_Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_BOOL = re.compile(r"(?:true|false|yes|no|on|off)$", re.IGNORECASE)
_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789"))
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(f"{_TAG}bool", _BOOL, list("tTfFyYnNoO"))
    _kind.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))


def read(text: str, where: str) -> Any:
    """Read a YAML text; ``where`` is its name in errors."""
    line = None
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        late = error.context == "while scanning a simple key"  # noticed on the line after the invalid one
        mark = error.context_mark if late else error.problem_mark
        line = None if mark is None else mark.line
        problem = error.problem or error.context or "not valid YAML"
    except yaml.reader.ReaderError as error:
        line, problem = text.count("\n", 0, error.position), error.reason
    except ValueError:
        problem = "a number has too many digits"
    except RecursionError:
        problem = "values are nested too deeply"
    place = where if line is None else f"line {line + 1} of {where}"
    raise UsageError(f"{place} is not valid: {' '.join(problem.split())}.")


def read_file(path: Path, what: str) -> tuple[Any, bytes]:
    """Read a YAML file, and return its values and its bytes; ``what`` it should be is for errors: ``"a recipe"``."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content[:MAX_BYTES].decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); pass the file of {what}.") from error
    except ValueError as error:  # not UTF-8, or an invalid path
        raise UsageError(f"{path} is not a text file in UTF-8 ({error}); pass the file of {what}.") from error
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path} has more than {MAX_BYTES} bytes, which is too large for {what}.")
    return read(text, str(path)), content


def write(value: Any) -> str:
    """Write plain values as YAML, inner collections on one line."""
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": None, "width": 120}
    return str(yaml.dump(value, Dumper=_Dumper, **options))


def sentence(error: ValidationError, known: Collection[str], key: str = "") -> UsageError:
    """Return the first error of pydantic in one sentence, unknown settings before others; ``key`` is the outer one."""
    first = min(error.errors(include_url=False), key=lambda one: one["type"] != "extra_forbidden")
    for part in first["loc"]:
        if isinstance(part, str) and _TAG_OF_UNION.fullmatch(part):
            continue
        key += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if key else part
    if first["type"] == "extra_forbidden":
        group, dot, name = key.rpartition(".")
        if key in known:
            return UsageError(f"{key} must be written inside {group}, as {group}: {{{name}: …}}.")
        near = [other for other in known if (other.startswith(f"{group}.") if dot else other.endswith(f".{key}"))]
        return unknown_name("setting", key, near or known)
    if first["type"] == "missing":
        return UsageError(f"{key} is missing.")
    if first["type"] == "value_error":  # raised by our validators
        return UsageError(f"{key and key + ': '}{first['msg'].removeprefix('Value error, ').rstrip('.')}.")
    return UsageError(f"{key} {re.sub(r'^[A-Za-z]+ should ', 'must ', first['msg'])}, got {first['input']!r:.80}.")
