"""YAML as recipes use it: plain values, every key once, and errors in one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from smoothcert.types import UsageError

MAX_BYTES = 100_000
MAX_DEPTH = 20

_TAG = "tag:yaml.org,2002:"
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?$")
_FLOAT_STARTS = list("-+.0123456789")


class _Loader(yaml.SafeLoader):
    """Plain values only: no anchors, tags, dates or numbers in other bases, but 1e-4 is a number as in YAML 1.2."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  (declared so by the base class)
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:  # an alias has one too
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not allowed", problem_mark=event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(problem="tags are not allowed", problem_mark=event.start_mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem="values are nested too deeply", problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != f"{_TAG}str":
                raise yaml.MarkedYAMLError(problem="a key must be text", problem_mark=key.start_mark)
            if key.value in seen:
                problem = f"the key {key.value!r} is there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes what :class:`_Loader` reads: text that it would take for something else is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """Text with a line break of any alphabet or another sign that is not printed is quoted and escaped."""
    return dumper.represent_scalar(f"{_TAG}str", value, style=None if value.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)
_Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(
    f"{_TAG}bool", re.compile(r"(?:true|false|yes|no|on|off)$", re.IGNORECASE), list("tTfFyYnNoO")
)
_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789"))
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(f"{_TAG}float", _FLOAT, _FLOAT_STARTS)


def read(text: str, where: str) -> Any:
    """The value that a YAML text stands for.

    Args:
        text: The text.
        where: What to call it in errors.

    Raises:
        UsageError: If it is not valid YAML, or more than plain values with every key once.
    """
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        late = error.context == "while scanning a simple key"  # noticed a line after the one that is wrong
        mark = error.context_mark if late else error.problem_mark
        line = None if mark is None else mark.line
        problem = error.problem or error.context or "not valid YAML"
    except yaml.reader.ReaderError as error:
        line, problem = text.count("\n", 0, error.position), error.reason
    except ValueError:
        line, problem = None, "a number has too many digits"
    place = where if line is None else f"line {line + 1} of {where}"
    raise UsageError(f"{place} is not valid: {' '.join(problem.split())}.")


def read_file(path: Path) -> Any:
    """The value in a YAML file.

    Raises:
        UsageError: If it cannot be read, is too large for a recipe, or :func:`read` refuses it.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content[:MAX_BYTES].decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); give a recipe's name or its file.") from error
    except ValueError as error:  # not UTF-8, or a path that no file can have
        raise UsageError(f"{path} is not a text file in UTF-8 ({error}); give a recipe's file.") from error
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path} has more than {MAX_BYTES} bytes, which is no recipe.")
    return read(text, str(path))


def write(value: Any) -> str:
    """Plain values as YAML, inner collections on one line."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120
    )
    return text
