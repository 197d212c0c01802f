"""Training classifiers for smoothing."""

from smoothcert.training.denoising import OBJECTIVES, train_denoiser
from smoothcert.training.loop import make_fabric, train
from smoothcert.training.methods import METHODS, Method, Passes, State
from smoothcert.training.settings import Recipe, TrainingSettings

__all__ = [
    "METHODS",
    "OBJECTIVES",
    "Method",
    "Passes",
    "Recipe",
    "State",
    "TrainingSettings",
    "make_fabric",
    "train",
    "train_denoiser",
]
