"""Load denoisers: ours, and those that Salman et al. (2020) published."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch import Tensor, nn

from smoothcert.models.checkpoints import load_checkpoint
from smoothcert.models.files import read_bytes, resolve
from smoothcert.models.foreign import unpickle
from smoothcert.models.registry import DENOISERS
from smoothcert.models.weights import fit, skeleton
from smoothcert.types import CheckpointError

_PUBLISHED = {"cifar_dncnn": "dncnn", "imagenet_dncnn": "dncnn", "cifar_dncnn_wide": "dncnn-wide"}
"""What the published files call our architectures."""


def load_denoiser(path: str | os.PathLike[str]) -> nn.Module:
    """Load a denoiser of ours or of Salman et al. (2020) without running any code in the file.

    Args:
        path: A file; or a folder, as in ``load_checkpoint``.

    Returns:
        The denoiser in eval mode on the CPU.

    Raises:
        CheckpointError: The file is missing, damaged, unsafe, or no denoiser.
    """
    file = resolve(path)
    if file.suffix != ".safetensors":
        return _published(read_bytes(file), f"checkpoint '{file}'")
    checkpoint = load_checkpoint(file)
    if checkpoint.info.architecture not in DENOISERS:
        raise CheckpointError(f"checkpoint '{file}' is a {checkpoint.info.architecture}, which is no denoiser.")
    return checkpoint.model


def _published(data: bytes, source: str) -> nn.Module:
    """The denoiser in a published file: a dict with the architecture's name and its tensors."""
    content = unpickle(data, source)
    arch = content.get("arch") if isinstance(content, Mapping) else None
    state = content.get("state_dict") if isinstance(content, Mapping) else None
    if arch not in _PUBLISHED or not isinstance(state, Mapping):
        raise CheckpointError(f"{source} is no denoiser: it must hold a state_dict and an arch in {list(_PUBLISHED)}.")
    tensors = {str(name).removeprefix("module."): tensor for name, tensor in state.items()}
    first = tensors.get("dncnn.0.weight")
    if not all(isinstance(tensor, Tensor) for tensor in tensors.values()) or first is None or first.ndim != 4:
        raise CheckpointError(f"{source} has no weights of a DnCNN in its state_dict.")
    info = DENOISERS[_PUBLISHED[arch]]
    network = skeleton(info.name, info.num_classes, first.shape[1])
    network.load_state_dict(fit(network, tensors, f"{source} as {info.name}"), assign=True)
    return network.eval()
