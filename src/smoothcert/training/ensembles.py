"""What an ensemble learns from inputs kept out: the order of its members, their weights, when the first suffice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from scipy import special
from torch import Tensor, nn

from smoothcert.classifiers import Consensus
from smoothcert.classifiers.sealed import Sealed
from smoothcert.noise import Noise
from smoothcert.sampling.member_logits import member_logits
from smoothcert.sampling.seeds import BLOCK, HOLDOUT
from smoothcert.types import UsageError


@dataclass(frozen=True)
class Ranked:
    """A member and how good it is.

    Attributes:
        position: Its place among the members given, from 0.
        accuracy: The share of noisy copies it classifies correctly.
    """

    position: int
    accuracy: float


def rank_members(
    members: Sequence[Callable[[Tensor], Tensor]],
    x: Tensor,
    y: Tensor,
    noise: Noise,
    *,
    copies: int = BLOCK,
    seed: int = 0,
    progress: bool = False,
) -> list[Ranked]:
    """Order members by their accuracy under noise (Horváth et al., 2022, §6): K-consensus asks the best ones first.

    Args:
        members: The classifiers.
        x: Inputs that neither training nor certification uses.
        y: Their labels.
        noise: The noise the ensemble will be certified with.
        copies: Noisy copies of each input; all members see the same.
        seed: The seed of the noise.
        progress: Whether to show a progress bar on stderr.

    Returns:
        The members, best first; of equal ones the earlier first.

    Raises:
        UsageError: If there is nothing to judge by, or members disagree on the number of classes.

    Example:
        >>> import torch
        >>> from smoothcert import Gaussian
        >>> x = torch.rand(50, 3)
        >>> guesses = lambda x: x.flip(1)
        >>> [best, worst] = rank_members([guesses, torch.nn.Identity()], x, x.argmax(1), Gaussian(0.1))
        >>> best.position
        1
    """
    right = np.zeros(len(members), np.int64)
    for logits, labels in _logits_and_labels(members, x, y, noise, copies, seed, progress):
        right += (logits.argmax(axis=2) == labels).sum(axis=1)
    accuracy = right / (len(x) * copies)
    order = np.argsort(-accuracy, kind="stable")
    return [Ranked(int(position), float(accuracy[position])) for position in order]


@dataclass(frozen=True)
class Fitted:
    """What held-out inputs say about an ensemble.

    Attributes:
        ranked: The members, best first.
        weights: Their weights for weighted voting, in that order.
        margin: The margin of a consensus of the first two.
    """

    ranked: list[Ranked]
    weights: list[float]
    margin: float


def fit_ensemble(
    members: Sequence[nn.Module],
    inputs: Sequence[tuple[Any, Any]],
    noise: Noise,
    *,
    copies: int = BLOCK,
    seed: int = 0,
    progress: bool = False,
) -> Fitted:
    """Order the members of an ensemble, and find their weights and the margin of a consensus of two.

    Args:
        members: The members, on one device.
        inputs: Pairs of input and label that neither training nor certification uses.
        noise: The noise the ensemble will be certified with.
        copies: Noisy copies of each input; ten times as many for the margin.
        seed: The seed of the noise.
        progress: Whether to show progress bars on stderr.

    Raises:
        UsageError: If there are fewer than two members, or nothing to judge by.
    """
    if len(members) < 2:
        raise UsageError("an ensemble has several members; name at least two models, or two denoisers.")
    like = next(members[0].parameters())
    x = torch.stack([torch.as_tensor(image) for image, _ in inputs]).to(like)
    y = torch.tensor([int(label) for _, label in inputs], device=like.device)
    ranked = rank_members(members, x, y, noise, copies=copies, seed=seed, progress=progress)
    ordered = [members[member.position] for member in ranked]
    weights = fit_weights(ordered, x, y, noise, copies=copies, seed=seed, progress=progress)
    margin = fit_margin(ordered, 2, x, noise, copies=10 * copies, seed=seed, progress=progress)
    return Fitted(ranked, [float(weight) for weight in weights], margin)


def fit_weights(
    members: Sequence[Callable[[Tensor], Tensor]],
    x: Tensor,
    y: Tensor,
    noise: Noise,
    *,
    copies: int = BLOCK,
    seed: int = 0,
    progress: bool = False,
) -> tuple[float, ...]:
    """Weights for soft voting that minimise the cross-entropy under noise on inputs kept out.

    Horváth et al. (2022), App. H.3.1, after Liu et al. (2020). The cross-entropy is convex in the weights, which are
    not negative and sum to 1.

    Args:
        members: The classifiers.
        x: Inputs that neither training nor certification uses.
        y: Their labels.
        noise: The noise the ensemble will be certified with.
        copies: Noisy copies of each input.
        seed: The seed of the noise.
        progress: Whether to show a progress bar on stderr.

    Returns:
        A weight for each member.

    Raises:
        UsageError: If there is nothing to judge by, or members disagree on the number of classes.
    """
    parts = list(_logits_and_labels(members, x, y, noise, copies, seed, progress))
    logits = np.concatenate([part for part, _ in parts], axis=1)
    labels = np.concatenate([part for _, part in parts])
    valid = np.isfinite(logits).all(axis=(0, 2))
    if not valid.any():
        raise UsageError("no noisy copy has finite logits in all members; check the models.")
    logits, labels = logits[:, valid], labels[valid]
    of_label = logits[:, np.arange(len(labels)), labels]

    def cross_entropy(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """The loss and its gradient."""
        mixed = np.tensordot(weights, logits, axes=1)
        loss = np.mean(special.logsumexp(mixed, axis=1) - weights @ of_label)
        slope = np.einsum("nc,knc->k", special.softmax(mixed, axis=1), logits) - of_label.sum(axis=1)
        return float(loss), slope / len(labels)

    count = len(members)
    simplex = {"type": "eq", "fun": lambda weights: weights.sum() - 1, "jac": lambda weights: np.ones(count)}
    found = scipy.optimize.minimize(
        cross_entropy,
        np.full(count, 1 / count),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * count,
        constraints=simplex,
        options={"ftol": 1e-10, "maxiter": 500},
    )
    weights = np.where(found.x > 1e-9, found.x, 0.0)  # the solver stops a rounding error short of the edge
    return tuple((weights / weights.sum()).tolist())


def fit_margin(
    members: Sequence[Callable[[Tensor], Tensor]],
    first: int,
    x: Tensor,
    noise: Noise,
    *,
    weights: Sequence[float] | None = None,
    share: float = 1e-4,
    copies: int = 10 * BLOCK,
    seed: int = 0,
    progress: bool = False,
) -> float:
    """The margin of a ``Consensus`` at which it almost always gives the answer of all its members.

    The smallest one, rounded up to three digits, at which the first members decide otherwise than the soft vote of all
    on at most this share of the noisy copies of inputs kept out. Labels are not needed, and a wrong choice costs
    radius, never soundness.

    Args:
        members: The classifiers, in their order.
        first: K, how many members must agree.
        x: Inputs that neither training nor certification uses.
        noise: The noise the ensemble will be certified with.
        weights: How much each member counts in soft voting; equally by default.
        share: The share of all copies that may be decided otherwise.
        copies: Noisy copies of each input.
        seed: The seed of the noise.
        progress: Whether to show a progress bar on stderr.

    Returns:
        The margin; 0 where agreement alone suffices.

    Raises:
        UsageError: If there is nothing to judge by, members disagree on the number of classes, K or the weights do not
            fit, or the share is not between 0 and 1.

    Example:
        >>> import torch
        >>> from smoothcert import Gaussian
        >>> fit_margin([torch.nn.Identity(), torch.nn.Identity()], 1, torch.rand(5, 3), Gaussian(0.1))
        0.0
    """
    if not 0 <= share < 1:
        raise UsageError(f"the share of copies decided otherwise must be at least 0 and below 1, got {share!r}.")
    shares = np.array(Consensus(members, first, weights).shares)
    leads: list[NDArray[np.float64]] = []
    for logits, _ in _logits_and_labels(members, x, torch.zeros(len(x)), noise, copies, seed, progress):
        head = np.tensordot(shares[:first] / shares[:first].sum(), logits[:first], axes=1)
        every = np.tensordot(shares, logits, axes=1)
        chosen = logits[:first].argmax(axis=2)
        agree = (chosen == chosen[:1]).all(axis=0) & np.isfinite(logits).all(axis=(0, 2))
        otherwise = agree & (every.argmax(axis=1) != chosen[0])
        second, best = np.sort(head[otherwise], axis=1)[:, -2:].T
        leads.append(best - second)
    found = np.sort(np.concatenate(leads))[::-1]
    allowed = int(share * copies * len(x))
    return _rounded_up(float(found[allowed])) if len(found) > allowed else 0.0


def _rounded_up(value: float) -> float:
    """A number above this one, with three digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2) if value > 0 else 1e-6
    return float(f"{(math.floor(value / unit) + 1) * unit:.6g}")


def _logits_and_labels(
    members: Sequence[Callable[[Tensor], Tensor]],
    x: Tensor,
    y: Tensor,
    noise: Noise,
    copies: int,
    seed: int,
    progress: bool,
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]:
    """The logits (member, copy, class) of all members on noisy copies, and the labels, an input at a time."""
    if not members or not len(x):
        raise UsageError("judging members takes at least one member and one input.")
    if len(x) != len(y) or copies < 1:
        raise UsageError(f"judging members takes a label for each input and at least one copy, got {len(y)}, {copies}.")
    members = [Sealed(member) for member in members]  # once for all inputs
    rows = list(enumerate(zip(x, y.tolist(), strict=True)))
    for index, (image, label) in track(rows, "judge members", console=Console(stderr=True), disable=not progress):
        drawn = member_logits(members, image, noise, n=copies, seed=seed, index=index, stage=HOLDOUT)
        yield drawn.noisy, np.full(copies, label)
