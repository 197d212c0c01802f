"""Architectures, their normalisation and their checkpoints."""

from smoothcert.models.checkpoints import (
    Checkpoint,
    CheckpointSummary,
    describe,
    load_checkpoint,
    save_checkpoint,
)
from smoothcert.models.denoisers import load_denoiser, open_denoiser
from smoothcert.models.info import CheckpointInfo
from smoothcert.models.loaded import LoadedModel
from smoothcert.models.loading import load_model, open_model
from smoothcert.models.normalize import PRESETS, Normalize, normalization
from smoothcert.models.quantize import quantize
from smoothcert.models.registry import (
    ALIASES,
    DENOISERS,
    DIFFUSION,
    MODELS,
    ModelInfo,
    build,
    build_denoiser,
    find_model,
)
from smoothcert.models.sources.diffusion import each_seed
from smoothcert.models.sources.factory import build_own
from smoothcert.models.sources.numpy_function import from_numpy
from smoothcert.specifiers import short_name

__all__ = [
    "ALIASES",
    "DENOISERS",
    "DIFFUSION",
    "MODELS",
    "PRESETS",
    "Checkpoint",
    "CheckpointInfo",
    "CheckpointSummary",
    "LoadedModel",
    "ModelInfo",
    "Normalize",
    "build",
    "build_denoiser",
    "build_own",
    "describe",
    "each_seed",
    "find_model",
    "from_numpy",
    "load_checkpoint",
    "load_denoiser",
    "load_model",
    "normalization",
    "open_denoiser",
    "open_model",
    "quantize",
    "save_checkpoint",
    "short_name",
]
