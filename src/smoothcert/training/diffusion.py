"""Train a small diffusion model (Ho, Jain and Abbeel, 2020), which then denoises at any noise level."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.data import Dataset
from smoothcert.models import CheckpointInfo, load_checkpoint
from smoothcert.models.unet import MULTIPLE, save_pipeline, signal_shares
from smoothcert.noise import Gaussian, Noise
from smoothcert.training.attacks import column
from smoothcert.training.loop import LAST, make_fabric, run_training
from smoothcert.training.methods.base import Method, State, require
from smoothcert.training.settings import TrainingSettings
from smoothcert.training.sources import Source
from smoothcert.types import StrPath

if TYPE_CHECKING:
    from lightning_fabric import Fabric

DIFFUSION_SETTINGS: dict[str, str | float] = {
    "optimizer": "adamw",
    "schedule": "one-cycle",
    "rate": 0.002,
    "epochs": 50,
    "clip": 1.0,
    "ema": 0.995,
}
"""Settings of a diffusion model's training, which replace those of a recipe for classifiers."""


def train_diffusion(
    network: nn.Module,
    dataset: Dataset | tuple[Tensor, Tensor],
    *,
    settings: TrainingSettings | None = None,
    folder: StrPath | None = None,
    fabric: Fabric | None = None,
    progress: bool = True,
    tensorboard: bool = False,
) -> list[dict[str, float]]:
    """Train a diffusion model in place; continue the training in the folder if there is one.

    No noise level, labels or classifier are needed. When the training is complete, the folder holds a DDPM pipeline of
    ``diffusers`` (``unet`` and ``scheduler``), which :func:`smoothcert.models.load_denoiser` loads for a noise level.

    Args:
        network: ``build_denoiser("diffusion", in_channels=…)``, or any module that maps (x_t, t) to the noise in x_t;
            only the former can be saved.
        settings: Those of ``DIFFUSION_SETTINGS`` by default; no inputs are held out.

    Returns, raises and the other arguments are those of :func:`smoothcert.training.train`.
    """
    settings = settings or TrainingSettings(**DIFFUSION_SETTINGS)
    settings = settings.model_copy(update={"holdout": 0, "data_dependent_sigma": None})
    fabric = fabric or make_fabric(settings.precision)
    channels, *size = dataset[0].shape[1:] if isinstance(dataset, tuple) else dataset.shape
    require(
        len(size) == 2 and all(side % MULTIPLE == 0 for side in size),
        f"a diffusion model needs images whose height and width are multiples of {MULTIPLE}, got {size}.",
    )
    source = Source(dataset, fabric.device, crop=settings.augment == "imagenet")
    info = CheckpointInfo.of("diffusion", in_channels=channels, extra={"kind": "diffusion"})
    history = run_training(
        network,
        source,
        Gaussian(1.0),
        NoisePrediction(),
        settings,
        folder=folder,
        info=info,
        fabric=fabric,
        progress=progress,
        tensorboard=tensorboard,
    )
    if folder is not None and fabric.is_global_zero:
        save_pipeline(Path(folder), load_checkpoint(Path(folder) / LAST).model, (size[0], size[1]))
    return history


@dataclass(frozen=True, kw_only=True)
class NoisePrediction(Method):
    """E‖ε − ε_θ(√ᾱ_t x + √(1 − ᾱ_t) ε, t)‖² per value, with t uniform and x in [−1, 1] (Ho et al., 2020, Eq. 14).

    It is not in ``METHODS``, because it does not train a classifier.
    """

    name: ClassVar[str] = "diffusion"

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        shares = signal_shares().to(x)
        steps = (state.uniform(x)[0] * len(shares)).long()
        unit = state.noisy(Gaussian(1.0), x.new_zeros(x.shape))[0]
        share = column(shares[steps], x)
        predicted = model(share.sqrt() * (2 * x - 1) + (1 - share).sqrt() * unit, steps)
        return F.mse_loss(predicted if isinstance(predicted, Tensor) else predicted.sample, unit)
