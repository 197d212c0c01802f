"""Save and load models with their metadata; load the files of earlier systems."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from smoothcert.models.files import read_bytes, resolve, write_bytes
from smoothcert.models.foreign import interpret, unpickle
from smoothcert.models.info import CheckpointInfo
from smoothcert.models.normalize import Normalize, NormalizeSpec, normalization
from smoothcert.models.registry import find_model
from smoothcert.models.weights import fit, skeleton
from smoothcert.types import CheckpointError, UsageError

_SUFFIX = ".safetensors"
_METADATA_KEY = "smoothcert"
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        model: The model in eval mode, its normalisation included.
        info: The metadata.
        path: The file it was read from.
        sha256: The hash of that file, in hexadecimal.
    """

    model: nn.Module
    info: CheckpointInfo
    path: Path
    sha256: str


@dataclass(frozen=True, kw_only=True)
class CheckpointSummary:
    """What can be said of a checkpoint without its model.

    Attributes:
        info: The metadata.
        parameters: The number of parameters of the network.
        path: The file it was read from.
        sha256: The hash of that file, in hexadecimal.
    """

    info: CheckpointInfo
    parameters: int
    path: Path
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, those of the metadata among them."""
        summary = {"path": str(self.path), "sha256": self.sha256, "parameters": self.parameters}
        return {**summary, **asdict(self.info)}


def save_checkpoint(path: str | os.PathLike[str], model: nn.Module, metadata: CheckpointInfo) -> Path:
    """Write a model and its metadata as one safetensors file, whole or not at all.

    The file holds the tensors of the bare network; the normalisation is in the metadata.

    Args:
        path: The file to write, ending in ``.safetensors``; its folder is made if need be.
        model: A model as ``build`` makes it.
        metadata: What the model is; see ``CheckpointInfo.of``.

    Returns:
        The path.

    Raises:
        UsageError: Another suffix, metadata that JSON cannot hold, or another normalisation in the model.
        CheckpointError: The model does not fit the metadata, has weights that are not finite, or cannot be written.
    """
    path = Path(path)
    if path.suffix != _SUFFIX:
        raise UsageError(f"a checkpoint is saved as a {_SUFFIX} file, not as '{path.name}'.")
    network = _without_normalization(model, metadata)
    state = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    reference = skeleton(metadata.architecture, metadata.num_classes, metadata.input_shape[0])
    weights = fit(reference, state, f"the model to save as {metadata.architecture}")
    write_bytes(path, safetensors.torch.save(weights, metadata={_METADATA_KEY: metadata.to_json()}))
    return path


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    architecture: str | None = None,
    num_classes: int | None = None,
    normalize: NormalizeSpec = None,
) -> Checkpoint:
    """Load a checkpoint of ours or of an earlier system (see ``smoothcert.models.foreign``) without running its code.

    Args:
        path: A file; or a folder with ``best.safetensors``, ``last.safetensors``, one other .safetensors file or an
            earlier system's ``checkpoint.pth.tar``.
        architecture: The architecture. A file of ours must agree; in a foreign file it replaces what the file says.
        num_classes: The number of classes, with which the file must agree.
        normalize: The normalisation, ``"none"`` for none. A file of ours must agree; in a foreign file it replaces
            what the file holds or what its system is known to use.

    Returns:
        The model in eval mode on the CPU, the metadata, the file and its hash.

    Raises:
        CheckpointError: The file is missing, damaged, unsafe, of an unknown kind, or does not fit.
        UsageError: An argument is wrong.
    """
    loaded = _load(path, architecture, num_classes, normalize)
    loaded.network.load_state_dict(loaded.weights, assign=True)
    model = loaded.network
    if loaded.info.normalize is not None:
        model = nn.Sequential(Normalize(*loaded.info.normalize), model)
    return Checkpoint(model=model.eval(), info=loaded.info, path=loaded.path, sha256=loaded.sha256)


def load_model(
    path: str | os.PathLike[str],
    *,
    architecture: str | None = None,
    num_classes: int | None = None,
    normalize: NormalizeSpec = None,
) -> nn.Module:
    """The model of ``load_checkpoint``, in eval mode; arguments and errors are the same."""
    return load_checkpoint(path, architecture=architecture, num_classes=num_classes, normalize=normalize).model


def describe(
    path: str | os.PathLike[str],
    *,
    architecture: str | None = None,
    num_classes: int | None = None,
    normalize: NormalizeSpec = None,
) -> CheckpointSummary:
    """Check a checkpoint and say what it is, without a model; arguments and errors are those of ``load_checkpoint``."""
    loaded = _load(path, architecture, num_classes, normalize)
    parameters = sum(parameter.numel() for parameter in loaded.network.parameters())
    return CheckpointSummary(info=loaded.info, parameters=parameters, path=loaded.path, sha256=loaded.sha256)


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    info: CheckpointInfo
    network: nn.Module
    weights: dict[str, Tensor]
    path: Path
    sha256: str


def _load(
    path: str | os.PathLike[str], architecture: str | None, num_classes: int | None, normalize: NormalizeSpec
) -> _Loaded:
    file = resolve(path)
    data = read_bytes(file)
    source = f"checkpoint '{file}'"
    content = _content(file, data, source)
    if isinstance(content, _Native):
        info, tensors = content.info, content.tensors
        _check_agreement(info, source, architecture, num_classes, normalize)
    else:
        info, tensors = interpret(
            content, source, architecture=architecture, num_classes=num_classes, normalize=normalize
        )
    network = skeleton(info.architecture, info.num_classes, info.input_shape[0])
    weights = fit(network, tensors, f"{source} as {info.architecture}")
    return _Loaded(info=info, network=network, weights=weights, path=file, sha256=hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class _Native:
    info: CheckpointInfo
    tensors: dict[str, Tensor]


def _content(file: Path, data: bytes, source: str) -> object:
    """A file of ours as ``_Native``, any other checkpoint as what it holds; told apart by their first bytes."""
    if file.suffix == _SUFFIX or data[8:9] == b"{":
        try:
            tensors = safetensors.torch.load(data)
        except Exception as error:  # the parser has its own error class, the conversion to tensors has others
            raise CheckpointError(f"{source} is damaged or no safetensors file: {error}.") from error
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        text = (header.get("__metadata__") or {}).get(_METADATA_KEY)
        return tensors if text is None else _Native(CheckpointInfo.from_json(text, source), tensors)
    if data.startswith((_ZIP, _PICKLE)):
        return unpickle(data, source)
    raise CheckpointError(f"'{file}' is no checkpoint: it is neither a safetensors nor a PyTorch file.")


def _check_agreement(
    info: CheckpointInfo,
    source: str,
    architecture: str | None,
    num_classes: int | None,
    normalize: NormalizeSpec,
) -> None:
    if architecture is not None and find_model(architecture).name != info.architecture:
        raise CheckpointError(f"{source} is a {info.architecture}, not a {architecture}.")
    if num_classes is not None and num_classes != info.num_classes:
        raise CheckpointError(f"{source} has {info.num_classes} classes, not {num_classes}.")
    if normalize is not None and normalization(normalize, info.input_shape[0]) != info.normalize:
        raise CheckpointError(f"{source} was saved with the normalisation {info.normalize}, not {normalize}.")


def _without_normalization(model: nn.Module, metadata: CheckpointInfo) -> nn.Module:
    network, layer = model, None
    if isinstance(model, nn.Sequential) and len(model) == 2 and isinstance(model[0], Normalize):
        layer, network = model[0], model[1]
    wanted = None if metadata.normalize is None else Normalize(*metadata.normalize)
    if _values(layer) != _values(wanted):
        raise UsageError("the normalisation of the model is not the one in the metadata to save.")
    return network


def _values(layer: Normalize | None) -> list[float] | None:
    return None if layer is None else torch.cat([layer.mean, layer.std]).flatten().tolist()
