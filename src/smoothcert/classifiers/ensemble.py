"""Several classifiers that vote as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.types import UsageError, unknown_name


class Ensemble(nn.Module):
    """A classifier whose logits are the vote of its members (Horváth, Müller, Fischer and Vechev, 2022, Eq. 2).

    An ensemble is a base classifier like any other: its members see the same noisy copy, and its certificate needs no
    correction. Members run one after the other on the same batch, which is never copied; they may be of different
    architectures, each with an input normalisation of its own.

    Args:
        members: Classifiers from a batch to logits, the most accurate first.
        vote: A name in ``VOTES``: ``"soft"`` for the mean of the logits, ``"softmax"`` for the mean of the softmax
            (given as its logarithm), ``"hard"`` for the number of members that choose a class, ties broken by the sum
            of the logits, ``"weighted"`` for soft voting with weights of their own.
        weights: How much each member counts, with any vote; needed with ``"weighted"`` (see ``fit_weights``).

    Raises:
        UsageError: If there are no members, the vote is unknown, or the weights do not fit.

    Example:
        >>> ensemble = Ensemble([nn.Linear(4, 3), nn.Linear(4, 3)], vote="hard")
        >>> ensemble(torch.rand(5, 4)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        members: Sequence[Callable[[Tensor], Tensor]],
        vote: str = "soft",
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if not members:
            raise UsageError("an ensemble needs at least one member.")
        if vote not in VOTES:
            raise unknown_name("vote", vote, VOTES)
        if vote == "weighted" and weights is None:
            raise UsageError("weighted voting needs weights, one for each member; find them with fit_weights.")
        self.members = nn.ModuleList(as_module(member) for member in members)
        self.vote = vote
        self.shares = normalised(weights if weights is not None else [1.0] * len(members), len(members))

    def forward(self, x: Tensor) -> Tensor:
        return VOTES[self.vote](all_logits(self.members, x), self.shares)

    def parts(self) -> list[nn.Module]:
        """The members, each of which must be a fixed function of one row."""
        return list(self.members)

    def extra_repr(self) -> str:  # of which runs keep a hash, so it holds all that decides a vote
        return f"vote={self.vote!r}, shares={self.shares}"


def soft(logits: list[Tensor], shares: Sequence[float]) -> Tensor:
    """The weighted mean of the members' logits."""
    total = logits[0] * shares[0]
    for given, share in zip(logits[1:], shares[1:], strict=True):
        total = total + given * share
    return total


def softmax(logits: list[Tensor], shares: Sequence[float]) -> Tensor:
    """The logarithm of the weighted mean of the members' softmax."""
    counted = [
        F.log_softmax(given, dim=1) + math.log(share) for given, share in zip(logits, shares, strict=True) if share > 0
    ]
    return torch.where(_valid(logits), torch.logsumexp(torch.stack(counted), dim=0), torch.nan)


def hard(logits: list[Tensor], shares: Sequence[float]) -> Tensor:
    """The share of members that choose each class; the first by votes, then by the sum of the logits, gets a bonus."""
    total = soft(logits, shares)
    classes = total.shape[1]
    chosen = [F.one_hot(given.argmax(dim=1), classes) * share for given, share in zip(logits, shares, strict=True)]
    votes = torch.stack(chosen).sum(dim=0).to(total.dtype)
    most = votes.max(dim=1, keepdim=True).values - _EQUAL
    winner = torch.where(votes >= most, total, -torch.inf).argmax(dim=1)
    return torch.where(_valid(logits), votes + _BONUS * F.one_hot(winner, classes), torch.nan)


def _valid(logits: list[Tensor]) -> Tensor:
    """Rows on which all members give finite logits, as a column; the others vote for nobody."""
    return torch.stack([given.isfinite().all(dim=1) for given in logits]).all(dim=0)[:, None]


_EQUAL, _BONUS = 1e-5, 1e-3  # shares closer than this are equal; what makes the winner of a tie the only largest

VOTES: dict[str, Callable[[list[Tensor], Sequence[float]], Tensor]] = {
    "soft": soft,
    "hard": hard,
    "softmax": softmax,
    "weighted": soft,
}
"""How members' logits become those of the ensemble, given the share of each member."""


def all_logits(members: Sequence[nn.Module] | nn.ModuleList, x: Tensor) -> list[Tensor]:
    """The logits of each member.

    Raises:
        UsageError: If members disagree on the number of classes.
    """
    # Each member gets and gives memory that the others cannot overwrite.
    logits = [member(x.clone()).clone() for member in members]
    classes = [given.shape[-1] for given in logits]
    if len(set(classes)) > 1:
        raise UsageError(
            f"the members of an ensemble must have the same classes, but give {', '.join(map(str, classes))} logits."
        )
    return logits


def normalised(weights: Sequence[float], count: int) -> list[float]:
    """Weights as shares of 1.

    Raises:
        UsageError: If there are not ``count``, one is negative or not finite, or all are zero.
    """
    values = [float(weight) for weight in weights]
    if len(values) != count:
        raise UsageError(f"there are {len(values)} weights for {count} members; give one for each.")
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise UsageError(f"weights must be finite numbers that are not negative, got {values}.")
    if not sum(values) > 0:
        raise UsageError("all weights are zero; give at least one member a weight above 0.")
    return [value / sum(values) for value in values]


def as_module(member: Callable[[Tensor], Tensor]) -> nn.Module:
    """The member itself, or a module around a plain callable."""
    return member if isinstance(member, nn.Module) else _Callable(member)


class _Callable(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
