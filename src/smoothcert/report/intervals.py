"""What a sample of test inputs leaves open: bootstrap intervals of averages, and the distribution of p_A."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothcert.report.metrics import Outcomes
from smoothcert.types import UsageError

RESAMPLES = 4_000
_AT_ONCE = 4_000_000

FloatArray = NDArray[np.float64]


def credited_radius(outcomes: Outcomes) -> FloatArray:
    """Per input the radius where the answer is right, and 0 where it is not; its mean is the ACR."""
    return np.where(outcomes.correct, outcomes.radius, 0.0)


def resampled_means(values: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> FloatArray:
    """Means over inputs drawn with replacement, the same inputs for every row of values.

    Because all rows share their draws, the difference of two columns of the answer is a resampled paired difference.

    Args:
        values: One number per input, or rows of them.
        resamples: How often a sample as large as the given one is drawn.
        seed: The seed of the draws.

    Returns:
        One mean per draw; for rows, a column each.

    Raises:
        UsageError: If there are no inputs, or fewer than one draw is asked for.

    Example:
        >>> means = resampled_means([[1.0, 0.0, 0.5], [1.5, 0.5, 1.0]], resamples=3)
        >>> (means[:, 1] - means[:, 0]).tolist()
        [0.5, 0.5, 0.5]
    """
    given = np.asarray(values, dtype=np.float64)
    rows = np.atleast_2d(given)
    inputs = rows.shape[1]
    if inputs == 0 or resamples < 1:
        raise UsageError("a bootstrap needs at least one input and one resample.")
    generator = np.random.default_rng(seed)
    means = np.empty((resamples, len(rows)))
    step = max(1, _AT_ONCE // inputs)
    for begin in range(0, resamples, step):
        part = slice(begin, min(begin + step, resamples))
        drawn = generator.integers(0, inputs, size=(part.stop - begin, inputs))
        for column, row in enumerate(rows):
            means[part, column] = row[drawn].mean(axis=1)
    return means if given.ndim == 2 else means[:, 0]


def bootstrap_interval(
    values: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of a mean over inputs.

    For a paired difference of two runs, give the differences per input.

    Args:
        values: One number per input.
        confidence: The confidence, approximate as always with a bootstrap; good from about a hundred inputs on.
        resamples: How often a sample is drawn.
        seed: The seed of the draws; the same seed gives the same interval.

    Returns:
        The lower and the upper end.

    Raises:
        UsageError: If there are no inputs, no resamples, or the confidence is outside (0, 1).

    Reference:
        B. Efron, Bootstrap methods: another look at the jackknife, Annals of Statistics 7 (1979).

    Example:
        >>> bootstrap_interval([0.5, 0.5, 0.5])
        (0.5, 0.5)
    """
    if not 0 < confidence < 1:
        raise UsageError(f"a confidence must lie between 0 and 1, not {confidence}.")
    means = resampled_means(np.asarray(values, dtype=np.float64).ravel(), resamples=resamples, seed=seed)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    # Sums of equal numbers differ in their last digits by the order of addition; an interval must not show that.
    return round(float(low), 12), round(float(high), 12)


def sign_flip_p_value(differences: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> float:
    """The p-value that paired differences have a mean of 0, by flipping their signs at random.

    It is valid for any number of inputs, few ones included, if the two runs compared are exchangeable.

    Args:
        differences: One number per input.
        resamples: How often signs are drawn; the p-value is at least one over this plus one.
        seed: The seed of the draws.

    Returns:
        The two-sided p-value.

    Raises:
        UsageError: If there are no inputs, or fewer than one draw is asked for.

    Reference:
        R. A. Fisher, The design of experiments (1935), §21.

    Example:
        >>> sign_flip_p_value([0.5, -0.5])
        1.0
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.size == 0 or resamples < 1:
        raise UsageError("a sign-flip test needs at least one input and one resample.")
    generator = np.random.default_rng(seed)
    reached = 0
    # Sums that differ only by the order of addition are equal.
    observed = abs(values.sum()) - 1e-12 * np.abs(values).sum()
    step = max(1, _AT_ONCE // values.size)
    for begin in range(0, resamples, step):
        flips = generator.integers(0, 2, size=(min(step, resamples - begin), values.size), dtype=np.int8)
        reached += int((np.abs((1.0 - 2.0 * flips) @ values) >= observed).sum())
    return (1 + reached) / (1 + resamples)


def acr_interval(outcomes: Outcomes, *, confidence: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """The bootstrap interval of the average certified radius over the test sample.

    It tells how much the ACR would vary with other test inputs, not whether a certificate is wrong.

    Raises:
        UsageError: If the confidence is outside (0, 1).

    Example:
        >>> run = Outcomes("run", [0, 1, 2, 3], [5, 5, 5, 5], [5, 5, 5, 5], [0.5, 0.5, 0.5, 0.5])
        >>> acr_interval(run)
        (0.5, 0.5)
    """
    return bootstrap_interval(credited_radius(outcomes), confidence=confidence, seed=seed)


def probability_quantiles(
    probabilities: ArrayLike, levels: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95)
) -> FloatArray:
    """Quantiles of p_A over inputs: of its lower bounds (``p_lower``), or of its share of votes (counts / n).

    Beside the ACR, which rewards easy inputs and grows with n, they tell how the inputs themselves are spread. Each
    quantile is one of the values: the smallest that at least this share of the inputs does not exceed.

    Args:
        probabilities: One probability per input.
        levels: The levels, between 0 and 1.

    Returns:
        One quantile per level.

    Raises:
        UsageError: If there are no inputs, or a value or level is no probability.

    Example:
        >>> probability_quantiles([0.4, 0.9, 0.95, 0.99], [0.25, 0.5]).tolist()
        [0.4, 0.9]
    """
    values, wanted = np.asarray(probabilities, dtype=np.float64), np.asarray(levels, dtype=np.float64)
    if values.size == 0:
        raise UsageError("quantiles need at least one input.")
    for array in (values, wanted):
        if not ((array >= 0) & (array <= 1)).all():
            raise UsageError("probabilities and levels of quantiles must lie between 0 and 1.")
    return np.asarray(np.quantile(values, wanted, method="inverted_cdf"))
