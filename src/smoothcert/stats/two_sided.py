"""Confidence sequences for one fixed class, and bounds on the top class and the runner-up that hold at any time.

**One class.** With shifts that do not depend on the threshold (:func:`~smoothcert.stats.evalues.log_e`), the evidence
that a class is more probable than t falls with t. Let L_n be any t whose evidence after n votes is at least 1/level. If
L_n ≥ p for the true p of the class, the evidence for the threshold p itself is at least 1/level too, and by Ville's
inequality that ever happens with probability at most the level. So p > L_n at all n together: a confidence sequence. No
grid of thresholds and no factor for several classes is needed, but the class must be fixed before the votes. At n_max,
fixed in advance, the bound of Clopper and Pearson at ``LAST_LOOK`` of the level joins it (the union bound). An upper
bound on p is one minus the lower bound on 1 − p. Both grow with the count. The largest lower and the smallest upper
bound so far are valid too: all of them hold at the same time.

**A certificate** of the class A that the selection votes put first: p_A > L at α/2, from its votes. Let S be the most
probable other class, and q_S its probability plus that of an invalid copy, which S may have got. S is fixed, and its
votes and the invalid ones are at most the most votes of any class but A and the invalid ones. The upper bound grows
with the count, so q_S < U at α/2, with U from the latter. With probability 1 − α both hold at every n, and the radius
follows from L and min(U, 1 − L).

**A refutation**: no class reaches the target radius r. Let T be the most probable class, and B the class that the
selection votes put second. T is fixed, and its votes are at most the most votes of any class, so p_T < V at β/2, with V
from those and the invalid ones. The less probable of A and B is fixed, has at least the fewer votes of the two, and is
at most as probable as the true runner-up. So the runner-up has a probability > W at β/2, with W from the fewer votes.
Hence p_T < 1 − W, and no radius exceeds that of min(V, 1 − W) and W. Where invalid copies are frequent, this is longer
than any radius that the procedure can certify, so nothing is refuted because of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from smoothcert.stats.binomial import FloatArray, lower_bound, require_levels
from smoothcert.stats.evalues import log_e
from smoothcert.stats.sequential import LAST_LOOK

EVEN = 0.5
"""The threshold to which the shifts are tuned, so that they are the same for all."""

PRECISION = 1e-4
"""How far the bounds may be from the best ones, in log-odds: at most 0.00005 σ of the radius."""

ROUGHLY = 0.8
"""The width of the rough bounds, as a share of that of the arcsine transformation, which is too wide for few votes."""

_SECTIONS = 16


@lru_cache(maxsize=65536)
def lower_sequence(k: int, n: int, level: float, n_max: int, *, last_look: float = LAST_LOOK) -> float:
    """Return a lower confidence bound on the probability of one fixed class that holds at all n simultaneously.

    Args:
        k: Votes for the class.
        n: All votes.
        level: Probability that the bound is ever ≥ p.
        n_max: The last look, fixed before the votes.
        last_look: The share of the level for the look at n_max; 1 if there is no other look.

    Example:
        >>> round(lower_sequence(30, 100, 0.001, 1_000), 3)
        0.14
    """
    require_levels(level=level)
    early = _from_evidence(k, n, level * (1.0 - last_look), n_max) if k > 0 and last_look < 1 else 0.0
    return max(early, lower_bound(k, n, level * last_look)) if n == n_max else early


def upper_sequence(k: int, n: int, level: float, n_max: int, *, last_look: float = LAST_LOOK) -> float:
    """Return an upper confidence bound, as :func:`lower_sequence`; 1 at k = n."""
    return min(math.nextafter(1.0 - lower_sequence(n - k, n, level, n_max, last_look=last_look), 2.0), 1.0)


class TwoSided:
    """The bounds of an input; the proofs are in the text of the module.

    Args:
        selection: Selection votes per class, which choose the classes A and B.
        alpha: Probability that a bound of :meth:`proved` is ever wrong.
        beta: Probability that a bound of :meth:`possible` is ever wrong.
        n_max: The last look, fixed before the votes.
        last_look: The share of both for the look at n_max; 1 if there is no other look.

    Attributes:
        guess: The class A.
    """

    def __init__(
        self, selection: Sequence[int], alpha: float, beta: float, n_max: int, last_look: float = LAST_LOOK
    ) -> None:
        self.guess, *others = sorted(range(len(selection)), key=lambda label: -selection[label])
        self._rival = others[0] if others else None
        self._alpha, self._beta, self._n_max, self._last_look = alpha, beta, n_max, last_look

    def proved(self, counts: Sequence[int], n: int, *, roughly: bool = False) -> tuple[float, float]:
        """Return the lower bound on the probability of A and the upper bound on that of every other class.

        Args:
            counts: Votes per class, drawn after the selection votes.
            n: All votes, including those with invalid logits.
            roughly: Return quick approximations, seldom too cautious, which prove nothing.
        """
        rival = max((*counts[: self.guess], *counts[self.guess + 1 :]), default=0) + n - sum(counts)
        return self._between(counts[self.guess], rival, n, self._alpha / 2, roughly)

    def possible(self, counts: Sequence[int], n: int, *, roughly: bool = False) -> tuple[float, float]:
        """Return the upper bound on the probability of any class and the lower bound on that of the runner-up."""
        fewer = 0 if self._rival is None else min(counts[self.guess], counts[self._rival])
        second, top = self._between(fewer, max(counts) + n - sum(counts), n, self._beta / 2, roughly)
        return min(top, 1.0 - second), second

    def _between(self, low: int, high: int, n: int, level: float, roughly: bool) -> tuple[float, float]:
        """Return the lower bound from one count and the upper bound from another."""
        if roughly:
            width = ROUGHLY * math.sqrt(-math.log(level) / (2 * n))  # the angle of the arcsine transformation
            lower, upper = math.asin(math.sqrt(low / n)) - width, math.asin(math.sqrt(high / n)) + width
            return math.sin(max(lower, 0.0)) ** 2, math.sin(min(upper, math.pi / 2)) ** 2
        lower = lower_sequence(low, n, level, self._n_max, last_look=self._last_look)
        return lower, upper_sequence(high, n, level, self._n_max, last_look=self._last_look)


def _from_evidence(k: int, n: int, level: float, n_max: int) -> float:
    """Return a threshold with enough evidence against it, almost the largest; 0 if there is none."""

    def enough(log_odds: float | FloatArray) -> NDArray[np.bool_]:
        return log_e(k, n, special.expit(log_odds), n_max, "up", tuned_to=EVEN) >= -math.log(level)

    high = float(special.logit(min(k / n, 1.0 - 1e-15)))  # the votes are never evidence against their own share
    width = 8.0 / math.sqrt(k * (n - k) / n + 1.0)
    while not enough(high - width):
        high, width = high - width, 4.0 * width
        if high < -40.0:
            return 0.0
    low = high - width
    while high - low > PRECISION:
        inner = np.linspace(low, high, _SECTIONS + 1)
        best = int(np.argmin([*enough(inner[1:-1]), False]))
        low, high = float(inner[best]), float(inner[best + 1])
    return float(special.expit(low))
