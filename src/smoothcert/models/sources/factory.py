"""Models that the user's own code builds: ``package.module:factory`` or ``path/to/file.py:factory``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from smoothcert.models.checkpoints import find_checkpoint, fit, read_weights_and_info
from smoothcert.models.loaded import LoadedModel
from smoothcert.models.normalize import Normalize, NormalizeSpec, normalization, without_normalization
from smoothcert.specifiers import Specifier, accepted, call_object, load_object
from smoothcert.types import CheckpointError, UsageError


def build_own(given: Specifier, *, num_classes: int, in_channels: int, normalize: NormalizeSpec = None) -> nn.Module:
    """Build a model to train by the user's own function or class, as ``build`` does for one of ours.

    The numbers of classes and channels are passed only if it has parameters of these names.
    """
    network = load_factory(
        given.text, given.options, {"num_classes": num_classes, "in_channels": in_channels}
    ).model.train()
    values = normalization(normalize, in_channels)
    return network if values is None else nn.Sequential(Normalize(*values), network)


def load_factory(
    factory: str | nn.Module | Callable[..., nn.Module],
    options: Mapping[str, Any],
    offered: Mapping[str, Any] | None = None,
) -> LoadedModel:
    """Build a model by the user's own function or class, or use a module that the user's code already has.

    If the weights are a checkpoint of ours, its metadata is that of the model.

    Args:
        factory: ``package.module:factory`` or ``path/to/file.py:factory``, or the object itself. A module of the caller
            is copied.
        options: ``weights``, a file whose state dict is loaded, with ``entry``, its number in a list of several; all
            others are arguments of the factory.
        offered: Arguments for a factory that has parameters of these names; by default the numbers of classes and
            channels of the checkpoint.

    Raises:
        UsageError: The code cannot be imported or called, or returns no model.
        CheckpointError: The weights cannot be read or do not match the model.
    """
    arguments = dict(options)
    weights = arguments.pop("weights", None)
    file = None if weights is None else find_checkpoint(weights)
    entry = None if file is None else arguments.pop("entry", None)
    tensors, info, sha256 = (None, None, None) if file is None else read_weights_and_info(file, entry)
    if info is not None and not offered:
        offered = {"num_classes": info.num_classes, "in_channels": info.input_shape[0]}
    if isinstance(factory, str):
        text, made = factory, load_object(factory)
    elif not callable(factory):
        raise UsageError(f"the architecture is a {type(factory).__name__}, not a name, a module or a function.")
    else:
        kind = type(factory) if isinstance(factory, nn.Module) else factory
        text = f"{kind.__module__}:{getattr(kind, '__qualname__', type(kind).__qualname__)}"
        made = copy.deepcopy(factory) if isinstance(factory, nn.Module) else factory
    if not isinstance(made, nn.Module):
        arguments = {**accepted(made, offered or {}), **arguments}
        made = call_object(made, arguments, text)
        if not isinstance(made, nn.Module):
            raise UsageError(
                f"{text} returned a {type(made).__name__}, not a torch.nn.Module; wrap it, see from_numpy."
            )
    elif arguments:
        raise UsageError(f"{text} is a model, not a function, so it takes no {', '.join(arguments)}.")
    source: dict[str, Any] = {"factory": text, "arguments": arguments}
    known: dict[str, Any] = {}
    if tensors is not None:
        if info is not None:
            made, normalize = without_normalization(made)
            if normalize is not None and normalize != info.normalize:
                raise CheckpointError(f"'{file}' was saved with the normalisation {info.normalize}, not {normalize}.")
            known = LoadedModel.metadata(info)
        made.load_state_dict(fit(made, tensors, f"'{weights}' as {text}"))
        source |= {"checkpoint": str(file), "sha256": sha256} | ({} if entry is None else {"entry": entry})
    name = Path(weights).stem if weights else text.rpartition(":")[2]
    return LoadedModel(model=made.eval(), name=name, source=source, **known)
