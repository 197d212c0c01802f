"""Training classifiers for smoothing."""

from smoothcert.training.loop import TrainingSettings, train
from smoothcert.training.methods import METHODS

__all__ = ["METHODS", "TrainingSettings", "train"]
