"""Evaluate a model during training by its votes on held-out inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from smoothcert.certify import Smoothed
from smoothcert.evaluate import count_votes
from smoothcert.noise import Noise
from smoothcert.sampling.runtimes import unprepared
from smoothcert.stats.binomial import lower_bound

ALPHA = 0.001
_BATCH = {"cpu": 200, "cuda": 2000}


@dataclass(frozen=True)
class Judgement:
    """The quality of a smoothed classifier on held-out inputs.

    Attributes:
        accuracy: The share that most votes classify correctly.
        certified: The share certified at the radius from few votes, an estimate that tends to be low.
    """

    accuracy: float
    certified: float


def judge(model: nn.Module, x: Tensor, y: Tensor, noise: Noise, *, votes: int, radius: float, seed: int) -> Judgement:
    """Estimate accuracy and certified accuracy from few samples.

    Args:
        model: The classifier, which does not change.
        x: The inputs.
        y: Their labels.
        noise: The noise.
        votes: Noisy copies of each input.
        radius: The radius to certify.
        seed: The seed of the noise.
    """
    threshold = float(noise.threshold(radius, dimension=x[0].numel()))
    labels = y.tolist()
    smoothed = Smoothed(model, noise, input_range=None, runtime=unprepared(model, _BATCH.get(x.device.type, 200)))
    counts = count_votes(smoothed, list(zip(x, labels, strict=True)), votes, seed=seed, progress=False)
    bounds = lower_bound(counts[np.arange(len(labels)), labels], votes, ALPHA)
    return Judgement(float(np.mean(counts.argmax(axis=1) == labels)), float(np.mean(bounds > threshold)))
