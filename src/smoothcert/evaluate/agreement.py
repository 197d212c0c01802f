"""Compare a changed model with the original on inputs and on noisy copies of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smoothcert.classifiers.copying import Forward
from smoothcert.classifiers.sealed import Sealed
from smoothcert.data.inputs import Indexable, labelled_input
from smoothcert.noise import Noise
from smoothcert.sampling.member_logits import member_logits
from smoothcert.sampling.seeds import fresh_seed
from smoothcert.tensors import as_tensor


@dataclass(frozen=True)
class Agreement:
    """Shares of correct answers of two models, in their order, and the share of noisy copies with the same answer."""

    clean: tuple[float, float]
    noisy: tuple[float, float]
    same: float


def compare_models(
    original: Forward, changed: Forward, dataset: Indexable, indices: Sequence[int], noise: Noise, *, copies: int = 20
) -> Agreement:
    """Classify inputs and the same noisy copies of them by two models.

    Raises:
        UsageError: If a model is not a fixed function of one row.
    """
    members, seed = [Sealed(original), Sealed(changed)], fresh_seed()
    clean, noisy, same = np.zeros(2), np.zeros(2), 0.0
    for index in indices:
        x, label = labelled_input(dataset, index)
        logits = member_logits(members, as_tensor(x), noise, n=copies, seed=seed, index=index)
        votes = logits.noisy.argmax(axis=2)
        clean += logits.clean.argmax(axis=1) == label
        noisy += (votes == label).mean(axis=1)
        same += float((votes[0] == votes[1]).mean())
    count = len(indices)
    shares = [(float(first) / count, float(second) / count) for first, second in (clean, noisy)]
    return Agreement(clean=shares[0], noisy=shares[1], same=same / count)
