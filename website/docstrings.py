"""Prepare docstrings for mkdocstrings: examples become code, and roles of Sphinx become code too."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^(\s*)Example:\s*$", re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|meth|mod|attr):`~?([^`]+)`")


class Docstrings(griffe.Extension):
    """Rewrite every docstring when it is read."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if not obj.is_alias and obj.docstring is not None:
            text = _EXAMPLE.sub(r"\1Examples:", obj.docstring.value)
            obj.docstring.value = _ROLE.sub(r"`\1`", text)
