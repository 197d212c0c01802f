"""Diffusion models as denoisers in one step (Carlini, Tramèr, Dvijotham, Rice, Sun and Kolter, ICLR 2023)."""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.files import parse_json
from smoothcert.models.loaded import LoadedModel
from smoothcert.types import CheckpointError, UsageError


def timestep(alphas: Tensor, level: float) -> int:
    """Return the step t whose noise is nearest to a level: (1 − ᾱ_t)/ᾱ_t = σ², for images in [−1, 1] (2σ)².

    Args:
        alphas: ᾱ_t for each step t, decreasing.
        level: The standard deviation σ of the noise, for images in [0, 1].

    Raises:
        UsageError: The level is beyond the last step.
    """
    levels = ((1 - alphas.double()) / alphas.double()).sqrt()
    if 2 * level > float(levels[-1]):
        most = float(levels[-1]) / 2
        raise UsageError(f"the diffusion model knows noise up to a standard deviation of {most:.3g}, not {level:g}.")
    return int((levels - 2 * level).abs().argmin())


class DiffusionDenoiser(nn.Module):
    """Predict the clean image from x_t = √ᾱ_t (x + δ) in one step, where t has the noise level of δ.

    Args:
        network: Maps (x_t, t) to the noise, the image or the velocity, for images in [−1, 1].
        alphas: ᾱ_t for each step t.
        level: The standard deviation of the noise, for images in [0, 1].
        prediction: ``"epsilon"``, ``"sample"`` or ``"v_prediction"``.
    """

    def __init__(self, network: nn.Module, alphas: Tensor, level: float, prediction: str = "epsilon") -> None:
        super().__init__()
        if prediction not in ("epsilon", "sample", "v_prediction"):
            raise UsageError(f"prediction must be epsilon, sample or v_prediction, not {prediction!r}.")
        self.network, self.level, self.prediction = network, level, prediction
        self.step = timestep(alphas, level)
        self.alpha = float(alphas[self.step])

    def forward(self, x: Tensor) -> Tensor:
        signal, noise = math.sqrt(self.alpha), math.sqrt(1 - self.alpha)
        noisy = signal * (2 * x - 1)
        steps = torch.full((len(x),), self.step, device=x.device)
        predicted = self.network(noisy, steps)
        predicted = predicted if isinstance(predicted, Tensor) else predicted.sample
        if self.prediction == "epsilon":
            predicted = (noisy - noise * predicted) / signal
        elif self.prediction == "v_prediction":
            predicted = signal * noisy - noise * predicted
        denoised: Tensor = (predicted.clamp(-1, 1) + 1) / 2
        return denoised


def is_diffusion(path: Path) -> bool:
    """Return whether a folder holds a UNet of ``diffusers``, alone or in a pipeline."""
    return any(_class_name(folder) == "UNet2DModel" for folder in (path, path / "unet"))


def load_diffusion(path: Path, options: Mapping[str, Any]) -> LoadedModel:
    """Load a folder of ``diffusers``: a pipeline with ``unet`` and ``scheduler``, or a UNet alone.

    Args:
        path: The folder.
        options: ``level``, the standard deviation of the noise for images in [0, 1].

    Raises:
        UsageError: The level is missing or beyond the last step, or ``diffusers`` is not installed.
        CheckpointError: The folder is damaged.
    """
    unknown = set(options) - {"level"}
    if unknown:
        raise UsageError(f"a diffusion model has no option {', '.join(sorted(unknown))}; it takes level.")
    level = options.get("level")
    if level is None:
        raise UsageError(
            f"'{path}' is a diffusion model, which is told the noise level; give it, as in {path},level=0.25."
        )
    try:
        diffusers = importlib.import_module("diffusers")
    except ImportError as error:
        raise UsageError('diffusion models need diffusers; pip install "smoothcert[diffusion]".') from error
    folder = path if _class_name(path) == "UNet2DModel" else path / "unet"
    try:
        network = diffusers.UNet2DModel.from_pretrained(folder, use_safetensors=True, local_files_only=True)
        schedule = path / "scheduler"
        scheduler = (
            diffusers.DDPMScheduler.from_pretrained(schedule) if schedule.is_dir() else diffusers.DDPMScheduler()
        )
    except Exception as error:  # the configuration and the weights fail in many ways
        raise CheckpointError(f"'{path}' cannot be loaded as a diffusion model: {error}") from error
    kind = scheduler.config.prediction_type
    model = DiffusionDenoiser(network.eval(), scheduler.alphas_cumprod, float(level), kind)
    files = {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted([*folder.glob("*.safetensors"), *path.rglob("*.json")])
    }
    source = {"diffusion": str(path), "level": level, "step": model.step, "files": files}
    return LoadedModel(model=model.eval(), name=path.name, source=source)


def _class_name(folder: Path) -> Any:
    try:
        config = parse_json((folder / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return config.get("_class_name") if isinstance(config, dict) else None
