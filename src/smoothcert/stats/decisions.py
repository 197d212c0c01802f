"""Answers from counts of votes: the class certified, the class predicted, and the choice of ACES.

Every function works on one input or on arrays of inputs. Certifying live, recomputing a stored run and evaluating ACES
afterwards all call these, so the same votes always give the same answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothcert.stats.binomial import FloatArray, IntArray, lower_bound, top_class_p_value
from smoothcert.types import ABSTAIN, CERTIFIER, CORE


def is_majority(p_lower: ArrayLike) -> NDArray[np.bool_]:
    """Whether a lower bound on the probability of a class proves that the smoothed classifier returns it."""
    return np.asarray(p_lower) > 0.5


def certified_class(guess: ArrayLike, p_lower: ArrayLike) -> IntArray:
    """Return the guessed class where the lower bound on its probability exceeds ½, and abstain elsewhere."""
    return np.where(is_majority(p_lower), guess, ABSTAIN)


def guess_and_bound(selection: ArrayLike, counts: ArrayLike, n: ArrayLike, alpha: float) -> tuple[IntArray, FloatArray]:
    """Guess the class from the selection votes and bound its probability from the estimation votes.

    CERTIFY of Cohen, Rosenfeld and Kolter (2019).

    Args:
        selection: Votes per class among the selection samples, (…, classes).
        counts: Votes per class among the estimation samples, (…, classes).
        n: The number of estimation samples, including those whose logits were invalid.
        alpha: The probability that a bound is too high.

    Returns:
        The guessed class and the lower bound on its probability for each input.

    Example:
        >>> guess, p_lower = guess_and_bound([3, 7], [100, 900], 1000, 0.001)
        >>> int(guess), round(float(p_lower), 4)
        (1, 0.8675)
    """
    guess = np.argmax(selection, axis=-1)
    votes = np.take_along_axis(np.asarray(counts), np.expand_dims(guess, -1), axis=-1)[..., 0]
    return guess, np.asarray(lower_bound(votes, n, alpha))


def predicted_class(counts: ArrayLike, alpha: float) -> tuple[IntArray, FloatArray]:
    """Return the class with the most votes where the test of Hung and Fithian (2019) rejects a tie at level alpha.

    PREDICT of Cohen, Rosenfeld and Kolter (2019).

    Args:
        counts: Votes per class, (…, classes).
        alpha: The probability of a wrong class.

    Returns:
        The class of each input, ``ABSTAIN`` where the test does not reject, and the p-value.

    Example:
        >>> label, p_value = predicted_class([[990, 10], [505, 495]], 0.001)
        >>> label.tolist()
        [0, -1]
    """
    counts = np.asarray(counts)
    ranked = np.sort(counts, axis=-1)
    p_value = np.asarray(top_class_p_value(ranked[..., -1], ranked[..., -2]))
    return np.where(p_value <= alpha, counts.argmax(axis=-1), ABSTAIN), p_value


def choice_votes(histogram: ArrayLike) -> IntArray:
    """Count the votes for the core and for the certifier at every threshold of ACES.

    Args:
        histogram: How many noisy copies have a score in (θ_{j-1}, θ_j], for each threshold θ_j, (…, thresholds).

    Returns:
        The votes, (2, …, thresholds); ``CORE`` and ``CERTIFIER`` are the places of the first axis.

    Example:
        >>> choice_votes([5, 3, 2]).tolist()
        [[5, 2, 0], [5, 8, 10]]
    """
    certifier = np.cumsum(histogram, axis=-1)
    return np.stack([certifier[..., -1:] - certifier, certifier])


def guessed_choice(votes: ArrayLike) -> IntArray:
    """Guess the choice from selection votes as :func:`choice_votes` counts them; a tie is for the certifier."""
    core, certifier = np.asarray(votes)
    return np.where(core > certifier, CORE, CERTIFIER)


def predicted_choice(votes: ArrayLike, alpha: float) -> tuple[IntArray, FloatArray]:
    """Predict the choice from votes as :func:`choice_votes` counts them; as :func:`predicted_class`."""
    return predicted_class(np.moveaxis(np.asarray(votes), 0, -1), alpha)


def routed_class(choice: ArrayLike, label: ArrayLike, core: ArrayLike) -> IntArray:
    """Combine the certified (or predicted) choice, the smoothed classifier's class and the core's class as ACES does.

    Algorithms 1 and 4 of Horváth, Müller, Fischer and Vechev (2022), ACES. If the certifier is chosen, its class is the
    answer; if the core is chosen, or both classes are the same, the core's class is.

    Args:
        choice: ``CERTIFIER``, ``CORE`` or ``ABSTAIN``.
        label: The smoothed classifier's class, or ``ABSTAIN``.
        core: The core's class; ``ABSTAIN`` without a core.

    Returns:
        The class, or ``ABSTAIN``.
    """
    choice, label, core = np.asarray(choice), np.asarray(label), np.asarray(core)
    certifier = (choice == CERTIFIER) & (label != ABSTAIN)
    return np.where(certifier, label, np.where((choice == CORE) | (label == core), core, ABSTAIN))
