"""Load denoisers: ours, those that others published, and those that the user's own code builds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from smoothcert.models.checkpoints import find_checkpoint, fit, load_checkpoint, read_weights
from smoothcert.models.conv_denoisers import conv_denoiser
from smoothcert.models.loaded import LoadedModel
from smoothcert.models.registry import DENOISERS, DIFFUSION, skeleton
from smoothcert.models.sources.diffusion import is_diffusion, load_diffusion
from smoothcert.models.sources.factory import load_factory
from smoothcert.specifiers import Specifier, is_factory
from smoothcert.types import CheckpointError, StrPath, UsageError


def load_denoiser(specifier: StrPath, *, level: float | None = None) -> nn.Module:
    """Load a denoiser in evaluation mode, on the CPU; arguments and errors are those of :func:`open_denoiser`."""
    return open_denoiser(specifier, level=level).model


def open_denoiser(specifier: StrPath | Specifier, *, level: float | None = None) -> LoadedModel:
    """Load a denoiser, which maps images in [0, 1] with noise to images.

    Args:
        specifier: A checkpoint of ours, of Salman et al. (2020), or of a network in ``models.conv_denoisers``; a folder
            of ``diffusers`` (options ``steps`` and ``seed``); ``package.module:factory``; each with options after it as
            ``,name=value``.
        level: The noise level for a denoiser that is told it, unless the specifier has the option ``level``.

    Raises:
        CheckpointError: A file is missing, damaged, unsafe, or not a denoiser.
        UsageError: The noise level is needed and unknown, or an option is invalid.
    """
    given = specifier if isinstance(specifier, Specifier) else Specifier.parse(os.fspath(specifier))
    options = dict(given.options)
    path = Path(given.text).expanduser()
    if is_diffusion(path):
        return load_diffusion(path, {"level": level, **options})
    if not path.exists() and is_factory(given.text):
        return load_factory(given.text, options)
    level = options.pop("level", level)
    if options:
        raise UsageError(f"a denoiser in a file has no option {', '.join(options)}; it takes level.")
    file = find_checkpoint(path)
    if file.suffix == ".safetensors":
        checkpoint = load_checkpoint(file)
        if checkpoint.info.architecture in DIFFUSION:
            raise CheckpointError(
                f"'{file}' is of the training of a diffusion model; name its folder when the training is complete."
            )
        if checkpoint.info.architecture not in DENOISERS:
            raise CheckpointError(f"'{file}' is a {checkpoint.info.architecture}, which is not a denoiser.")
        return LoadedModel.of_checkpoint(checkpoint)
    tensors, sha256 = read_weights(file)
    source = f"checkpoint '{file}'"
    network = _published(tensors, source) or conv_denoiser(tensors, source, level=level)
    if network is None:
        raise CheckpointError(f"{source} is not a known denoiser; name its network as package.module:factory.")
    recorded: dict[str, Any] = {"checkpoint": str(file), "sha256": sha256}
    recorded |= {"level": level} if hasattr(network, "level") else {}
    return LoadedModel(model=network, name=file.stem, source=recorded)


def _published(tensors: Mapping[str, Any], source: str) -> nn.Module | None:
    """Rebuild a DnCNN of Salman et al. (2020), whose width tells which of ours it is."""
    first = tensors.get("dncnn.0.weight")
    if first is None or first.ndim != 4:
        return None
    name = next((name for name in ("dncnn", "dncnn-wide") if _width(name) == len(first)), "dncnn")
    network = skeleton(name, DENOISERS[name].num_classes, first.shape[1])
    network.load_state_dict(fit(network, tensors, f"{source} as {name}"), assign=True)
    return network.eval()


def _width(name: str) -> int:
    return len(skeleton(name, 2, 3).state_dict()["dncnn.0.weight"])
