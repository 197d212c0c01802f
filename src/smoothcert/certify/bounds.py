"""Procedures that can bound the probability of the runner-up too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smoothcert.certify.base import Procedure, Task
from smoothcert.stats.decisions import guess_and_bounds, prefers_runner_up
from smoothcert.types import BOUNDS, PLAIN, RUNNER_UP, Certificate, Norm, Votes, unknown_name


def require_bound(bound: str) -> None:
    """Refuse the name of an unknown bound."""
    if bound not in BOUNDS:
        raise unknown_name("bound", bound, BOUNDS)


@dataclass(frozen=True, kw_only=True)
class BoundedProcedure(Procedure):
    """A procedure with a choice of the bound.

    Attributes:
        bound: `plain`, or `runner-up` to bound the other classes too, where the selection votes favour it. It proves
            larger radii for inputs with several likely classes, even if none of them gets half of the votes; Gaussian
            noise only.
    """

    bound: str = PLAIN

    def __post_init__(self) -> None:
        super().__post_init__()
        require_bound(self.bound)

    def config(self) -> dict[str, Any]:
        settings = super().config()
        if self.bound == PLAIN:  # the only bound of earlier versions, which did not record it
            del settings["bound"]
        return settings

    def checked_norm(self, task: Task) -> Norm:
        """Return the norm of the radii; raise a UsageError if the noise does not certify it or has no such bound."""
        if self.bound == RUNNER_UP:
            task.noise.require_two_sided()
        return task.noise.resolve_norm(self.norm)

    def uses_runner_up(self, selection: Votes, n: int, alpha: float) -> bool:
        """Choose the bound of an input from its selection votes; see :func:`~stats.decisions.prefers_runner_up`."""
        return self.bound == RUNNER_UP and bool(prefers_runner_up(selection.counts, selection.n, n, alpha))

    def certificate(self, task: Task, norm: Norm, alpha: float, selection: Votes, votes: Votes) -> Certificate:
        """Return the certificate that a fixed number of estimation samples proves."""
        runner_up = self.uses_runner_up(selection, votes.n, alpha)
        guess, p_lower, p_upper = guess_and_bounds(selection.counts, votes.counts, votes.n, alpha, runner_up)
        return task.certificate(
            guess=int(guess),
            p_lower=float(p_lower),
            p_upper=float(p_upper) if runner_up else None,
            norm=norm,
            alpha=alpha,
            alpha_split={"top class": alpha / 2, "runner-up": alpha / 2} if runner_up else {"top class": alpha},
            votes=votes,
            selection=selection,
        )
