"""Evaluate a model during training by its votes on held-out inputs."""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from smoothcert.certify import Smoothed
from smoothcert.evaluate import count_votes
from smoothcert.noise import Noise
from smoothcert.sampling.runtimes import unprepared
from smoothcert.stats.binomial import lower_bound

ALPHA = 0.001
_BATCH = {"cpu": 200, "cuda": 2000}


def judge(
    model: nn.Module, x: Tensor, y: Tensor, noise: Noise, *, votes: int, radius: float, seed: int
) -> dict[str, float]:
    """Estimate accuracy and certified accuracy at a radius from few votes, the latter usually too low."""
    threshold = float(noise.threshold(radius, dimension=x[0].numel()))
    labels = y.tolist()
    smoothed = Smoothed(model, noise, input_range=None, runtime=unprepared(model, _BATCH.get(x.device.type, 200)))
    counts = count_votes(smoothed, list(zip(x, labels, strict=True)), votes, seed=seed, progress=False)
    bounds = lower_bound(counts[np.arange(len(labels)), labels], votes, ALPHA)
    accuracy, certified = np.mean(counts.argmax(axis=1) == labels), np.mean(bounds > threshold)
    return {"accuracy": float(accuracy), "certified": float(certified)}
