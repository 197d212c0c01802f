"""K-consensus: an ensemble that runs its later members only where the first ones disagree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from weakref import WeakSet

import torch
from torch import Tensor, nn

from smoothcert.classifiers.composite import Composite
from smoothcert.classifiers.copying import Forward
from smoothcert.classifiers.ensemble import all_logits, as_module, normalised, same_classes, soft
from smoothcert.types import UsageError

_SAME_CLASSES: WeakSet[nn.Module] = WeakSet()
"""Consensuses whose members have the same classes; not stored on them, because a model must not change."""


class Consensus(Composite):
    """The class of the first K members where they agree, and the soft vote of all members elsewhere.

    Horváth, Müller, Fischer and Vechev (2022), §6. With a margin, the class must also lead by as much in the soft vote
    of the first members: the other members often change a class that leads by less, and these few copies cost much of
    the radius that the ensemble gains. The decision depends on one noisy copy, so this is a base classifier. The
    sampler runs its two parts separately: only copies that :attr:`head` leaves undecided reach :attr:`rest`, in full
    batches over all inputs.

    Args:
        members: Classifiers from a batch to logits, the most accurate first (see ``rank_members``).
        first: K, how many members must agree.
        weights: The weight of each member in soft voting; equal by default.
        margin: The required lead in the soft vote of the first members (see ``fit_margin``); 0 as in the paper.

    Raises:
        UsageError: If K is not between 1 and the number of members, the weights do not fit, or the margin is negative.

    Example:
        >>> consensus = Consensus([nn.Linear(4, 3) for _ in range(5)], first=2)
        >>> consensus(torch.rand(7, 4)).shape
        torch.Size([7, 3])
    """

    def __init__(
        self, members: Sequence[Forward], first: int, weights: Sequence[float] | None = None, *, margin: float = 0.0
    ) -> None:
        super().__init__()
        if isinstance(first, bool) or not isinstance(first, int) or not 1 <= first <= len(members):
            raise UsageError(f"K must be between 1 and the number of members, {len(members)}; got {first!r}.")
        if not 0 <= margin < math.inf:
            raise UsageError(f"the margin of a consensus must be a number that is not negative, got {margin!r}.")
        shares = normalised(weights, len(members))
        if not sum(shares[:first]) > 0:
            raise UsageError(f"the first {first} members all have weight zero; order them by weight.")
        modules = [as_module(member) for member in members]
        self.first = first
        self.margin = float(margin)
        self.head = _Stacked(modules[:first])
        self.rest = _Sum(modules[first:], shares[first:]) if first < len(modules) else None
        self.shares = shares

    def forward(self, x: Tensor) -> Tensor:
        given = self.head(x)
        if self.rest is not None and self not in _SAME_CLASSES:  # also where the first members never disagree
            self.join(given[:1], self.rest(x[:1]))
            _SAME_CLASSES.add(self)
        logits, undecided = self.split(given)
        if self.rest is not None and bool(undecided.any()):
            logits[undecided] = self.join(given[undecided], self.rest(x[undecided])).to(logits.dtype)
        return logits

    def parts(self) -> list[nn.Module]:
        """Return the members; each must be a fixed function of one row."""
        return [*self.head.members, *(self.rest.members if self.rest is not None else ())]

    def split(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """Return the soft vote of the first members, and a mask of the rows that it does not decide.

        A row with an invalid logit votes for no class, so it is decided.

        Args:
            given: The output of :attr:`head`.
        """
        each = given.reshape(len(given), self.first, -1)
        share = sum(self.shares[: self.first])
        logits = soft(list(each.unbind(1)), [weight / share for weight in self.shares[: self.first]])
        chosen = each.argmax(dim=2)
        undecided = (chosen != chosen[:, :1]).any(dim=1)
        if self.margin:
            best, second = logits.topk(2, dim=1).values.unbind(1)
            undecided |= best - second < self.margin
        undecided &= each.isfinite().flatten(1).all(dim=1)
        return logits, undecided if self.rest is not None else torch.zeros_like(undecided)

    def join(self, given: Tensor, rest: Tensor) -> Tensor:
        """Return the soft vote of all members from the outputs of :attr:`head` and :attr:`rest` for the same rows."""
        each = given.reshape(len(given), self.first, -1)
        same_classes([each.shape[2], rest.shape[1]])
        return soft(list(each.unbind(1)), self.shares[: self.first]) + rest

    def extra_repr(self) -> str:
        return f"first={self.first}, shares={self.shares}" + (f", margin={self.margin}" if self.margin else "")


class _Stacked(nn.Module):
    """Concatenates the logits of all members."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(all_logits(self.members, x), dim=1)


class _Sum(nn.Module):
    """Computes the weighted sum of the members' logits."""

    def __init__(self, members: Sequence[nn.Module], shares: Sequence[float]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self._shares = list(shares)

    def forward(self, x: Tensor) -> Tensor:
        return soft(all_logits(self.members, x), self._shares)
