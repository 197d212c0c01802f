"""Specifiers: the text by which commands, files and ``load_model`` name a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from smoothcert.types import UsageError

_OPTION = re.compile(r",\s*([A-Za-z_]\w*)=")


@dataclass(frozen=True)
class Specifier:
    """A model by name, with options.

    Attributes:
        text: The model without options, such as ``net.onnx``, ``package.module:factory`` or ``hf:organisation/name``.
        options: Values by name, such as ``{"normalize": "imagenet"}``.
    """

    text: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Specifier:
        """Split ``text,name=value,…`` into the model and its options; values are read as in YAML.

        Raises:
            UsageError: An option is given twice, or the text names no model.

        Example:
            >>> Specifier.parse("nets.py:resnet,depth=20,weights=r20.th")
            Specifier(text='nets.py:resnet', options={'depth': 20, 'weights': 'r20.th'})
        """
        model, *parts = _OPTION.split(text)
        options: dict[str, Any] = {}
        for name, value in zip(parts[::2], parts[1::2], strict=True):
            if name in options:
                raise UsageError(f"'{text}' gives {name} twice; give it once.")
            options[name] = _value(value)
        if not model:
            raise UsageError(f"'{text}' names no model; begin with a file, package.module:factory or another source.")
        return cls(model, options)


def _value(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, str | int | float | bool) else text


def short_name(text: str) -> str:
    """Return a name for files about the model that a specifier names.

    Example:
        >>> [short_name(text) for text in ("models/lenet.safetensors", "nets.py:resnet,depth=20", "hf:google/vit")]
        ['lenet', 'resnet', 'vit']
    """
    given = Specifier.parse(text)
    chosen = str(given.options.get("weights", given.text))
    name = chosen.rstrip("/").rpartition("/")[2]
    if "weights" not in given.options:
        name = name.rpartition(":")[2]
    for suffix in (".safetensors", ".tar", ".pth", ".pt", ".th", ".onnx", ".pt2"):
        name = name.removesuffix(suffix)
    return name or "model"
