"""Certificates, votes, norms, guarantees and errors, which all other modules use."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal
from enum import Enum
from typing import TypeAlias, TypeVar

StrPath: TypeAlias = str | os.PathLike[str]

ABSTAIN = -1
"""The label of an abstention; never a class."""

CORE, CERTIFIER = 0, 1
"""The choices of the selector of ACES: an accurate model without a guarantee, and a smoothed one."""

LARGEST_RADIUS = 1e15
"""Sanity limit for radii that are read from files."""


class Norm(str, Enum):
    """The norm in which a radius is measured."""

    L0 = "l0"
    L1 = "l1"
    L2 = "l2"
    LINF = "linf"


class Guarantee(str, Enum):
    """What a certificate covers.

    ``GLOBAL``: one smoothed classifier answers every input, so all certificates are consistent.
    ``POINTWISE``: the noise was chosen for this input; another classifier may answer another input.
    ``MEMORY``: as pointwise, but cut so that no two stored balls of different classes meet.
    ``ROUTED``: a selector, itself certified within the radius, chose the noise.
    """

    GLOBAL = "global"
    POINTWISE = "pointwise"
    MEMORY = "memory"
    ROUTED = "routed"


class Outcome(str, Enum):
    """The result for a target radius; without a target, whether any radius was proved.

    ``CERTIFIED``: the smoothed classifier is robust there. ``REFUTED``: the guessed class is too unlikely for it, so
    more samples would not help. ``UNDECIDED``: the samples ran out.
    """

    CERTIFIED = "certified"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


class Arithmetic(str, Enum):
    """How noise was added to the input.

    ``EXACT``: in whole numbers, so the theorem holds for the computed copies. ``FLOAT``: in floating point, so it holds
    only up to rounding, which a classifier that reads the last bits of its input can exploit.
    """

    EXACT = "exact"
    FLOAT = "float"


@dataclass(frozen=True)
class Votes:
    """A histogram of one statistic over noisy copies of one input.

    Attributes:
        n: Noisy copies, those with invalid logits included.
        counts: Copies per value of the statistic (for votes: per class), those with invalid logits excluded.
        checkpoints: The same counts over the first 10, 100, 1000, … copies, below ``n``.
    """

    n: int
    counts: tuple[int, ...]
    checkpoints: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The certified choice of the classifier that answers an input, with fields as in :class:`Certificate`.

    Attributes:
        choice: The expert that the smoothed selector certifiably chooses (for ACES: ``CERTIFIER`` or ``CORE``), or
            ``ABSTAIN``.
        counts: Votes per expert; for ACES, copies per threshold (see ``sampling.Entropy``). Likewise ``selection``.
        core: The class of a core without a certificate, if it was called.
        shared: Whether the samples are those of the certificate.
    """

    choice: int
    radius: float
    p_lower: float
    n: int
    counts: tuple[int, ...]
    n0: int
    selection: tuple[int, ...]
    core: int | None = None
    shared: bool = False


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A proved statement: within ``radius`` of the input the smoothed classifier answers ``label``.

    The statement is wrong with probability at most ``alpha`` over the noise drawn. An abstention has the label
    ``ABSTAIN`` and radius 0.

    Attributes:
        alpha_split: The shares of ``alpha`` by the name of the bound that uses each.
        n: Estimation samples, those with invalid logits included.
        counts: Votes per class among them.
        p_lower: The lower bound on the probability of the guessed class.
        n0: Selection samples.
        selection: Votes per class among them.
        noise: The noise as text, for example ``Gaussian(sigma=0.5)``.
        index: The input index that entered the noise seed.
        outcome: The outcome at the largest target radius.
        checkpoints: Cumulative ``counts`` at every power of ten below ``n``.
        decisions: The outcome at every target radius.
        stages: The votes of each stage, if the procedure has stages and bounds only one of them.
        routing: The choice of the classifier that answers, if that was certified too.
        offset: Distance in ``norm`` from the input to the nearest grid point, already subtracted from ``radius``; 0
            unless the noise is on a grid.
        runtime: The runtime of the model, such as ``"eager"``.
        model: The identity of the classifier, a SHA-256 in hexadecimal.
        input: A hash of the input's values.
    """

    label: int
    radius: float
    norm: Norm
    guarantee: Guarantee
    alpha: float
    alpha_split: Mapping[str, float]
    n: int
    counts: tuple[int, ...]
    p_lower: float
    n0: int
    selection: tuple[int, ...]
    noise: str
    seed: int
    index: int
    outcome: Outcome
    checkpoints: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    decisions: Mapping[float, Outcome] = field(default_factory=dict)
    stages: tuple[Votes, ...] = ()
    routing: Routing | None = None
    arithmetic: Arithmetic = Arithmetic.FLOAT
    offset: float = 0.0
    runtime: str | None = None
    model: str | None = None
    input: str | None = None

    @property
    def abstained(self) -> bool:
        return self.label == ABSTAIN

    @property
    def samples(self) -> int:
        """All samples drawn, selection included."""
        own = self.n0 + self.n
        return own if self.routing is None or self.routing.shared else own + self.routing.n0 + self.routing.n

    def __str__(self) -> str:
        if self.abstained:
            return f"abstain (n = {self.n}, alpha = {self.alpha:g})"
        return (
            f"class {self.label} within {self.norm.value} radius {radius_text(self.radius)} "
            f"(n = {self.n}, alpha = {self.alpha:g}, guarantee {self.guarantee.value})"
        )


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The class of the smoothed classifier at one input, wrong with probability at most ``alpha``; without a radius.

    The fields are those of :class:`Certificate`; ``p_value`` is that of the two-sided test between the two most
    frequent classes.
    """

    label: int
    p_value: float
    alpha: float
    n: int
    counts: tuple[int, ...]
    noise: str
    seed: int
    index: int

    @property
    def abstained(self) -> bool:
        return self.label == ABSTAIN


def radius_text(radius: float, digits: int = 3) -> str:
    """Return a radius as decimal text, rounded **down**: no printed radius exceeds the proved one.

    Example:
        >>> radius_text(0.24996, 3)
        '0.249'
    """
    return str(Decimal(radius).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_FLOOR))


class SmoothcertError(Exception):
    """Base of the errors that this package raises on purpose: one sentence with what is wrong and what to do."""

    exit_code = 1


E = TypeVar("E", bound=SmoothcertError)


def wrong_path(error: E) -> E:
    """Mark an error as about a path that does not exist, for which the command line exits with 2."""
    error.exit_code = 2
    return error


class UsageError(SmoothcertError, ValueError):
    """An invalid argument; the command line exits with 2."""

    exit_code = 2


class DataError(SmoothcertError):
    """A dataset file that is missing, damaged or of another kind."""


class CheckpointError(SmoothcertError):
    """A checkpoint that is missing, damaged or of another model."""


class LogError(SmoothcertError):
    """A file that is not a certification log, or a damaged one."""


class RunError(SmoothcertError):
    """A run folder that cannot be read, written or continued."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the error for a name that is not registered, with similar names.

    Example:
        >>> print(unknown_name("dataset", "cifra10", ["cifar10", "mnist"]))
        unknown dataset 'cifra10'; did you mean 'cifar10'? Known: cifar10, mnist.
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3)
    hint = f" did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    return UsageError(f"unknown {kind} {name!r};{hint} Known: {', '.join(names)}.")
