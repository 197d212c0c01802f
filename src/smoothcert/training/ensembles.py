"""Fit an ensemble on held-out inputs: the order of its members, their weights, and the margin of a consensus."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from scipy import special
from torch import Tensor, nn

from smoothcert.certify import Smoothed
from smoothcert.classifiers import Consensus
from smoothcert.classifiers.sealed import Sealed
from smoothcert.evaluate import count_votes
from smoothcert.noise import Noise
from smoothcert.sampling.member_logits import member_logits
from smoothcert.sampling.seeds import BLOCK, HOLDOUT
from smoothcert.types import UsageError

Members = Sequence[Callable[[Tensor], Tensor]]


class Ranked(NamedTuple):
    """A member: its index among those passed, and the share of noisy copies that it classifies correctly."""

    position: int
    accuracy: float


def rank_members(
    members: Members, x: Tensor, y: Tensor, noise: Noise, *, copies: int = BLOCK, seed: int = 0, progress: bool = False
) -> list[Ranked]:
    """Order members by their accuracy under noise, as K-consensus needs it (Horváth et al., 2022, §6).

    Args:
        x: Inputs that neither training nor certification uses.
        y: Their labels.
        noise: The noise of the later certification.
        copies: Noisy copies of each input, the same for all members.
        progress: Whether to show a progress bar on stderr.

    Returns:
        The members, best first; equal ones in their order.

    Example:
        >>> import torch
        >>> from smoothcert import Gaussian
        >>> x = torch.rand(50, 3)
        >>> guesses = lambda x: x.flip(1)
        >>> [best, worst] = rank_members([guesses, torch.nn.Identity()], x, x.argmax(1), Gaussian(0.1))
        >>> best.position
        1
    """
    _check(members, x, y, copies)
    held_out = list(zip(x, y.tolist(), strict=True))
    ranked, classes = [], set[int]()
    for position, member in enumerate(members):
        smoothed = Smoothed(member, noise, input_range=None)
        title = f"member {position + 1} of {len(members)}"
        votes = count_votes(smoothed, held_out, copies, seed=seed, stage=HOLDOUT, title=title, progress=progress)
        right = sum(int(row[label]) for row, (_, label) in zip(votes, held_out, strict=True) if label < len(row))
        ranked.append(Ranked(position, right / (len(x) * copies)))
        classes.add(votes.shape[1])
    if len(classes) > 1:
        raise UsageError(f"every member must return logits of the same classes, got {sorted(classes)} classes.")
    return sorted(ranked, key=lambda member: -member.accuracy)


class Fitted(NamedTuple):
    """The members of an ensemble, best first, their weights in that order, and the margin of the first two."""

    ranked: list[Ranked]
    weights: tuple[float, ...]
    margin: float


def fit_ensemble(
    members: Sequence[nn.Module],
    inputs: Sequence[tuple[Any, Any]],
    noise: Noise,
    *,
    copies: int = BLOCK,
    seed: int = 0,
    weighted: bool = False,
    progress: bool = False,
) -> Fitted:
    """Find the order of members on one device, their weights, and the margin of a consensus of two.

    ``inputs`` are pairs of input and label. The margin uses ten times as many copies, and is that of soft voting with
    the weights if ``weighted``. The other arguments are those of :func:`rank_members`.
    """
    if len(members) < 2:
        raise UsageError("an ensemble has several members; name at least two models or two denoisers.")
    like = next(members[0].parameters())
    x = torch.stack([torch.as_tensor(image) for image, _ in inputs]).to(like)
    y = torch.tensor([int(label) for _, label in inputs], device=like.device)
    ranked = rank_members(members, x, y, noise, copies=copies, seed=seed, progress=progress)
    ordered = [members[member.position] for member in ranked]
    weights = fit_weights(ordered, x, y, noise, copies=copies, seed=seed, progress=progress)
    used = weights if weighted else None
    margin = fit_margin(ordered, 2, x, noise, weights=used, copies=10 * copies, seed=seed, progress=progress)
    return Fitted(ranked, weights, margin)


def fit_weights(
    members: Members, x: Tensor, y: Tensor, noise: Noise, *, copies: int = BLOCK, seed: int = 0, progress: bool = False
) -> tuple[float, ...]:
    """Find weights for soft voting that minimise the cross-entropy under noise on held-out inputs.

    Horváth et al. (2022), App. H.3.1, after Liu et al. (2020). The cross-entropy is convex in the weights, which are
    not negative and sum to 1. The arguments are those of :func:`rank_members`.
    """
    _check(members, x, y, copies)
    logits = np.concatenate(list(_noisy_logits(members, x, noise, copies, seed, progress)), axis=1)
    labels = np.repeat(y.cpu().numpy(), copies)
    valid = np.isfinite(logits).all(axis=(0, 2))
    if not valid.any():
        raise UsageError("no noisy copy has finite logits in all members; check the models.")
    logits, labels = logits[:, valid], labels[valid]
    of_label = logits[:, np.arange(len(labels)), labels]

    def cross_entropy(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
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
    weights = np.where(found.x > 1e-9, found.x, 0.0)  # the solver stops a rounding error before the bound
    return tuple((weights / weights.sum()).tolist())


def fit_margin(
    members: Members,
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
    """Find the smallest margin at which a ``Consensus`` almost always decides as all its members do.

    At this margin, rounded up to three digits, the first K = ``first`` members decide differently from the soft vote of
    all on at most this share of the noisy copies of held-out inputs; it is 0 if agreement is sufficient. A poor choice
    costs radius, not soundness. The weights are those of soft voting; the other arguments those of
    :func:`rank_members`.

    Example:
        >>> import torch
        >>> from smoothcert import Gaussian
        >>> fit_margin([torch.nn.Identity(), torch.nn.Identity()], 1, torch.rand(5, 3), Gaussian(0.1))
        0.0
    """
    if not 0 <= share < 1:
        raise UsageError(f"the share of copies decided differently must be at least 0 and below 1, got {share!r}.")
    _check(members, x, x, copies)
    shares = np.array(Consensus(members, first, weights).shares)
    leads: list[NDArray[np.float64]] = []
    for logits in _noisy_logits(members, x, noise, copies, seed, progress):
        head = np.tensordot(shares[:first] / shares[:first].sum(), logits[:first], axes=1)
        every = np.tensordot(shares, logits, axes=1)
        chosen = logits[:first].argmax(axis=2)
        agree = (chosen == chosen[:1]).all(axis=0) & np.isfinite(logits).all(axis=(0, 2))
        different = agree & (every.argmax(axis=1) != chosen[0])
        second, best = np.sort(head[different], axis=1)[:, -2:].T
        leads.append(best - second)
    found = np.sort(np.concatenate(leads))[::-1]
    allowed = int(share * copies * len(x))
    if len(found) <= allowed:
        return 0.0
    lead = float(found[allowed])
    unit = 10.0 ** (math.floor(math.log10(lead)) - 2) if lead > 0 else 1e-6
    return float(f"{(math.floor(lead / unit) + 1) * unit:.6g}")


def _noisy_logits(
    members: Members, x: Tensor, noise: Noise, copies: int, seed: int, progress: bool
) -> Iterator[NDArray[np.float64]]:
    """Yield the logits (member, copy, class) of all members on noisy copies of each input."""
    sealed = [Sealed(member) for member in members]  # once for all inputs
    console = Console(stderr=True)
    for index, image in track(list(enumerate(x)), "evaluate members", console=console, disable=not progress):
        yield member_logits(sealed, image, noise, n=copies, seed=seed, index=index, stage=HOLDOUT).noisy


def _check(members: Members, x: Tensor, y: Tensor, copies: int) -> None:
    if not members or not len(x):
        raise UsageError("the evaluation of members needs at least one member and one input.")
    if len(x) != len(y) or copies < 1:
        raise UsageError(
            f"the evaluation of members needs a label for each input and at least one copy, got {len(y)} and {copies}."
        )
