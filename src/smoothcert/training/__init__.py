"""Training classifiers for smoothing."""

from smoothcert.training.denoising import OBJECTIVES, finetune, train_denoiser
from smoothcert.training.diffusion import DIFFUSION_SETTINGS, train_diffusion
from smoothcert.training.loop import make_fabric, train
from smoothcert.training.methods import METHODS, Method, Passes, State
from smoothcert.training.settings import Recipe, TrainingSettings

__all__ = [
    "DIFFUSION_SETTINGS",
    "METHODS",
    "OBJECTIVES",
    "Method",
    "Passes",
    "Recipe",
    "State",
    "TrainingSettings",
    "finetune",
    "make_fabric",
    "train",
    "train_denoiser",
    "train_diffusion",
]
