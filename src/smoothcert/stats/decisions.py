"""Decisions from counts of votes: the certified class and its bounds, the predicted class, and the choice of ACES.

Every function works on one input and on arrays of inputs. Certification, recomputation of a stored run and the
evaluation of ACES call the same functions, so the same votes always lead to the same answer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from smoothcert.stats.binomial import FloatArray, IntArray, lower_bound, top_class_p_value, upper_bound
from smoothcert.types import ABSTAIN, CERTIFIER, CORE, is_certified


def certified_class(guess: ArrayLike, p_lower: ArrayLike, p_upper: ArrayLike = 1.0) -> IntArray:
    """Return the guessed class where its bounds prove it (``types.is_certified``), and ``ABSTAIN`` elsewhere."""
    return np.where(is_certified(np.asarray(p_lower), np.asarray(p_upper)), guess, ABSTAIN)


def guess_and_bounds(
    selection: ArrayLike, counts: ArrayLike, n: ArrayLike, alpha: float, runner_up: ArrayLike = False
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Guess the class from the selection votes, and bound probabilities from the estimation votes.

    The plain bound is that of CERTIFY (Cohen, Rosenfeld and Kolter, 2019). The runner-up bound spends α/2 on the
    guessed class and α/2 on an upper bound for every other class (Voráček, NeurIPS 2024, Appendix B): the true
    runner-up is a fixed class, whose votes are at most the most votes of any other class, and the bound grows with
    the votes, so no union over classes is needed. Copies with invalid logits count as votes for the runner-up: an
    exact noise makes a copy invalid where it cannot tell which class would have got the vote.

    Args:
        selection: Selection votes per class, (…, classes).
        counts: Estimation votes per class, (…, classes).
        n: The number of estimation samples, including those with invalid logits.
        alpha: The probability that a bound is wrong.
        runner_up: Whether to use the runner-up bound; may depend on the selection votes, but not on ``counts``.

    Returns:
        The guess, the lower bound on its probability, and the upper bound on that of every other class, 1 where the
        runner-up bound is not used.

    Example:
        >>> guess, p_lower, p_upper = guess_and_bounds([3, 7, 0], [100, 800, 100], 1000, 0.001, runner_up=True)
        >>> int(guess), round(float(p_lower), 4), round(float(p_upper), 4)
        (1, 0.7557, 0.1348)
    """
    guess = np.argmax(selection, axis=-1)
    votes, others = _votes_of(guess, counts, n)
    level = np.where(runner_up, alpha / 2, alpha)
    p_upper = np.where(runner_up, upper_bound(others, n, alpha / 2), 1.0) if np.any(runner_up) else np.ones(guess.shape)
    return guess, np.asarray(lower_bound(votes, n, level)), p_upper


