"""Save and load models with their metadata; load the files of earlier systems."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from smoothcert.files import replacing
from smoothcert.models.foreign import interpret, is_plain, state_dict, unpickle
from smoothcert.models.info import CheckpointInfo
from smoothcert.models.normalize import Normalization, Normalize, NormalizeSpec, normalization, without_normalization
from smoothcert.models.registry import find_model, skeleton
from smoothcert.types import CheckpointError, StrPath, UsageError, wrong_path

_SUFFIX = ".safetensors"
_PREFERRED = ("best.safetensors", "last.safetensors")
_EARLIER = "checkpoint.pth.tar"
_METADATA_KEY = "smoothcert"
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_NAMED = 3  # tensors in an error


@dataclass(frozen=True, kw_only=True)
class CheckpointSummary:
    """The description of a checkpoint without its model."""

    info: CheckpointInfo
    parameters: int  # how many the network has; with buffers, if it is not one of ours
    path: Path
    sha256: str  # of the file, in hexadecimal

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, with those of the metadata."""
        summary = {"path": str(self.path), "sha256": self.sha256, "parameters": self.parameters}
        return {**summary, **asdict(self.info)}


@dataclass(frozen=True, kw_only=True)
class Checkpoint(CheckpointSummary):
    """A loaded checkpoint."""

    model: nn.Module  # in eval mode, with its normalisation


def save_checkpoint(path: StrPath, model: nn.Module, metadata: CheckpointInfo) -> Path:
    """Write a model and its metadata atomically as one ``.safetensors`` file.

    The file holds the tensors of the bare network; the normalisation is in the metadata. The folder is created if it is
    missing.

    Raises:
        UsageError: Another suffix, metadata that is not JSON, or another normalisation in the model.
        CheckpointError: The model does not match the metadata, a weight is not finite, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix != _SUFFIX:
        raise UsageError(f"a checkpoint is saved as a {_SUFFIX} file, not as '{path.name}'.")
    network, values = without_normalization(model)
    if _rounded(values) != _rounded(metadata.normalize):
        raise UsageError("the normalisation of the model is not the one in the metadata to save.")
    state = {name: tensor.detach().cpu() for name, tensor in network.state_dict().items()}
    reference = network
    if not metadata.external:
        reference = skeleton(metadata.architecture, metadata.num_classes, metadata.input_shape[0])
    weights = fit(reference, state, f"the model to save as {metadata.architecture}")
    data = safetensors.torch.save(weights, metadata={_METADATA_KEY: metadata.to_json()})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_bytes(data)
    except OSError as error:
        raise CheckpointError(f"checkpoint '{path}' cannot be written: {error.strerror}.") from error
    return path


def load_checkpoint(
    path: StrPath,
    *,
    architecture: str | None = None,
    num_classes: int | None = None,
    normalize: NormalizeSpec = None,
) -> Checkpoint:
    """Load a checkpoint of ours or of an earlier system (see ``smoothcert.models.foreign``) without running its code.

    Args:
        path: A file; or a folder with ``best.safetensors``, ``last.safetensors``, one other .safetensors file or an
            earlier system's ``checkpoint.pth.tar``.
        architecture: The architecture. A file of ours must agree; in a foreign file, and in one of ours with the
            weights of other code, it replaces the name in the file.
        num_classes: The number of classes, with which the file must agree.
        normalize: The normalisation, ``"none"`` for none. A file of ours must agree; in a foreign file it replaces
            that of the file or of its system.

    Returns:
        The model in eval mode on the CPU, the metadata, the file and its hash.

    Raises:
        CheckpointError: The file is missing, damaged, unsafe, of an unknown kind, or does not match the arguments.
        UsageError: An argument is invalid.
    """
    summary, model, weights = _load(path, architecture, num_classes, normalize)
    model.load_state_dict(weights, assign=True)
    if summary.info.normalize is not None:
        model = nn.Sequential(Normalize(*summary.info.normalize), model)
    return Checkpoint(model=model.eval(), **vars(summary))


def describe(path: StrPath, *, architecture: str | None = None) -> CheckpointSummary:
    """Check and describe a checkpoint, also one of other code; arguments and errors are as in ``load_checkpoint``."""
    tensors, info, sha256 = read_weights_and_info(path)
    if info is None or not info.external or architecture is not None:
        return _load(path, architecture, None, None)[0]
    parameters = sum(tensor.numel() for tensor in tensors.values())
    return CheckpointSummary(info=info, parameters=parameters, path=find_checkpoint(path), sha256=sha256)


def read_weights_and_info(
    path: StrPath, entry: int | None = None
) -> tuple[dict[str, Tensor], CheckpointInfo | None, str]:
    """Read the tensors of a checkpoint as ``read_weights`` does, and the metadata, which only files of ours have."""
    file = find_checkpoint(path)
    data, source = read_file(file), f"checkpoint '{file}'"
    info, content = _content(file, data, source)
    return state_dict(content, source, entry), info, hashlib.sha256(data).hexdigest()


def read_weights(path: StrPath, entry: int | None = None) -> tuple[dict[str, Tensor], str]:
    """Read the tensors of a checkpoint by name, without the prefixes of wrappers, and the SHA-256 of the file.

    Args:
        entry: The number of the state dict, in a file with a list of several.

    Raises:
        CheckpointError: The file is missing, damaged, unsafe, or holds no state dict.
    """
    tensors, _, sha256 = read_weights_and_info(path, entry)
    return tensors, sha256


def find_checkpoint(path: StrPath) -> Path:
    """Return the file, or the best, last or only checkpoint of a folder."""
    path = Path(path)
    if not path.is_dir():
        if not path.is_file():
            raise wrong_path(CheckpointError(f"there is no checkpoint at '{path}'."))
        return path
    found = {file.name: file for file in [*path.glob(f"*{_SUFFIX}")] or path.glob(_EARLIER)}
    for name in _PREFERRED:
        if name in found:
            return found[name]
    if len(found) == 1:
        return next(iter(found.values()))
    what = f"{len(found)} checkpoints, none of them {' or '.join(_PREFERRED)}" if found else "no checkpoint"
    raise wrong_path(CheckpointError(f"folder '{path}' holds {what}; name the file itself."))


def read_file(path: Path) -> bytes:
    """Read the whole file, so that the bytes hashed are the bytes loaded."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"checkpoint '{path}' cannot be read: {error.strerror}.") from error


