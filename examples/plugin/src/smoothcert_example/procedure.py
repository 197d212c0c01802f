"""A procedure that draws its samples a second time if the first prove nothing."""

from dataclasses import dataclass
from typing import ClassVar

from smoothcert import Procedure
from smoothcert.sampling import ESTIMATION, SELECTION, Draw
from smoothcert.stats.decisions import guess_and_bounds
from smoothcert.types import Votes, is_certified


@dataclass(frozen=True, kw_only=True)
class SecondTry(Procedure):
    """Draw n votes, and n fresh ones if the first prove nothing; each bound takes α/2.

    Args:
        n: Estimation samples of each try.
    """

    n: int = 1_000

    name: ClassVar[str] = "second-try"

    @property
    def expected_samples(self):
        return self.n0 + self.n

    def certify(self, task):
        norm = task.noise.resolve_norm(self.norm)
        (selection,) = yield Draw(SELECTION, self.n0)
        tries = []
        for stage in (ESTIMATION, ESTIMATION + 1):  # every stage has its own noise
            (votes,) = yield Draw(stage, self.n)
            tries.append(votes)
            guess, p_lower, _ = guess_and_bounds(selection.counts, votes.counts, votes.n, self.alpha / 2)
            if is_certified(p_lower):
                break
        total = tuple(map(sum, zip(*(votes.counts for votes in tries), strict=True)))
        return task.certificate(
            guess=int(guess),
            p_lower=float(p_lower),
            norm=norm,
            alpha=self.alpha,
            alpha_split={"first try": self.alpha / 2, "second try": self.alpha / 2},
            votes=Votes(n=self.n * len(tries), counts=total),
            selection=selection,
            stages=tuple(tries),
        )