def prefers_runner_up(selection: ArrayLike, n0: ArrayLike, n: ArrayLike, alpha: float) -> NDArray[np.bool_]:
    """Return whether the runner-up bound is expected to prove more than the plain one at the full α.

    Both are compared for ``n`` estimation samples with the shares of the selection votes. The choice depends on the
    selection votes only, so it costs no α. Where all of them agree, the plain bound is chosen.

    Args:
        selection: Selection votes per class, (…, classes).
        n0, n: The numbers of selection and estimation samples, including those with invalid logits.
        alpha: The probability that a bound is wrong.

    Example:
        >>> prefers_runner_up([[100, 0, 0], [60, 40, 0], [60, 20, 20]], 100, 1_000, 0.001).tolist()
        [False, False, True]
    """
    votes, others = (count * np.asarray(n) // n0 for count in _votes_of(np.argmax(selection, axis=-1), selection, n0))
    p_lower = np.asarray(lower_bound(votes, n, alpha / 2))
    p_upper = np.minimum(upper_bound(others, n, alpha / 2), 1.0 - p_lower)
    both = special.ndtri(p_lower) - special.ndtri(p_upper)
    return np.asarray(both > 2.0 * special.ndtri(lower_bound(votes, n, alpha)))


def _votes_of(guess: IntArray, counts: ArrayLike, n: ArrayLike) -> tuple[IntArray, IntArray]:
    """Return the votes for the guess, and the most votes for another class, to which the invalid ones are added."""
    counts = np.asarray(counts)
    place = np.expand_dims(guess, -1)
    votes = np.take_along_axis(counts, place, axis=-1)[..., 0]
    others = np.max(counts, axis=-1, where=np.arange(counts.shape[-1]) != place, initial=0)
    return votes, others + np.asarray(n) - counts.sum(axis=-1)


def transferred_levels(alpha: float, both: bool) -> dict[str, float]:
    """Split alpha between the bounds of :func:`transferred_bound`.

    A tenth is for the stored votes of the original, also where they are not used: they are many, so that a small level
    costs little. The bounds on fresh copies share the rest; ``both`` is whether both models classify them.
    """
    rest = 0.9 * alpha
    return {"original": alpha / 10, **({"changed": rest / 2, "votes": rest / 2} if both else {"votes": rest})}


def transferred_bound(
    original: ArrayLike, n_original: ArrayLike, changed: ArrayLike | None, votes: ArrayLike, n: int, alpha: float
) -> FloatArray:
    """Bound the probability of a class under a model from the votes of a similar one, the original.

    See :class:`smoothcert.certify.recertify.Recertify`, and :func:`transferred_levels` for the shares of alpha.

    Args:
        original: Votes for the class by the original model, among its ``n_original`` samples.
        changed: Copies, among the n fresh ones, on which the original votes for the class and the model does not; None
            if the original was not sampled again, which is worth it only if most of its votes were for the class.
        votes: Votes of the model for the class among the n copies.
        n: Fresh noisy copies.
        alpha: The probability that the bound is too high.

    Example:
        >>> [round(float(transferred_bound(80_000, 100_000, lost, 800, 1000, 0.001)), 3) for lost in (0, 50, None)]
        [0.788, 0.755, 0.758]
    """
    levels = transferred_levels(alpha, changed is not None)
    direct = np.asarray(lower_bound(votes, n, levels["votes"]))
    if changed is None:
        return direct
    stored = np.asarray(lower_bound(original, n_original, levels["original"]))
    through = stored - np.asarray(upper_bound(changed, n, levels["changed"]))
    return np.asarray(np.maximum(np.nextafter(through, -1), direct))


def predicted_class(counts: ArrayLike, alpha: float) -> tuple[IntArray, FloatArray]:
    """Return the class with the most votes and the p-value of the test of Hung and Fithian (2019) against a tie.

    PREDICT of Cohen, Rosenfeld and Kolter (2019). The class is ``ABSTAIN`` where the p-value exceeds alpha.

    Args:
        counts: Votes per class, (…, classes).
        alpha: The probability of a wrong class.

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
        histogram: The number of noisy copies with a score in (θ_{j-1}, θ_j], for each threshold θ_j, (…, thresholds).

    Returns:
        The votes, (2, …, thresholds); ``CORE`` and ``CERTIFIER`` index the first axis.

    Example:
        >>> choice_votes([5, 3, 2]).tolist()
        [[5, 2, 0], [5, 8, 10]]
    """
    certifier = np.cumsum(histogram, axis=-1)
    return np.stack([certifier[..., -1:] - certifier, certifier])


def guessed_choice(votes: ArrayLike) -> IntArray:
    """Guess the choice from the selection votes of :func:`choice_votes`; the certifier in a tie."""
    core, certifier = np.asarray(votes)
    return np.where(core > certifier, CORE, CERTIFIER)


def predicted_choice(votes: ArrayLike, alpha: float) -> tuple[IntArray, FloatArray]:
    """Predict the choice from the votes of :func:`choice_votes`, as :func:`predicted_class`."""
    return predicted_class(np.moveaxis(np.asarray(votes), 0, -1), alpha)


def routed_class(choice: ArrayLike, label: ArrayLike, core: ArrayLike) -> IntArray:
    """Return the answer of ACES (Horváth, Müller, Fischer and Vechev, 2022, Algorithms 1 and 4), or ``ABSTAIN``.

    The answer is the certifier's class if the certifier is chosen, and the core's class if the core is chosen or both
    classes are the same.

    Args:
        choice: ``CERTIFIER``, ``CORE`` or ``ABSTAIN``.
        label: The smoothed classifier's class, or ``ABSTAIN``.
        core: The core's class; ``ABSTAIN`` without a core.
    """
    choice, label, core = np.asarray(choice), np.asarray(label), np.asarray(core)
    certifier = (choice == CERTIFIER) & (label != ABSTAIN)
    return np.where(certifier, label, np.where((choice == CORE) | (label == core), core, ABSTAIN))
