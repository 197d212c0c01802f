"""Load denoisers: ours, and those that Salman et al. (2020) published."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch import Tensor, nn

from smoothcert.models.checkpoints import find_checkpoint, load_checkpoint, read_checkpoint
from smoothcert.models.foreign import unpickle
from smoothcert.models.registry import DENOISERS
from smoothcert.models.weights import fit, skeleton
from smoothcert.types import CheckpointError

_PUBLISHED = {"cifar_dncnn": "dncnn", "imagenet_dncnn": "dncnn", "cifar_dncnn_wide": "dncnn-wide"}
"""Architectures in the published files, and our names of them."""


def load_denoiser(path: str | os.PathLike[str]) -> nn.Module:
    """Load a denoiser in eval mode on the CPU, without running any code in the file.

    Args:
        path: A file of ours or of Salman et al. (2020); or a folder, as in ``load_checkpoint``.

    Raises:
        CheckpointError: The file is missing, damaged, unsafe, or not a denoiser.
    """
    file = find_checkpoint(path)
    source = f"checkpoint '{file}'"
    if file.suffix == ".safetensors":
        checkpoint = load_checkpoint(file)
        if checkpoint.info.architecture not in DENOISERS:
            raise CheckpointError(f"{source} is a {checkpoint.info.architecture}, which is not a denoiser.")
        return checkpoint.model
    content = unpickle(read_checkpoint(file), source)
    arch, state = (content.get("arch"), content.get("state_dict")) if isinstance(content, Mapping) else (None, None)
    if not isinstance(arch, str) or arch not in _PUBLISHED or not isinstance(state, Mapping):
        raise CheckpointError(f"{source} is not a denoiser: it must hold a state_dict and an arch in {[*_PUBLISHED]}.")
    tensors = {str(name).removeprefix("module."): tensor for name, tensor in state.items()}
    first = tensors.get("dncnn.0.weight")
    if not all(isinstance(tensor, Tensor) for tensor in tensors.values()) or first is None or first.ndim != 4:
        raise CheckpointError(f"{source} has no weights of a DnCNN in its state_dict.")
    info = DENOISERS[_PUBLISHED[arch]]
    network = skeleton(info.name, info.num_classes, first.shape[1])
    network.load_state_dict(fit(network, tensors, f"{source} as {info.name}"), assign=True)
    return network.eval()
