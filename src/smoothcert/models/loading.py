"""Load any model by its specifier."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from smoothcert.models.checkpoints import load_checkpoint
from smoothcert.models.loaded import LoadedModel
from smoothcert.models.normalize import Normalize, normalization
from smoothcert.models.sources.endpoint import load_endpoint
from smoothcert.models.sources.exported import is_program, load_program
from smoothcert.models.sources.factory import load_factory
from smoothcert.models.sources.huggingface import is_huggingface, load_huggingface, load_timm, own_checkpoint
from smoothcert.models.sources.onnx_file import load_onnx
from smoothcert.models.zoo import Zoo
from smoothcert.specifiers import Specifier, is_factory
from smoothcert.types import CheckpointError, StrPath, UsageError

Source = Callable[[str, Mapping[str, Any]], LoadedModel]
"""Loads a model from the text of a specifier and its options."""

PREFIXES: dict[str, Source] = {
    "hf": load_huggingface,
    "timm": load_timm,
    "http": load_endpoint,
    "https": load_endpoint,
}
"""Sources by the text in front of the first colon."""

SUFFIXES: dict[str, Source] = {".onnx": load_onnx, ".pt2": load_program}
"""Sources by the end of a file's name."""


def load_model(specifier: StrPath, **options: Any) -> nn.Module:
    """Load a model in evaluation mode, on the CPU; it maps a batch of inputs in [0, 1] to logits.

    Arguments and errors are those of :func:`open_model`.

    Example:
        >>> load_model("torch.nn:Linear,in_features=4,out_features=2")
        Linear(in_features=4, out_features=2, bias=True)
    """
    return open_model(specifier, **options).model


def open_model(specifier: StrPath | Specifier, **options: Any) -> LoadedModel:
    """Load a model and what its source tells about it. Nothing is unpickled; code runs only if the specifier names it.

    Args:
        specifier: One of these, with options after it as ``,name=value``:

            - a checkpoint of ours or of an earlier system, or its folder; ``architecture`` is the network of a bare
              state dict or of a checkpoint of your own model: one of ours, ``package.module:factory``, a module or a
              function that returns one;
            - ``package.module:factory`` or ``path/to/file.py:factory``, with ``weights`` and arguments of the factory;
            - an ``.onnx`` file, a TorchScript file or a ``.pt2`` file of ``torch.export``;
            - ``hf:NAME`` of the Hugging Face hub, or a folder that ``save_pretrained`` wrote;
            - ``timm:NAME``;
            - ``zoo:NAME``, a model of the zoo (see ``smoothcert.models.zoo``);
            - ``http://…``, an endpoint that speaks the protocol of TensorFlow Serving.
        **options: More options. ``normalize`` is for all sources: a preset's name, ``bytes`` (values from 0 to 255),
            ``symmetric`` (from -1 to 1), ``MEAN/STD`` with one value for all channels or several as ``a:b:c``, a (mean,
            std) pair, or ``none``.

    Raises:
        UsageError: The specifier or an option is invalid, or a package is missing.
        CheckpointError: A file is missing, damaged or unsafe, or does not match the network.
    """
    given = specifier if isinstance(specifier, Specifier) else Specifier.parse(os.fspath(specifier))
    every = {**given.options, **{name: value for name, value in options.items() if value is not None}}
    text, path = given.text, Path(given.text).expanduser()
    prefix, _, rest = text.partition(":")
    own = every.get("architecture")
    named = Specifier.parse(own) if isinstance(own, str) else None
    ours = own_checkpoint(rest, every.get("revision")) if rest and prefix == "hf" else None
    if ours is not None:  # a checkpoint on the hub
        every.pop("revision", None)
        text, path, rest = str(ours), ours, ""
    if rest and prefix == "zoo":
        return replace(_from_checkpoint(Zoo().file(rest), every), name=rest)
    if rest and prefix in PREFIXES:
        load = PREFIXES[prefix]
    elif path.suffix in SUFFIXES:
        load = SUFFIXES[path.suffix]
    elif path.is_file() and is_program(path):
        load = load_program
    elif is_huggingface(path):
        load = load_huggingface
    elif path.suffix in (".yaml", ".yml"):
        raise UsageError(f"{path} describes a composition of models; load it by smoothcert.load_model.")
    elif not path.exists() and is_factory(text):
        load = load_factory
    elif own is not None and (named is None or is_factory(named.text)):
        load, text = load_factory, every.pop("architecture")
        every["weights"] = path
        if named is not None:
            text, every = named.text, {**named.options, **every}
    else:
        return _from_checkpoint(path, every)
    normalize = every.pop("normalize", None)
    loaded = load(text, every)
    if normalize is not None:
        channels = loaded.input_shape[0] if loaded.input_shape else None
        if loaded.extra and normalization(normalize, channels) != loaded.normalize:
            raise CheckpointError(
                f"the weights of {loaded.name} were saved with the normalisation {loaded.normalize}, not {normalize}."
            )
        loaded = replace(loaded, normalize=normalization(normalize, channels), preprocessing="option")
    if loaded.normalize is None:
        return loaded
    model = nn.Sequential(Normalize(*loaded.normalize), loaded.model).eval()
    return replace(loaded, model=model, source={**loaded.source, "normalize": loaded.normalize})


def _from_checkpoint(path: Path, options: Mapping[str, Any]) -> LoadedModel:
    unknown = set(options) - {"architecture", "num_classes", "normalize"}
    if unknown:
        raise UsageError(
            f"a checkpoint has no option {', '.join(sorted(unknown))}; it takes architecture, num_classes, normalize."
        )
    return LoadedModel.of_checkpoint(load_checkpoint(path, **options))
