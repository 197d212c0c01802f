"""Intervals and tests over a sample of test inputs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from smoothcert.store.outcomes import Outcomes

RESAMPLES = 4_000
_BATCH = 4_000_000  # numbers in memory while resampling


def credited_radius(outcomes: Outcomes) -> NDArray[np.float64]:
    """Return the radius of every correct answer and 0 for the others; the mean is the ACR."""
    return np.where(outcomes.correct, outcomes.radius, 0.0)


@lru_cache(maxsize=100_000)
def wilson_interval(successes: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Compute Wilson's score interval for a share, such as a certified accuracy over test inputs.

    Example:
        >>> low, high = wilson_interval(326, 500)
        >>> print(f"{low:.3f} {high:.3f}")
        0.609 0.692
    """
    found = scipy.stats.binomtest(successes, total).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)


def acr_interval(outcomes: Outcomes) -> tuple[float, float]:
    """Compute the 95 % bootstrap interval of the average certified radius over the test sample."""
    return bootstrap_interval(credited_radius(outcomes))


def bootstrap_interval(values: ArrayLike, *, confidence: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of a mean over inputs, or of a mean of paired differences."""
    sample = np.asarray(values, dtype=np.float64)
    low, high = sample.min(), sample.max()
    if len(sample) > 1:
        low, high = scipy.stats.bootstrap(
            (sample,),
            np.mean,
            n_resamples=RESAMPLES,
            batch=max(1, _BATCH // len(sample)),
            confidence_level=confidence,
            method="percentile",
            random_state=np.random.default_rng(seed),
        ).confidence_interval
    # Sums of equal numbers differ in their last digits by the order of addition; an interval must not show that.
    return round(float(low), 12), round(float(high), 12)


def sign_flip_p_value(differences: ArrayLike, *, seed: int = 0) -> float:
    """Compute the two-sided p-value that paired differences have a mean of 0, by flipping their signs.

    It is valid for any number of inputs if the two runs compared are exchangeable.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2:
        return 1.0
    found = scipy.stats.permutation_test(
        (values,),
        lambda sample, axis: np.abs(sample.sum(axis=axis)),
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, _BATCH // len(values)),
        alternative="greater",
        random_state=np.random.default_rng(seed),
    )
    return float(found.pvalue)
