"""CERTIFY and PREDICT with a fixed number of samples (Cohen, Rosenfeld and Kolter, 2019)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import scipy

from smoothcert.certify.base import Task, require_count
from smoothcert.certify.bounds import BoundedProcedure
from smoothcert.certify.forecast import Chance, Decision, Forecast
from smoothcert.sampling import ESTIMATION, PREDICTION, SELECTION, Draw, Steps
from smoothcert.stats import lower_bound, wald_bound
from smoothcert.stats.decisions import predicted_class
from smoothcert.types import Certificate, Prediction


@dataclass(frozen=True)
class Cohen(BoundedProcedure):
    """Guess the class from ``n0`` votes, and bound its probability from ``n`` other ones.

    CERTIFY and PREDICT of Cohen, Rosenfeld and Kolter (2019), §3.2. PREDICT uses the two-sided test of Hung and
    Fithian (2019), which is valid although the votes choose the two classes compared.

    Args:
        n: Estimation samples; for PREDICT, all samples.

    Example:
        >>> Cohen(1_000).alpha
        0.001
    """

    name: ClassVar[str] = "cohen"
    decides_early: ClassVar[bool] = False
    fixed_samples: ClassVar[bool] = True

    n: int = 100_000

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("n", self.n)

    @property
    def expected_samples(self) -> int:
        return self.n0 + self.n

    @property
    def reach(self) -> float:
        return lower_bound(self.n, self.n, self.alpha)

    def forecast(self, threshold: float, probabilities: Sequence[float]) -> Forecast:
        enough = bisect_right(range(self.n + 1), threshold, key=lambda count: lower_bound(count, self.n, self.alpha))
        chances = []
        for p in probabilities:
            certify = float(scipy.stats.binom.sf(enough - 1, self.n, p))
            chances.append(Chance(p, certify, 0.0, 1 - certify, self.n, wald_bound(p, threshold, self.alpha)))
        return (Decision(self.n, enough if enough <= self.n else None, None),), tuple(chances)

    def certify(self, task: Task) -> Steps[Certificate]:
        norm = self.checked_norm(task)
        (selection,) = yield Draw(SELECTION, self.n0)
        (votes,) = yield Draw(ESTIMATION, self.n)
        return self.certificate(task, norm, self.alpha, selection, votes)

    def predict(self, task: Task) -> Steps[Prediction]:
        (votes,) = yield Draw(PREDICTION, self.n)
        label, p_value = predicted_class(votes.counts, self.alpha)
        return task.prediction(int(label), float(p_value), self.alpha, votes)
