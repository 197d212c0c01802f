"""How good a model in training is: votes on inputs kept out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smoothcert.classifiers.sealed import Sealed
from smoothcert.noise import Noise
from smoothcert.sampling.lanes import Source
from smoothcert.sampling.pool import Draw, Job, Pool, Steps
from smoothcert.sampling.seeds import PREDICTION
from smoothcert.sampling.statistics import TopClass
from smoothcert.stats.binomial import lower_bound

ALPHA = 0.001
_BATCH = {"cpu": 200, "cuda": 2000}


@dataclass(frozen=True)
class Judgement:
    """How a smoothed classifier does on inputs kept out.

    Attributes:
        accuracy: The share that most votes get right.
        certified: The share that is certified at the radius, from few votes: a fast and low estimate.
    """

    accuracy: float
    certified: float


def judge(model: nn.Module, x: Tensor, y: Tensor, noise: Noise, *, votes: int, radius: float, seed: int) -> Judgement:
    """Certify inputs in a hurry.

    Args:
        model: The classifier; left as it is.
        x: The inputs.
        y: Their labels.
        noise: The noise.
        votes: Noisy copies of each input.
        radius: The radius to certify.
        seed: The seed of the noise.

    Returns:
        The judgement.
    """
    threshold = float(noise.threshold(radius, dimension=x[0].numel()))
    right = certified = 0
    sealed = Sealed(model)
    with torch.inference_mode():
        num_classes = sealed(x[:2]).shape[1]
    source = Source(sealed.run, noise, num_classes, [TopClass()], _BATCH.get(x.device.type, 200))
    pool = Pool([source], seed)
    for job, counts in pool.run(_jobs(x, votes)):
        label = int(y[job.index])
        right += max(range(num_classes), key=counts.__getitem__) == label
        certified += float(lower_bound(counts[label], votes, ALPHA)) > threshold
    return Judgement(right / len(x), certified / len(x))


def _jobs(x: Tensor, votes: int) -> Iterator[Job[tuple[int, ...]]]:
    def steps() -> Steps[tuple[int, ...]]:
        (given,) = yield Draw(PREDICTION, votes)
        return given.counts

    return (Job(index, image, steps()) for index, image in enumerate(x))
