"""Keep the votes that a procedure is sent, and run a procedure again on votes that were kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from smoothcert.certify.base import answer
from smoothcert.sampling import Answer, Draw, Job, Steps
from smoothcert.types import UsageError, Votes

Drawn = tuple[Draw, tuple[Votes, ...]]
"""A request of a procedure, and the votes that it was sent."""


def keep_draws(job: Job[Any]) -> list[Drawn]:
    """Return a list to which all votes will be added that the procedure of a job is sent."""
    kept: list[Drawn] = []
    job.steps = _keeping(job.begin(), job.steps, kept)
    next(job.steps)
    return kept


def _keeping(request: Draw, steps: Steps[Answer], kept: list[Drawn]) -> Steps[Answer]:
    try:
        while True:
            votes = yield request
            kept.append((request, votes))
            request = steps.send(votes)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        steps.close()


def replay(steps: Steps[Answer], drawn: Sequence[Drawn], *, stop: bool = False) -> Answer:
    """Return the answer of a procedure that is sent votes which were drawn before.

    Args:
        steps: The procedure, which has not started.
        drawn: All votes in their order; the deadlines of the requests do not matter.
        stop: Whether to answer with these votes even if the procedure requests more, as after :meth:`Request.stop`.

    Raises:
        UsageError: If the procedure requests other votes, or more, and proves nothing without them.
    """
    waiting = list(reversed(drawn))
    last: Drawn | None = None

    def draw(request: Draw) -> tuple[Votes, ...]:
        nonlocal last
        if not waiting:
            if not stop or last is None or request.deadline is None or not _continues(request, last):
                raise UsageError("the procedure needs more votes than there are.")
            nothing, last = tuple(Votes(0, (0,) * len(each.counts)) for each in last[1]), None
            return nothing
        known, votes = waiting.pop()
        same = ("stage", "start", "source")
        if any(getattr(request, name) != getattr(known, name) for name in same):
            raise UsageError(f"the procedure requests {_named(request)}, but the next votes are {_named(known)}.")
        for each in votes:
            late = request.deadline is not None and each.n < request.n and (each.n or _continues(request, last))
            if not (each.n == request.n or late) or min(each.counts, default=0) < 0 or sum(each.counts) > each.n:
                raise UsageError(f"the procedure requests {_named(request)}, but these are not as many votes.")
        last = (replace(request, n=votes[0].n), votes)
        return votes

    found = answer(steps, draw)
    if waiting:
        raise UsageError(f"there are more votes than the procedure needs, such as {_named(waiting[-1][0])}.")
    return found


def _continues(request: Draw, last: Drawn | None) -> bool:
    """Whether a request asks for more of the same votes; if it may be late, it may then be sent none."""
    if last is None:
        return False
    before = last[0]
    return (request.stage, request.source, request.start) == (before.stage, before.source, before.stop)


def _named(request: Draw) -> str:
    return f"{request.n} from number {request.start} of stage {request.stage}"
