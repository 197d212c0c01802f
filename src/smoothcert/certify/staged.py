"""CertifyAdp: certify a target radius in stages of fresh samples (Horváth et al., 2022)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from smoothcert.certify.base import Task, require_count, require_probability, require_radii
from smoothcert.certify.bounds import BoundedProcedure
from smoothcert.certify.forecast import Chance, Forecast, decisions
from smoothcert.sampling import ESTIMATION, SELECTION, Draw, Steps
from smoothcert.sampling.seeds import MODELLING
from smoothcert.stats import lower_bound, stage_boundaries, staged_characteristics, upper_bound, wald_bound
from smoothcert.stats.decisions import guess_and_bounds
from smoothcert.types import Certificate, Norm, Outcome, UsageError, Votes


@dataclass(frozen=True)
class Staged(BoundedProcedure):
    """Certify or refute a target radius early, in stages of fresh samples.

    CertifyAdp of Horváth, Müller, Fischer and Vechev (2022), Algorithm 2. The class is guessed once; stage j certifies
    with a lower bound at α/s and aborts with an upper bound at β/(s − 1), never in the last stage. The radius of the
    certificate is the one that the bound of the deciding stage proves, at least the target if certified.

    The runner-up bound halves both levels: a stage aborts if the target is out of reach even for the largest plausible
    probability of the guessed class and the smallest of the class with the second most selection votes.

    Args:
        radius: The target radius.
        stages: Samples of each stage, increasing; ``stats.last_stage_size`` keeps the reach of a fixed n.
        beta: Probability of aborting although the target could be certified.
    """

    name: ClassVar[str] = "staged"

    radius: float
    _: KW_ONLY
    stages: Sequence[int] = (100, 1_000, 10_000, 120_000)
    beta: float = 0.0001

    def __post_init__(self) -> None:
        super().__post_init__()
        require_radii(self.radius)
        for size in self.stages:
            require_count("each stage", size)
        if not self.stages or any(a >= b for a, b in pairwise(self.stages)):
            raise UsageError(f"stages must increase, such as 100,1000,10000; got {tuple(self.stages)}.")
        if len(self.stages) > MODELLING - ESTIMATION:  # each has its number in the noise seed
            raise UsageError(f"at most {MODELLING - ESTIMATION} stages are possible, got {len(self.stages)}.")
        require_probability("beta", self.beta)
        object.__setattr__(self, "stages", tuple(self.stages))

    @property
    def expected_samples(self) -> int:
        return self.n0 + sum(self.stages[:2])

    @property
    def targets(self) -> tuple[float, ...]:
        return (self.radius,)

    @property
    def level(self) -> float:
        return self.alpha / len(self.stages)

    @property
    def reach(self) -> float:
        return lower_bound(self.stages[-1], self.stages[-1], self.level)

    def forecast(self, threshold: float, probabilities: Sequence[float]) -> Forecast:
        counts = stage_boundaries(threshold, self.stages, self.alpha, self.beta)
        chances = []
        for p in probabilities:
            ends = staged_characteristics(counts, p)
            certify, abort = float(ends.certify.sum()), float(ends.abort.sum())
            wald = wald_bound(p, threshold, self.alpha, self.beta)
            each = tuple(zip(ends.certify.tolist(), ends.abort.tolist(), ends.go_on.tolist(), strict=True))
            chances.append(Chance(p, certify, abort, float(ends.go_on[-1]), ends.expected_samples, wald, each))
        return decisions(counts.stages, counts.certify, counts.abort), tuple(chances)

    def certify(self, task: Task) -> Steps[Certificate]:
        norm = self.checked_norm(task)
        threshold = task.threshold(self.radius, norm)
        if self.reach <= threshold:
            raise self._unreachable(task, norm, threshold, f"a last stage of {self.stages[-1]:,}")
        boundaries = stage_boundaries(threshold, self.stages, self.alpha, self.beta)
        (selection,) = yield Draw(SELECTION, self.n0)
        guess = int(np.argmax(selection.counts))
        runner_up = self.uses_runner_up(selection, self.stages[-1], self.level)
        outcome, drawn = Outcome.UNDECIDED, list[Votes]()
        for stage, size in enumerate(self.stages):
            (votes,) = yield Draw(ESTIMATION + stage, size)
            drawn.append(votes)
            _, p_lower, p_upper = guess_and_bounds(selection.counts, votes.counts, size, self.level, runner_up)
            if runner_up:
                certified = task.radius(float(p_lower), norm, float(p_upper)) >= self.radius
                aborted = stage < len(self.stages) - 1 and self._out_of_reach(task, norm, guess, selection, votes)
            else:
                certified = votes.counts[guess] >= boundaries.certify[stage]
                aborted = votes.counts[guess] <= boundaries.abort[stage]
            if certified or aborted:
                outcome = Outcome.CERTIFIED if certified else Outcome.REFUTED
                break
        total = np.sum([votes.counts for votes in drawn], axis=0).tolist()
        bounds = (", top class", ", runner-up") if runner_up else ("",)
        split = [f"stage {stage}{bound}" for stage in range(1, len(self.stages) + 1) for bound in bounds]
        return task.certificate(
            guess=guess,
            p_lower=float(p_lower),
            p_upper=float(p_upper) if runner_up else None,
            norm=norm,
            alpha=self.alpha,
            alpha_split=dict.fromkeys(split, self.level / len(bounds)),
            votes=Votes(n=sum(votes.n for votes in drawn), counts=tuple(total)),
            selection=selection,
            decisions={self.radius: outcome},
            stages=tuple(drawn),
        )

    def _out_of_reach(self, task: Task, norm: Norm, guess: int, selection: Votes, votes: Votes) -> bool:
        """Return whether the runner-up bound cannot prove the target, wrongly with probability at most β/(s − 1)."""
        others = (label for label in range(task.num_classes) if label != guess)
        rival = max(others, key=selection.counts.__getitem__)
        share = self.beta / (2 * (len(self.stages) - 1))
        likeliest = upper_bound(votes.counts[guess], votes.n, share)
        rarest = lower_bound(votes.counts[rival] + votes.invalid, votes.n, share)
        return task.radius(likeliest, norm, rarest) < self.radius