def _load(
    path: StrPath, architecture: str | None, num_classes: int | None, normalize: NormalizeSpec
) -> tuple[CheckpointSummary, nn.Module, dict[str, Tensor]]:
    """Return the summary, the network without values, and its checked weights."""
    file = find_checkpoint(path)
    data = read_file(file)
    source = f"checkpoint '{file}'"
    info, content = _content(file, data, source)
    if info is None:
        info, content = interpret(
            content, source, architecture=architecture, num_classes=num_classes, normalize=normalize
        )
    else:
        _check_agreement(info, source, architecture, num_classes, normalize)
        if info.external and architecture is not None:
            info = replace(info, architecture=architecture)
        elif info.external:
            raise CheckpointError(
                f"{source} has the weights of {info.architecture}, which is not one of our architectures; pass "
                "architecture=, or on the command line --arch package.module:factory."
            )
    network = skeleton(info.architecture, info.num_classes, info.input_shape[0])
    weights = fit(network, content, f"{source} as {info.architecture}")
    parameters = sum(parameter.numel() for parameter in network.parameters())
    sha256 = hashlib.sha256(data).hexdigest()
    return CheckpointSummary(info=info, parameters=parameters, path=file, sha256=sha256), network, weights


def _content(file: Path, data: bytes, source: str) -> tuple[CheckpointInfo | None, Any]:
    """Return the metadata, None in a foreign file, and the content; the first bytes decide the kind of file."""
    if file.suffix == _SUFFIX or data[8:9] == b"{":
        try:
            tensors = safetensors.torch.load(data)
        except Exception as error:  # the parser and the conversion to tensors raise different classes
            raise CheckpointError(f"{source} is damaged or not a safetensors file: {error}.") from error
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        text = (header.get("__metadata__") or {}).get(_METADATA_KEY)
        return None if text is None else CheckpointInfo.from_json(text, source), tensors
    if data.startswith((_ZIP, _PICKLE)):
        return None, unpickle(data, source)
    raise CheckpointError(f"'{file}' is not a checkpoint: it is neither a safetensors nor a PyTorch file.")


def _check_agreement(
    info: CheckpointInfo, source: str, architecture: str | None, num_classes: int | None, normalize: NormalizeSpec
) -> None:
    if architecture is not None and not info.external and find_model(architecture).name != info.architecture:
        raise CheckpointError(f"{source} is a {info.architecture}, not a {architecture}.")
    if num_classes is not None and num_classes != info.num_classes:
        raise CheckpointError(f"{source} has {info.num_classes} classes, not {num_classes}.")
    if normalize is not None and normalization(normalize, info.input_shape[0]) != info.normalize:
        raise CheckpointError(f"{source} was saved with the normalisation {info.normalize}, not {normalize}.")


def _rounded(values: Normalization | None) -> list[float] | None:
    """The values as the layer holds them."""
    return None if values is None else torch.tensor(values, dtype=torch.float32).flatten().tolist()


def fit(network: nn.Module, tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Check that the tensors are exactly those of the network, and copy them in its types.

    Batch counts may be missing, as in files older than PyTorch 0.4.1. ``source`` is for errors: ``'x.pth' as lenet``.
    """
    expected = network.state_dict()
    counts = {name: torch.zeros((), dtype=torch.long) for name in expected if name.endswith(".num_batches_tracked")}
    given = {**counts, **tensors}
    unexpected = [name for name in given if name not in expected]
    missing = [name for name in expected if name not in given]
    faults = [f"{what} {_listed(names)}" for what, names in (("unexpected", unexpected), ("missing", missing)) if names]
    if faults:
        raise CheckpointError(f"{source} has other tensors than the architecture: {'; '.join(faults)}.")
    return {name: _fit_one(name, given[name], wanted, source) for name, wanted in expected.items()}


def _fit_one(name: str, tensor: Tensor, wanted: Tensor, source: str) -> Tensor:
    if tensor.shape != wanted.shape:
        raise CheckpointError(
            f"{source}: tensor {name!r} has shape {tuple(tensor.shape)}, but {tuple(wanted.shape)} is needed."
        )
    if not is_plain(tensor) or tensor.is_floating_point() != wanted.is_floating_point():
        raise CheckpointError(f"{source}: tensor {name!r} of type {tensor.dtype} is not a plain {wanted.dtype} tensor.")
    copy = tensor.detach().to(wanted.dtype, copy=True, memory_format=torch.contiguous_format)
    if not bool(torch.isfinite(copy).all()):
        raise CheckpointError(f"{source}: tensor {name!r} holds values that are not finite.")
    return copy


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more
