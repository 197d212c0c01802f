"""Certification in stages of growing size, each on fresh samples (CertifyAdp; Horváth et al., 2022, Algorithm 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy

from smoothcert.stats.binomial import (
    MAX_SAMPLES,
    FloatArray,
    IntArray,
    lower_bound,
    require,
    require_levels,
    upper_bound,
)
from smoothcert.stats.sequential import first_count
from smoothcert.types import UsageError


@dataclass(frozen=True, eq=False)
class StageBoundaries:
    """The counts that decide each stage; each stage counts only its own votes."""

    threshold: float
    stages: IntArray  # samples of each stage
    certify: IntArray  # the smallest count that certifies, n + 1 where none does
    abort: IntArray  # the largest count that aborts, −1 where none does


@dataclass(frozen=True, eq=False)
class StagedCharacteristics:
    """The probabilities to certify in, abort in and be undecided after each stage, and the mean number of samples."""

    certify: FloatArray
    abort: FloatArray
    go_on: FloatArray
    expected_samples: float


def stage_boundaries(threshold: float, stages: Sequence[int], alpha: float, beta: float) -> StageBoundaries:
    """Return the counts that certify or abort in each stage.

    A stage certifies where the lower bound at alpha/s exceeds the threshold and aborts where the upper bound at
    beta/(s − 1) lies below it; the last stage never aborts.

    Args:
        threshold: The probability to exceed, in [½, 1); Φ(r/σ) for Gaussian noise.
        stages: Strictly increasing numbers of samples.
        alpha: Probability of a false certificate.
        beta: Probability to abort although the threshold is exceeded.

    Example:
        >>> stage_boundaries(0.8413447460685429, (1_000, 10_000, 125_000), 0.001, 0.0001).certify.tolist()
        [880, 8538, 105607]
    """
    _check_threshold(threshold)
    require_levels(alpha=alpha, beta=beta)
    if not stages or stages[0] < 1 or any(m >= n for m, n in pairwise(stages)):
        raise UsageError(f"stages must be positive and strictly increasing, got {list(stages)}.")
    n, s = np.array(stages, dtype=np.int64), len(stages)
    certify, abort = first_count(n, lambda k, n: lower_bound(k, n, alpha / s) > threshold), np.full_like(n, -1)
    if s > 1:
        abort[:-1] = first_count(n[:-1], lambda k, n: upper_bound(k, n, beta / (s - 1)) >= threshold) - 1
    return StageBoundaries(threshold, n, certify, abort)


def staged_characteristics(boundaries: StageBoundaries, p: float) -> StagedCharacteristics:
    """Return the probabilities of the outcomes when the true probability is ``p``; the stages are independent."""
    require(0.0 <= p <= 1.0, p, "p must lie between 0 and 1")
    certify = scipy.stats.binom.sf(boundaries.certify - 1, boundaries.stages, p)
    abort = scipy.stats.binom.cdf(boundaries.abort, boundaries.stages, p)
    go_on = np.cumprod(np.maximum(1.0 - certify - abort, 0.0))
    reach = np.concatenate(([1.0], go_on[:-1]))
    return StagedCharacteristics(reach * certify, reach * abort, go_on, float(reach @ boundaries.stages))


def last_stage_size(n: int, alpha: float, stages: int) -> int:
    """Return the last stage that keeps the largest radius certifiable with ``n`` samples: ⌈n (1 − log_alpha stages)⌉.

    Theorem 6.1(3) of Horváth et al. (2022): alpha/s to the power 1/n_s is then at least alpha to the power 1/n.

    Example:
        >>> last_stage_size(100_000, 0.001, 4)
        120069
    """
    require_levels(alpha=alpha)
    if n < 1 or stages < 1:
        raise UsageError(f"n and stages must be at least 1, got {n} and {stages}.")
    return math.ceil(n * (1.0 - math.log(stages) / math.log(alpha)))


def samples_needed(threshold: float, alpha: float) -> int:
    """Return the fewest samples that can certify ``threshold``, when all votes agree: alpha^(1/n) > threshold.

    Example:
        >>> samples_needed(0.99, 0.001)
        688
    """
    _check_threshold(threshold)
    require_levels(alpha=alpha)
    n = math.floor(math.log(alpha) / math.log(threshold)) + 1
    while n <= MAX_SAMPLES and lower_bound(n, n, alpha) <= threshold:
        n += 1
    return n


def _check_threshold(threshold: float) -> None:
    require(0.5 <= threshold < 1.0, threshold, "threshold must lie in [½, 1)")
