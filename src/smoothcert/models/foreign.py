"""Checkpoints of earlier systems, read without running any code in them.

The content of the files of each system (none of them holds the layer in front of the network):

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
Idelbayev (2018), CIFAR ResNets     state_dict; ``module.``,    the ImageNet mean and std, as a transform
                                    ``linear``; no arch
==================================  ==========================  ==================================================

So without ``normalize`` and without such buffers in the file, a network in a ``Sequential`` and every ImageNet network
is assumed to be normalised by the values of its dataset, and every other network not at all.
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
from smoothcert.models.registry import DENOISERS, MODELS, find_model, skeleton
from smoothcert.types import CheckpointError, UsageError

_STATE_KEYS = ("state_dict", "net")
_WRAPPERS = re.compile(r"^((module|_orig_mod)\.)+")  # DataParallel and torch.compile
_MEANS = ("mean", "means", "mu")
_STDS = ("std", "stds", "sd", "sds", "sigma")


def unpickle(data: bytes, source: str) -> object:
    """Read bytes written by ``torch.save``, restricted to tensors and plain containers; refuse those with code."""
    try:
        if zipfile.is_zipfile(io.BytesIO(data)):  # torch.save does not compress, so a large one is a zip bomb
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > unpacked_limit(len(data)):
                raise RuntimeError(f"it would unpack to {size} bytes")
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        what = f"would run code ({code[1]})" if code else "is damaged or would run code"
        raise CheckpointError(
            f"{source} {what} when loaded and is refused; have its author save the state_dict alone."
        ) from error
    except Exception as error:  # damaged bytes raise many classes
        said = str(error).partition("\n")[0].partition(". ")[0]
        reason = said if isinstance(error, RuntimeError) and said else type(error).__name__
        raise CheckpointError(f"{source} is damaged or not a PyTorch checkpoint: {reason}.") from error


def interpret(
    content: object, source: str, *, architecture: str | None, num_classes: int | None, normalize: NormalizeSpec
) -> tuple[CheckpointInfo, dict[str, Tensor]]:
    """Find the metadata and the tensors of the bare network in a foreign file.

    By default, the architecture is the one that the file names, and the normalisation that of the file, else that of
    its system. A file that contradicts ``num_classes`` is refused.
    """
    state, arch, extra = _state_dict(content, source)
    tensors, front = _split(state, source)
    name = architecture or arch or _recognised(tensors)
    if name is None:
        raise CheckpointError(
            f"{source} names no architecture; pass architecture=, one of {', '.join(MODELS)}, or your own as "
            "package.module:factory."
        )
    if name.startswith("padded-"):
        tensors = {re.sub("^linear", "fc", key): tensor for key, tensor in tensors.items()}
    try:
        model = find_model(name)
    except UsageError as error:
        if architecture:
            raise
        raise CheckpointError(f"{source}: {error}") from error
    if model.name in DENOISERS:
        raise UsageError(f"{model.name} is a denoiser; load {source} with load_denoiser, or pass it as --denoiser.")
    known = skeleton(name, model.num_classes, model.input_shape[0]).state_dict()
    first = next(key for key, tensor in known.items() if tensor.ndim == 4)
    last = [key for key, tensor in known.items() if tensor.ndim == 2][-1]
    channels = tensors[first].shape[1] if first in tensors and tensors[first].ndim == 4 else model.input_shape[0]
    classes = tensors[last].shape[0] if last in tensors and tensors[last].ndim == 2 else model.num_classes
    if num_classes is not None and num_classes != classes:
        raise CheckpointError(f"{source} has {classes} classes, not {num_classes}.")
    spec: NormalizeSpec
    if normalize is not None:
        spec, origin = normalization(normalize, channels), "argument"
    elif front:
        spec, origin = _front_values(front, source), "file"
    else:
        spec, origin = _assumed(model.name, classes, in_sequential=front is not None), "assumed"
    try:
        extra["normalize_from"] = origin
        info = CheckpointInfo.of(name, num_classes=classes, in_channels=channels, normalize=spec, extra=extra)
    except UsageError as error:
        raise CheckpointError(f"{source}: {error}") from error
    return info, tensors


def state_dict(content: object, source: str, entry: int | None = None) -> dict[str, Tensor]:
    """Return the tensors in the content of a file by name, without the prefixes of ``DataParallel`` and the like.

    Args:
        entry: The number of the state dict, in a file with a list of several.

    Raises:
        CheckpointError: It holds no state dict, or several and none is chosen.
    """
    return _unwrapped(_state_dict(content, source, entry)[0], source)


def _state_dict(
    content: object, source: str, entry: int | None = None
) -> tuple[dict[str, Tensor], str | None, dict[str, Any]]:
    """Return the state dict, the name of the architecture, and other metadata."""
    arch, extra, state = None, {}, content
    if isinstance(content, Mapping):
        key = next((key for key in _STATE_KEYS if isinstance(content.get(key), Mapping | list)), None)
        if key is not None:
            state = _entry(content[key], source, entry)
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
                f"{source}: tensor {name!r} of type {tensor.dtype} is not a plain tensor with all its values; save a "
                "dense copy."
            )
    return dict(state), arch, extra


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is dense, on the CPU, and stores all its values; an expanded one can claim any size."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _entry(held: object, source: str, entry: int | None) -> object:
    """Take a state dict out of a list; the files of Wong et al. (2018) hold one, or those of a cascade."""
    if not isinstance(held, list) or not all(isinstance(each, Mapping) for each in held):
        return held
    if entry is None and len(held) == 1:
        return held[0]
    if not isinstance(entry, int) or not 0 <= entry < len(held):
        raise CheckpointError(
            f"{source} holds {len(held)} state dicts; choose one by its number, as in package.module:factory,"
            "weights=FILE,entry=0."
        )
    return held[entry]


def _split(state: Mapping[str, Tensor], source: str) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """Separate the tensors of the network and of the layer in front of it, which is None outside a ``Sequential``."""
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
    """Remove ``module.`` and the like from the start of names."""
    result: dict[str, Tensor] = {}
    for name, tensor in state.items():
        short = _WRAPPERS.sub("", name)
        if short in result:
            raise CheckpointError(f"{source} holds {short!r} twice, with and without a prefix.")
        result[short] = tensor
    return result


def _front_values(front: Mapping[str, Tensor], source: str) -> tuple[list[float], list[float]]:
    means = [tensor for name, tensor in front.items() if name in _MEANS]
    stds = [tensor for name, tensor in front.items() if name in _STDS]
    if len(means) != 1 or len(stds) > 1 or 1 + len(stds) != len(front):
        names = ", ".join(repr(name) for name in front)
        raise CheckpointError(f"{source} has {names} in front of the network, not a mean and std; pass normalize=.")
    mean = means[0].flatten().double()
    std = stds[0].flatten().double() if stds else torch.ones_like(mean)
    return mean.tolist(), std.tolist()


def _recognised(tensors: Mapping[str, Tensor]) -> str | None:
    """Recognise a CIFAR ResNet with shortcuts without parameters by its tensors."""
    blocks = {name.rpartition(".conv1")[0] for name in tensors if re.fullmatch(r"layer[123]\.\d+\.conv1\.weight", name)}
    name = f"padded-resnet{2 * len(blocks) + 2}"
    return name if "linear.weight" in tensors and name in MODELS else None


def _assumed(architecture: str, classes: int, *, in_sequential: bool) -> str | None:
    if architecture in ("resnet18", "resnet50") or architecture.startswith("padded-"):
        return "imagenet"
    if architecture.startswith("cifar-") and in_sequential:
        return "cifar100" if classes == 100 else "cifar10"
    return None
