"""Checkpoints of earlier systems, read without running any code of theirs.

What the files of each system hold (the layer in front of the network is written in none of them):

==================================  ==========================  ==================================================
system                              file                        in front of the network
==================================  ==========================  ==================================================
Cohen et al. (2019); ACES           arch, state_dict; ``1.``    the CIFAR-10 or ImageNet mean and std
(Horváth et al., 2022a); ensembles  or ``1.module.``
(Horváth et al., 2022b)
Consistency (Jeong and Shin,        arch, state_dict; ``1.``    as Cohen et al.; the CIFAR-100 mean and std for
2020), SmoothMix (2021), CAT-RS     or ``1.module.``            ``cifar100_resnet110``; nothing for ``lenet``
(2023)
SmoothAdv (Salman et al., 2019)     as Cohen et al.             as Cohen et al., but for some files the mean alone:
                                                                pass ``normalize="cifar10-center"``
MACER (Zhai et al., 2020)           net; no prefix, no arch     nothing
torchvision                         bare; no prefix, no arch    the ImageNet mean and std, as a transform
==================================  ==========================  ==================================================

So where no ``normalize`` is given and the file has no such buffers, a network in a ``Sequential`` and every ImageNet
network is taken to be normalised by its dataset's values, and every other network not at all.
"""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from smoothcert.files import unpacked_limit
from smoothcert.models.info import CheckpointInfo
from smoothcert.models.normalize import NormalizeSpec, normalization
from smoothcert.models.registry import DENOISERS, MODELS, find_model
from smoothcert.models.weights import is_plain, skeleton
from smoothcert.types import CheckpointError, UsageError

_STATE_KEYS = ("state_dict", "net")
_WRAPPERS = ("module", "_orig_mod")  # DataParallel and torch.compile
_MEANS = ("mean", "means", "mu")
_STDS = ("std", "stds", "sd", "sds", "sigma")


def unpickle(data: bytes, source: str) -> object:
    """The content of a file written by ``torch.save``, restricted to tensors and plain containers.

    Args:
        data: The bytes of the file.
        source: What the bytes were read from, for the error.

    Returns:
        The content.

    Raises:
        CheckpointError: The file is damaged, is of another kind, or asks for code to be run.
    """
    try:
        _refuse_bomb(data)
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        what = f"would run code ({code[1]})" if code else "is damaged or would run code"
        raise CheckpointError(
            f"{source} {what} when loaded and is refused; have its author save the state_dict alone."
        ) from error
    except Exception as error:  # damaged bytes fail in as many ways as there are bytes
        said = str(error).partition("\n")[0].partition(". ")[0]
        reason = said if isinstance(error, RuntimeError) and said else type(error).__name__
        raise CheckpointError(f"{source} is damaged or no PyTorch checkpoint: {reason}.") from error


