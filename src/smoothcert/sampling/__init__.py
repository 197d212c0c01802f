"""Noise with reproducible seeds, and the loop that counts votes under it."""

from smoothcert.classifiers.copying import Forward as Classifier
from smoothcert.sampling.batches import Cascade, Source
from smoothcert.sampling.jobs import Answer, Draw, Failure, Job, Queue, Steps
from smoothcert.sampling.pool import Pool
from smoothcert.sampling.seeds import BLOCK, ESTIMATION, PREDICTION, RECERTIFICATION, SELECTION
from smoothcert.sampling.statistics import Entropy, FirstShare, Statistic, TopClass

__all__ = [
    "BLOCK",
    "ESTIMATION",
    "PREDICTION",
    "RECERTIFICATION",
    "SELECTION",
    "Answer",
    "Cascade",
    "Classifier",
    "Draw",
    "Entropy",
    "Failure",
    "FirstShare",
    "Job",
    "Pool",
    "Queue",
    "Source",
    "Statistic",
    "Steps",
    "TopClass",
]
