"""A small UNet for training a diffusion model, and the folder of ``diffusers`` that keeps it."""

from __future__ import annotations

import importlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from smoothcert.types import UsageError

MULTIPLE = 2
"""The sides of images must be multiples of this, because the UNet halves them once."""

PIPELINE = ("unet", "scheduler")
"""The folders of a pipeline."""


def import_diffusers() -> Any:
    """Import ``diffusers``, or raise a UsageError."""
    try:
        return importlib.import_module("diffusers")
    except ImportError as error:
        raise UsageError('diffusion models need diffusers; pip install "smoothcert[diffusion]".') from error


def unet(num_classes: int, channels: int) -> nn.Module:
    """Build a UNet with new weights that maps (x_t, t) to the noise in x_t; it does not use the number of classes."""
    network: nn.Module = import_diffusers().UNet2DModel(
        in_channels=channels,
        out_channels=channels,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D",) * 2,
        up_block_types=("UpBlock2D",) * 2,
        layers_per_block=1,
        norm_num_groups=8,
    )
    return network


@cache
def signal_shares() -> Tensor:
    """Return ᾱ_t of the 1000 steps of training, along a cosine (Nichol and Dhariwal, 2021)."""
    shares: Tensor = _scheduler().alphas_cumprod
    return shares


def save_pipeline(folder: Path, network: Any, size: tuple[int, int]) -> None:
    """Write a trained UNet as a DDPM pipeline of ``diffusers``, for images of a height and width."""
    network.register_to_config(sample_size=size[0] if size[0] == size[1] else size)
    for name, part in zip(PIPELINE, (network, _scheduler()), strict=True):
        part.save_pretrained(folder / name)
    parts = {name: ["diffusers", kind] for name, kind in zip(PIPELINE, ("UNet2DModel", "DDPMScheduler"), strict=True)}
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "DDPMPipeline", **parts}))


def _scheduler() -> Any:
    return import_diffusers().DDPMScheduler(num_train_timesteps=1000, beta_schedule="squaredcos_cap_v2")
