"""The words every other module speaks: certificates, norms, guarantees and errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal
from enum import Enum
from typing import TypeVar

ABSTAIN = -1
"""The label of an answer that could not be given with confidence; never a class."""


CORE, CERTIFIER = 0, 1
"""What the selector of ACES chooses between: an accurate model without a guarantee, and a smoothed one."""


LARGEST_RADIUS = 1e15
"""What no radius exceeds; a larger one in a file is damage, and too long for tables."""


class Norm(str, Enum):
    """The norm in which a radius is measured."""

    L0 = "l0"
    L1 = "l1"
    L2 = "l2"
    LINF = "linf"


class Guarantee(str, Enum):
    """What a certificate covers.

    ``GLOBAL``: one smoothed classifier answers for every input, so all certificates hold together.
    ``POINTWISE``: the noise was chosen for this input alone; another input may be answered by another classifier.
    ``MEMORY``: as pointwise, but cut so that no two stored balls of different classes meet.
    ``ROUTED``: the noise was chosen by a selector that is itself certified within the radius.
    """

    GLOBAL = "global"
    POINTWISE = "pointwise"
    MEMORY = "memory"
    ROUTED = "routed"


class Outcome(str, Enum):
    """What a procedure found out about a target radius.

    ``CERTIFIED``: the smoothed classifier is robust there. ``REFUTED``: the guessed class is too unlikely for it, so
    more samples would not help. ``UNDECIDED``: the samples ran out. Without a target: whether any radius was proved.
    """

    CERTIFIED = "certified"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


class Arithmetic(str, Enum):
    """How noise was added to the input.

    ``EXACT``: in whole numbers, so the theorem holds for the computed copies themselves. ``FLOAT``: in floating point,
    so it holds only up to rounding, which a classifier that reads the last bits of its input can exploit.
    """

    EXACT = "exact"
    FLOAT = "float"


@dataclass(frozen=True)
class Votes:
    """A histogram of one statistic over noisy copies of one input.

    Attributes:
        n: The number of noisy copies, invalid ones included.
        counts: Copies per value of the statistic (for votes: per class); invalid copies are in none.
        checkpoints: The same counts over the first 10, 100, 1000, … copies, below ``n``.
    """

    n: int
    counts: tuple[int, ...]
    checkpoints: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How a selector chose who answers for an input, and how far that choice holds.

    Attributes:
        choice: The expert that the smoothed selector certifiably chooses (for ACES: 1 the certifier, 0 the core), or
            ``ABSTAIN``.
        radius: How far; 0 when abstaining.
        p_lower: The lower bound on the probability of the guessed choice.
        n: The number of estimation samples.
        counts: Votes per expert among them; for ACES, copies per threshold (see ``sampling.Entropy``).
        n0: The number of selection samples.
        selection: The same counts among the selection samples.
        core: The class that a core without a certificate gives the input, if one was asked.
        shared: Whether the samples are those of the certificate itself.
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

    The statement is wrong with probability at most ``alpha`` over the noise drawn. ``counts`` are the votes of the
    estimation samples per class; votes with invalid logits are in ``n`` and in no class.

    Attributes:
        label: The certified class, or ``ABSTAIN``.
        radius: The certified radius in ``norm``; 0 when abstaining.
        norm: The norm of the radius.
        guarantee: What the certificate covers.
        alpha: The probability of a wrong statement.
        alpha_split: How ``alpha`` was divided among the bounds used, by name.
        n: The number of estimation samples.
        counts: Votes per class among the ``n`` samples.
        p_lower: The lower bound on the probability of the guessed class.
        n0: The number of selection samples.
        selection: Votes per class among the ``n0`` samples.
        noise: The noise as text, for example ``Gaussian(sigma=0.5)``.
        seed: The seed of the noise.
        index: The input index that entered the noise seed.
        checkpoints: Cumulative ``counts`` at every power of ten below ``n``.
        outcome: What was found out about the target radius; with several targets, about the largest.
        decisions: The outcome at every target radius.
        stages: The votes of each stage, where a procedure draws several and the bound is about one of them.
        routing: How it was chosen who answers, where that was certified too.
        arithmetic: How noise was added to the input.
        offset: Distance in ``norm`` from the input to the grid point it was taken as, already taken off ``radius``;
            0 unless the noise lives on a grid.
        runtime: How the model was run, such as ``"eager"``.
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
    """The class of the smoothed classifier at one input, wrong with probability at most ``alpha``; no radius.

    Attributes:
        label: The predicted class, or ``ABSTAIN``.
        p_value: The p-value of the two-sided test between the two most frequent classes.
        alpha: The probability of a wrong class.
        n: The number of samples.
        counts: Votes per class.
        noise: The noise as text.
        seed: The seed of the noise.
        index: The input index that entered the noise seed.
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
    """A radius as decimal text, rounded **down**: what is printed is never more than what was proved.

    Example:
        >>> radius_text(0.24996, 3)
        '0.249'
    """
    return str(Decimal(radius).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_FLOOR))


class SmoothcertError(Exception):
    """Every error this package raises on purpose: one sentence that says what was wrong and what to do."""

    exit_code = 1


E = TypeVar("E", bound=SmoothcertError)


def wrong_path(error: E) -> E:
    """The error about a path that does not lead to anything: wrong use, so the command line exits with 2."""
    error.exit_code = 2
    return error


class UsageError(SmoothcertError, ValueError):
    """An argument that cannot be right; the command line exits with 2."""

    exit_code = 2


class DataError(SmoothcertError):
    """A dataset file that is missing, damaged or of another kind."""


class CheckpointError(SmoothcertError):
    """A checkpoint that is missing, damaged or does not fit the model."""


class LogError(SmoothcertError):
    """A certification log that does not read as one."""


class RunError(SmoothcertError):
    """A run folder that cannot be read, written or continued."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is in no registry, with the close ones named.

    Example:
        >>> print(unknown_name("dataset", "cifra10", ["cifar10", "mnist"]))
        unknown dataset 'cifra10'; did you mean 'cifar10'? Known: cifar10, mnist.
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3)
    hint = f" did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
    return UsageError(f"unknown {kind} {name!r};{hint} Known: {', '.join(names)}.")
