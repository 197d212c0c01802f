"""Architectures, their normalisation and their checkpoints."""

from smoothcert.models.checkpoints import (
    Checkpoint,
    CheckpointSummary,
    describe,
    load_checkpoint,
    load_denoiser,
    load_model,
    save_checkpoint,
)
from smoothcert.models.info import CheckpointInfo
from smoothcert.models.normalize import PRESETS, Normalize, normalization
from smoothcert.models.registry import ALIASES, DENOISERS, MODELS, build, build_denoiser, find_model

__all__ = [
    "ALIASES",
    "DENOISERS",
    "MODELS",
    "PRESETS",
    "Checkpoint",
    "CheckpointInfo",
    "CheckpointSummary",
    "Normalize",
    "build",
    "build_denoiser",
    "describe",
    "find_model",
    "load_checkpoint",
    "load_denoiser",
    "load_model",
    "normalization",
    "save_checkpoint",
]
