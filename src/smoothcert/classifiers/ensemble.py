"""Ensembles: several classifiers that vote as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.classifiers.composite import Composite
from smoothcert.classifiers.copying import Forward
from smoothcert.types import UsageError, unknown_name


class Ensemble(Composite):
    """A classifier whose logits are the vote of its members (Horváth, Müller, Fischer and Vechev, 2022, Eq. 2).

    The members classify the same noisy copy, so the ensemble is a base classifier and its certificate needs no
    correction. Members may have different architectures and input normalisations.

    Args:
        members: Classifiers from a batch to logits, the most accurate first.
        vote: A name in ``VOTES``: ``"soft"`` for the mean of the logits, ``"softmax"`` for the logarithm of the mean
            softmax, ``"hard"`` for the number of members that choose a class, ties broken by the sum of the logits,
            ``"weighted"`` for soft voting with weights.
        weights: The weight of each member, with any vote; required with ``"weighted"`` (see ``fit_weights``).

    Raises:
        UsageError: If there are no members, the vote is unknown, or the weights do not fit.

    Example:
        >>> ensemble = Ensemble([nn.Linear(4, 3), nn.Linear(4, 3)], vote="hard")
        >>> ensemble(torch.rand(5, 4)).shape
        torch.Size([5, 3])
    """

    def __init__(self, members: Sequence[Forward], vote: str = "soft", weights: Sequence[float] | None = None) -> None:
        super().__init__()
        if not members:
            raise UsageError("an ensemble needs at least one member.")
        if vote not in VOTES:
            raise unknown_name("vote", vote, VOTES)
        if vote == "weighted" and weights is None:
            raise UsageError("weighted voting needs weights, one for each member; find them with fit_weights.")
        self.members = nn.ModuleList(as_module(member) for member in members)
        self.vote = vote
        self.shares = normalised(weights, len(members))

    def forward(self, x: Tensor) -> Tensor:
        return VOTES[self.vote](all_logits(self.members, x), self.shares)

    def parts(self) -> list[nn.Module]:
        """Return the members; each must be a fixed function of one row."""
        return list(self.members)

    def extra_repr(self) -> str:  # runs record a hash of it, so it contains all that decides a vote
        return f"vote={self.vote!r}, shares={self.shares}"


def soft(logits: list[Tensor], shares: Sequence[float]) -> Tensor:
    """Return the weighted sum of the members' logits."""
    total = logits[0] * shares[0]
    for each, share in zip(logits[1:], shares[1:], strict=True):
        total = total + each * share
    return total


def softmax(logits: list[Tensor], shares: Sequence[float]) -> Tensor:
    """Return the logarithm of the weighted mean of the members' softmax."""
    used = [F.log_softmax(each, dim=1) + math.log(s) for each, s in zip(logits, shares, strict=True) if s > 0]
    return torch.where(_valid(logits), torch.logsumexp(torch.stack(used), dim=0), torch.nan)


def hard(logits: list[Tensor], shares: Sequence[float]) -> Tensor:
    """Return the share of members that choose each class, and a bonus for the winner, which the sum of logits decides
    where shares are equal."""
    total = soft(logits, shares)
    classes = total.shape[1]
    chosen = [F.one_hot(each.argmax(dim=1), classes) * share for each, share in zip(logits, shares, strict=True)]
    votes = torch.stack(chosen).sum(dim=0).to(total.dtype)
    most = votes.max(dim=1, keepdim=True).values - _EQUAL
    winner = torch.where(votes >= most, total, -torch.inf).argmax(dim=1)
    return torch.where(_valid(logits), votes + _BONUS * F.one_hot(winner, classes), torch.nan)


def _valid(logits: list[Tensor]) -> Tensor:
    """Return a column: the rows on which all members have finite logits; other rows vote for no class."""
    return torch.stack([each.isfinite().all(dim=1) for each in logits]).all(dim=0)[:, None]


_EQUAL, _BONUS = 1e-5, 1e-3  # shares closer than this are equal; the bonus makes the winner of a tie the only maximum

VOTES: dict[str, Callable[[list[Tensor], Sequence[float]], Tensor]] = {
    "soft": soft,
    "hard": hard,
    "softmax": softmax,
    "weighted": soft,
}
"""Functions from the members' logits and weights, which sum to 1, to the logits of the ensemble."""


def all_logits(members: Sequence[nn.Module] | nn.ModuleList, x: Tensor) -> list[Tensor]:
    """Return the logits of each member, in at least single precision.

    Each member gets a copy of the batch, and its logits are copied, so that no member can overwrite those of another.

    Raises:
        UsageError: If members have different numbers of classes.
    """
    outputs = [member(x.clone()) for member in members]
    logits = [each.to(torch.promote_types(each.dtype, torch.float32), copy=True) for each in outputs]
    same_classes([each.shape[-1] for each in logits])
    return logits


def same_classes(classes: Sequence[int]) -> None:
    if len(set(classes)) > 1:
        numbers = ", ".join(map(str, classes))
        raise UsageError(f"the members of an ensemble must have the same classes, but return {numbers} logits.")


def normalised(weights: Sequence[float] | None, count: int) -> list[float]:
    """Scale weights to sum to 1; equal ones by default.

    Raises:
        UsageError: If there are not ``count``, one is negative or not finite, or all are zero.
    """
    values = [1.0] * count if weights is None else [float(weight) for weight in weights]
    if len(values) != count:
        raise UsageError(f"there are {len(values)} weights for {count} members; give one for each.")
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise UsageError(f"weights must be finite numbers that are not negative, got {values}.")
    if not sum(values) > 0:
        raise UsageError("all weights are zero; give at least one member a weight above 0.")
    return [value / sum(values) for value in values]


def as_module(member: Forward) -> nn.Module:
    return member if isinstance(member, nn.Module) else _Callable(member)


class _Callable(nn.Module):
    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
