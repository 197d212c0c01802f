"""How a procedure will decide: the counts that decide, and how inputs end."""

from __future__ import annotations

from dataclasses import dataclass

from smoothcert.stats.binomial import IntArray


@dataclass(frozen=True)
class Decision:
    """A check after ``n`` samples: ``certify`` or more votes certify, ``refute`` or fewer refute."""

    n: int
    certify: int | None
    refute: int | None


@dataclass(frozen=True)
class Chance:
    """How an input ends whose guessed class has true probability ``p``.

    Attributes:
        certify, refute, undecided: Probabilities of the outcomes at the target radius.
        samples: Mean estimation samples.
        wald: Wald's lower bound on that mean, for any test with these error probabilities; infinite at the threshold.
        stages: For Staged, the probabilities to certify, abort and continue in each stage, as shares of all inputs.
    """

    p: float
    certify: float
    refute: float
    undecided: float
    samples: float
    wald: float
    stages: tuple[tuple[float, float, float], ...] = ()


Forecast = tuple[tuple[Decision, ...], tuple[Chance, ...]]
"""The decisions of a procedure, and one chance for each true probability."""


def decisions(n: IntArray, certify: IntArray, refute: IntArray) -> tuple[Decision, ...]:
    """Return the boundaries of a test as decisions; a boundary that no count reaches is None."""
    return tuple(
        Decision(size, enough if enough <= size else None, few if few >= 0 else None)
        for size, enough, few in zip(n.tolist(), certify.tolist(), refute.tolist(), strict=True)
    )
