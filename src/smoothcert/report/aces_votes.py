"""The parts of ACES from their votes: bounds and tests over all inputs and thresholds at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from smoothcert.noise.base import shortened
from smoothcert.report.aces import Components, FloatArray, IntArray
from smoothcert.report.metadata import UNKNOWN, Metadata
from smoothcert.report.metrics import Outcomes
from smoothcert.stats import lower_bound
from smoothcert.stats.decisions import certified_class, choice_votes, guessed_choice, predicted_choice, predicted_class
from smoothcert.types import ABSTAIN, CERTIFIER, CORE, Norm, UsageError


def components_from_votes(
    certifier: tuple[str, ArrayLike, ArrayLike],
    *,
    core: ArrayLike,
    selection: ArrayLike,
    counts: ArrayLike,
    selector0: ArrayLike,
    selector: ArrayLike,
    n: int,
    alpha: float,
    radius: Callable[[FloatArray], FloatArray],
    offset: ArrayLike = 0.0,
    norm: Norm | None = None,
    settings: Mapping[str, Any] | None = None,
    metadata: Metadata = UNKNOWN,
) -> Components:
    """CERTIFY and PREDICT of the parts of ACES from their votes, at every threshold (Algorithms 1 and 4).

    Each bound takes α/2. A class or a choice is guessed from the selection copies and proved by the estimation copies;
    PREDICT tests the estimation copies, two-sided, and gives the core only where it has the more votes *and* passes.

    Args:
        certifier: Its name, and index and label of every input.
        core: The classes of the core on the clean inputs.
        selection: Votes per class among the selection copies, (inputs, classes).
        counts: Votes per class among the n estimation copies, (inputs, classes).
        selector0: Histogram of scores over the selection copies, (inputs, thresholds); entry j counts the scores in
            (θ_{j-1}, θ_j] with θ_j = j/(thresholds - 1).
        selector: The same over the n estimation copies.
        n: Estimation copies, invalid ones included.
        alpha: The probability of a wrong statement, for both parts together.
        radius: The radius that a lower bound on a probability proves, as ``noise.radius``.
        offset: What to take off the radii of each input: how far it is from the grid point that stood for it.
        norm: The norm of that radius, if known.
        settings: What the votes were drawn with.
        metadata: What the run says about its radii, if known.

    Returns:
        The components.

    Raises:
        UsageError: If the votes are not such arrays, or more than n.

    Example:
        >>> from smoothcert import Gaussian
        >>> votes = {"selection": [[0, 9]], "counts": [[1, 999]], "selector0": [[0, 9, 0]], "selector": [[2, 995, 3]]}
        >>> parts = components_from_votes(
        ...     ("run", [0], [1]), core=[1], **votes, n=1000, alpha=0.001, radius=Gaussian(0.5).radius
        ... )
        >>> parts.thetas.tolist(), parts.choice[:, 0].tolist()
        ([0.0, 0.5, 1.0], [0, 1, 1])
    """
    name, index, label = certifier
    arrays = {"selection": selection, "counts": counts, "selector0": selector0, "selector": selector}
    votes = {key: np.asarray(value, dtype=np.int64) for key, value in arrays.items()}
    for key, array in votes.items():
        if array.ndim != 2 or array.shape[1] < 2 or array.shape[0] != len(votes["counts"]) or (array < 0).any():
            raise UsageError(f"{name}: {key} must hold two or more counts for every input, none of them negative.")
    if votes["selection"].shape != votes["counts"].shape or votes["selector0"].shape != votes["selector"].shape:
        raise UsageError(f"{name}: both samples must be counted over the same classes and the same thresholds.")
    if max(votes["counts"].sum(axis=1).max(), votes["selector"].sum(axis=1).max()) > n:
        raise UsageError(f"{name}: there are more votes than the {n} estimation copies.")
    rows = np.arange(len(votes["counts"]))

    def proved(guess: IntArray, count: IntArray) -> tuple[IntArray, FloatArray]:
        distinct, place = np.unique(count, return_inverse=True)
        bound = lower_bound(distinct, n, alpha / 2)
        answer = certified_class(guess, bound[place].reshape(count.shape))
        radii = shortened(radius(bound)[place].reshape(count.shape), offset)
        return answer, np.where(answer == ABSTAIN, 0.0, radii)

    guess = votes["selection"].argmax(axis=1)
    certified, radii = proved(guess, votes["counts"][rows, guess])
    chosen = choice_votes(votes["selector"]).swapaxes(1, 2)  # (core or certifier, thresholds, inputs)
    guess = guessed_choice(choice_votes(votes["selector0"]).swapaxes(1, 2))
    choice, choice_radius = proved(guess, np.where(guess == CERTIFIER, chosen[CERTIFIER], chosen[CORE]))
    return Components(
        certifier=Outcomes(
            name,
            np.asarray(index),
            np.asarray(label),
            certified,
            radii,
            norm,
            alpha=np.full(len(rows), alpha),
            metadata=metadata,
        ),
        predicted=predicted_class(votes["counts"], alpha / 2)[0],
        core=np.asarray(core),
        thetas=np.arange(len(choice)) / (len(choice) - 1),
        choice=choice,
        choice_radius=choice_radius,
        choice_predicted=predicted_choice(chosen, alpha / 2)[0],
        median=_median(chosen[CERTIFIER]),
        settings=settings or {},
    )


def _median(certify: IntArray) -> FloatArray:
    """The median score of every input: the middle between the two thresholds around it; NaN without a valid copy."""
    above = (2 * certify < certify[-1]).sum(axis=0)
    return np.where(certify[-1] > 0, np.maximum(above - 0.5, 0.0) / (len(certify) - 1), np.nan)