def _refuse_bomb(data: bytes) -> None:
    """Refuse an archive that would unpack to far more than its size; ``torch.save`` itself does not compress."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > unpacked_limit(len(data)):
            raise RuntimeError(f"it would unpack to {size} bytes")


def interpret(
    content: object,
    source: str,
    *,
    architecture: str | None,
    num_classes: int | None,
    normalize: NormalizeSpec,
) -> tuple[CheckpointInfo, dict[str, Tensor]]:
    """Find the architecture, the classes, the normalisation and the network's tensors in a foreign file.

    Args:
        content: The content of the file: a state dict, or a dict that holds one.
        source: What the content was read from, for the error.
        architecture: The architecture, where the file names none or a wrong one.
        num_classes: The number of classes that the file must have.
        normalize: The normalisation; by default what the file holds, else what its system uses.

    Returns:
        The metadata, and the tensors by their name in the bare network.

    Raises:
        CheckpointError: The file holds no state dict, or names no known architecture, or contradicts ``num_classes``.
        UsageError: ``architecture`` or ``normalize`` is wrong.
    """
    state, arch, extra = _state_dict(content, source)
    tensors, front = _split(state, source)
    name = architecture or arch
    if name is None:
        raise CheckpointError(f"{source} names no architecture; pass architecture=, one of {', '.join(MODELS)}.")
    try:
        model = find_model(name)
    except UsageError as error:
        if architecture:
            raise
        raise CheckpointError(f"{source}: {error}") from error

    if model.name in DENOISERS:
        raise UsageError(f"{model.name} is a denoiser; load {source} with load_denoiser, or give it as --denoiser.")

    known = skeleton(name, model.num_classes, model.input_shape[0]).state_dict()
    first = next(key for key, tensor in known.items() if tensor.ndim == 4)
    last = [key for key, tensor in known.items() if tensor.ndim == 2][-1]
    channels = tensors[first].shape[1] if first in tensors and tensors[first].ndim == 4 else model.input_shape[0]
    classes = tensors[last].shape[0] if last in tensors and tensors[last].ndim == 2 else model.num_classes
    if num_classes is not None and num_classes != classes:
        raise CheckpointError(f"{source} has {classes} classes, not {num_classes}.")

    if normalize is not None:
        spec: NormalizeSpec = normalization(normalize, channels)
        origin = "argument"
    elif front:
        spec, origin = _front_values(front, source), "file"
    else:
        spec, origin = _assumed(model.name, classes, in_sequential=front is not None), "assumed"
    try:
        info = CheckpointInfo.of(
            name,
            num_classes=classes,
            in_channels=channels,
            normalize=spec,
            extra={**extra, "normalize_from": origin},
        )
    except UsageError as error:
        raise CheckpointError(f"{source}: {error}") from error
    return info, tensors


def _state_dict(content: object, source: str) -> tuple[dict[str, Tensor], str | None, dict[str, Any]]:
    """The state dict, the name of the architecture, and what else is worth keeping."""
    arch, extra, state = None, {}, content
    if isinstance(content, Mapping):
        key = next((key for key in _STATE_KEYS if isinstance(content.get(key), Mapping)), None)
        if key is not None:
            state = content[key]
            arch = content["arch"] if isinstance(content.get("arch"), str) else None
            extra = {name: content[name] for name in ("arch", "epoch") if isinstance(content.get(name), str | int)}
    if (
        not isinstance(state, Mapping)
        or not state
        or not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items())
    ):
        raise CheckpointError(f"{source} holds no state dict: a dict of tensors, or one under 'state_dict'.")
    for name, tensor in state.items():
        if not is_plain(tensor):
            raise CheckpointError(
                f"{source}: tensor {name!r} of type {tensor.dtype} is no plain tensor with all its values; save a "
                "dense copy."
            )
    return dict(state), arch, extra


def _split(state: Mapping[str, Tensor], source: str) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """The tensors of the network and of the layer in front of it; None for the latter outside a ``Sequential``."""
    tensors = _unwrapped(state, source)
    heads = {name.split(".")[0] for name in tensors}
    if "1" not in heads or not heads <= {"0", "1"}:
        return tensors, None
    front, network = (
        _unwrapped({name[2:]: tensor for name, tensor in tensors.items() if name.startswith(head)}, source)
        for head in ("0.", "1.")
    )
    return network, front


def _unwrapped(state: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The tensors without ``module.`` in front of their names."""
    result: dict[str, Tensor] = {}
    for name, tensor in state.items():
        parts = name.split(".")
        while parts[0] in _WRAPPERS and len(parts) > 1:
            parts = parts[1:]
        short = ".".join(parts)
        if short in result:
            raise CheckpointError(f"{source} holds {short!r} twice, with and without a prefix.")
        result[short] = tensor
    return result


def _front_values(front: Mapping[str, Tensor], source: str) -> tuple[list[float], list[float]]:
    means = [tensor for name, tensor in front.items() if name in _MEANS]
    stds = [tensor for name, tensor in front.items() if name in _STDS]
    if len(means) != 1 or len(means) + len(stds) != len(front):
        names = ", ".join(repr(name) for name in front)
        raise CheckpointError(f"{source} has {names} in front of the network, no mean and std; pass normalize=.")
    mean = means[0].flatten().double()
    std = stds[0].flatten().double() if stds else torch.ones_like(mean)
    return mean.tolist(), std.tolist()


def _assumed(architecture: str, classes: int, *, in_sequential: bool) -> str | None:
    if architecture in ("resnet18", "resnet50"):
        return "imagenet"
    if architecture.startswith("cifar-") and in_sequential:
        return "cifar100" if classes == 100 else "cifar10"
    return None
