"""Noise with reproducible seeds, and the loop that counts votes under it."""

from smoothcert.sampling.lanes import Cascade, Classifier
from smoothcert.sampling.pool import Answer, Draw, Job, Pool, PoolUse, Steps
from smoothcert.sampling.seeds import BLOCK, ESTIMATION, PREDICTION, SELECTION
from smoothcert.sampling.statistics import Statistic, TopClass

__all__ = [
    "BLOCK",
    "ESTIMATION",
    "PREDICTION",
    "SELECTION",
    "Answer",
    "Cascade",
    "Classifier",
    "Draw",
    "Job",
    "Pool",
    "PoolUse",
    "Statistic",
    "Steps",
    "TopClass",
]
