"""Noise with reproducible seeds, and the loop that counts votes under it."""

from smoothcert.sampling.seeds import BLOCK, ESTIMATION, PREDICTION, SELECTION
from smoothcert.sampling.statistics import Statistic, TopClass
from smoothcert.sampling.votes import Classifier, Draw, Sampler

__all__ = ["BLOCK", "ESTIMATION", "PREDICTION", "SELECTION", "Classifier", "Draw", "Sampler", "Statistic", "TopClass"]
