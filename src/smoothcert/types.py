"""Certificates, votes, norms, guarantees and errors, which all other modules use."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import ROUND_FLOOR, Decimal
from enum import Enum
from typing import Any, ClassVar, TypeAlias, TypeVar

StrPath: TypeAlias = str | os.PathLike[str]

ABSTAIN = -1
"""The label of an abstention; never a class."""

CORE, CERTIFIER = 0, 1
"""The choices of the selector of ACES: an accurate model without a guarantee, and a smoothed one."""

LARGEST_RADIUS = 1e15
"""Sanity limit for radii that are read from files."""

PLAIN, RUNNER_UP = BOUNDS = "plain", "runner-up"
"""What proves a radius: a bound on the top class alone, or one on the runner-up too."""


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

    ``CERTIFIED``: the smoothed classifier is robust there. ``REFUTED``: the guessed class (for ``Anytime``: every
    class) is too unlikely for it, so more samples would not help. ``UNDECIDED``: the samples ran out.
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

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    @property
    def samples(self) -> int:
        """All samples drawn."""
        return self.n

    @property
    def invalid(self) -> int:
        """Samples with invalid logits (NaN or infinite), which are votes for no class."""
        return self.n - sum(self.counts)


def is_certified(p_lower: Any, p_upper: Any = 1.0) -> Any:
    """Return whether bounds on probabilities prove that the smoothed classifier returns a class.

    Args:
        p_lower: A lower bound on the probability of the class, or an array of them.
        p_upper: An upper bound on that of every other class; 1 where there is none.
    """
    return (p_lower > 0.5) | (p_lower > p_upper)


def invalid_text(invalid: int, samples: int) -> str:
    """Write how many samples had invalid logits, as a warning."""
    return (
        f"{invalid:,} of {samples:,} samples had invalid logits (NaN or infinite) and count as votes for no class; "
        "`smoothcert doctor` looks for the reason."
    )


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
    p_upper: float | None = None
    core: int | None = None
    shared: bool = False

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}


class _Stored:
    """Answers that can be written as JSON."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values of JSON; ``from_dict`` returns an equal object."""
        values: dict[str, Any] = _plain(self)
        return values

    @classmethod
    def from_dict(cls: type[S], values: Mapping[str, Any]) -> S:
        """Return what :meth:`to_dict` wrote.

        Names, types and ranges are checked, also for untrusted values. Nothing proves that the votes were drawn: a dict
        from others is as trustworthy as they are.

        Raises:
            UsageError: If a field is missing, unknown, of another type or out of range.
        """
        from pydantic import TypeAdapter, ValidationError  # slow to import

        kind = cls.__name__.lower()
        try:
            text = json.dumps(values, allow_nan=False)
            found = TypeAdapter(cls).validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "it"
            raise UsageError(f"this is not a {kind}: {where}: {first['msg']}.") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"this is not a {kind} in values of JSON: {error}.") from error
        for problem in found._problems():
            raise UsageError(f"this is not a valid {kind}: {problem}.")
        return found

    def _problems(self) -> Iterator[str]:
        """Describe the fields that are out of range."""
        yield from ()


S = TypeVar("S", bound=_Stored)


@dataclass(frozen=True, kw_only=True)
class Certificate(_Stored):
    """A proved statement: within ``radius`` of the input the smoothed classifier answers ``label``.

    The statement is wrong with probability at most ``alpha`` over the noise drawn. An abstention has the label
    ``ABSTAIN`` and radius 0.

    Attributes:
        alpha_split: The shares of ``alpha`` by the name of the bound that uses each.
        n: Estimation samples, those with invalid logits included.
        counts: Votes per class among them.
        p_lower: The lower bound on the probability of the guessed class.
        p_upper: The upper bound on the probability of every other class, if the radius uses the runner-up bound.
        n0: Selection samples; 0 if every vote counts for its class.
        selection: Votes per class among them; empty without any.
        noise: The noise as text, for example ``Gaussian(sigma=0.5)``.
        index: The input index that entered the noise seed.
        outcome: The outcome at the largest target radius.
        checkpoints: Cumulative ``counts`` at every power of ten below ``n``.
        decisions: The outcome at every target radius.
        stages: The votes of each stage, if the procedure has stages and bounds only one of them.
        routing: The choice of the classifier that answers, if that was certified too.
        original: The votes of a similar model from which the bound was computed, if it was; the selection votes are
            then also those of that model.
        changed: Copies by the class of the original on which this model does not vote for the same, and, last, those on
            which it does; None if the original was not sampled again.
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
    original: Votes | None = None
    changed: Votes | None = None
    arithmetic: Arithmetic = Arithmetic.FLOAT
    offset: float = 0.0
    runtime: str | None = None
    model: str | None = None
    input: str | None = None
    p_upper: float | None = None

    @property
    def abstained(self) -> bool:
        return self.label == ABSTAIN

    @property
    def samples(self) -> int:
        """All samples drawn, selection included."""
        own = self.n0 + self.n
        return own if self.routing is None or self.routing.shared else own + self.routing.n0 + self.routing.n

    @property
    def invalid(self) -> int:
        """Samples with invalid logits (NaN or infinite), which are votes for no class."""
        counted = sum(self.counts) + sum(self.selection)
        if self.routing is not None and not self.routing.shared:
            counted += sum(self.routing.counts) + sum(self.routing.selection)
        return self.samples - counted

    def __str__(self) -> str:
        made = f"{self.guarantee.value} guarantee, {self.arithmetic.value} arithmetic, {self.samples:,} samples"
        if self.abstained:
            return f"No class is certified at alpha = {self.alpha} ({made})."
        scope = "at this input, without a radius"
        if self.radius > 0:
            limit = "of at most" if self.norm is Norm.L0 else "below"
            digits = 0 if self.norm is Norm.L0 else 3 if self.radius >= 0.001 else 9
            shown = radius_text(self.radius, digits)
            scope = f"for every perturbation with an {self.norm.value} norm {limit} {shown}"
        return f"Class {self.label} {scope}; wrong with probability at most {self.alpha} over the noise ({made})."

    def _problems(self) -> Iterator[str]:
        yield from _answer_problems(self)
        yield from _vote_problems("", self.n0, self.selection, {}, "selection")
        if not 0 <= self.radius < LARGEST_RADIUS or (self.abstained and self.radius > 0):
            yield f"radius is {self.radius} for label {self.label}"
        upper = 1.0 if self.p_upper is None else self.p_upper
        if not 0 <= upper <= 1:
            yield f"p_upper is {upper}"
        proved = is_certified(self.p_lower, upper) or self.guarantee is Guarantee.MEMORY  # of other votes
        if not 0 <= self.p_lower <= 1 or (self.radius > 0 and not proved):
            yield f"p_lower is {self.p_lower}, which does not prove the radius {self.radius}"
        if not all(0 < share <= self.alpha for share in self.alpha_split.values()):
            yield f"alpha_split has a share outside of (0, {self.alpha}]"
        if not all(0 < target < LARGEST_RADIUS for target in self.decisions):
            yield "decisions are about a radius that is not a positive number"
        if any(each is Outcome.CERTIFIED and target > self.radius for target, each in self.decisions.items()):
            yield "decisions certify a radius that is larger than that of the certificate"
        if not 0 <= self.offset < LARGEST_RADIUS:
            yield f"offset is {self.offset}"
        for name, several in (("stages", self.stages), ("original", [self.original]), ("changed", [self.changed])):
            for votes in several:
                if votes is not None:
                    yield from _vote_problems(f"{name}: ", votes.n, votes.counts, votes.checkpoints)
        if self.routing is not None:
            one = self.routing
            yield from _vote_problems("routing: ", one.n, one.counts, {})
            yield from _vote_problems("routing: ", one.n0, one.selection, {}, "selection")
            if one.choice < ABSTAIN or not (self.radius <= one.radius < LARGEST_RADIUS and 0 <= one.p_lower <= 1):
                yield f"routing with radius {one.radius} does not prove the radius {self.radius}"


@dataclass(frozen=True, kw_only=True)
class Prediction(_Stored):
    """The class of the smoothed classifier at one input, wrong with probability at most ``alpha``; without a radius.

    The fields are those of :class:`Certificate`. ``p_value`` is the smallest alpha at which these votes decide: a class
    is answered if it is at most ``alpha``. It is valid although the votes decide when sampling stops.
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

    @property
    def samples(self) -> int:
        """All samples drawn."""
        return self.n

    @property
    def invalid(self) -> int:
        """Samples with invalid logits (NaN or infinite), which are votes for no class."""
        return self.n - sum(self.counts)

    def __str__(self) -> str:
        made = f"no radius, {self.n:,} samples"
        if self.abstained:
            return f"No class is predicted at alpha = {self.alpha} ({made})."
        return f"Class {self.label} at this input; wrong with probability at most {self.alpha} over the noise ({made})."

    def _problems(self) -> Iterator[str]:
        yield from _answer_problems(self)
        if not 0 <= self.p_value <= 1:
            yield f"p_value is {self.p_value}"


def _plain(value: Any) -> Any:
    """Return a value of a certificate as values of JSON."""
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _answer_problems(answer: Certificate | Prediction) -> Iterator[str]:
    if answer.label < ABSTAIN:
        yield f"label is {answer.label}"
    if not 0 < answer.alpha < 1:
        yield f"alpha is {answer.alpha}"
    for name in ("seed", "index"):
        if not 0 <= getattr(answer, name) < 2**63:
            yield f"{name} is {getattr(answer, name)}"
    yield from _vote_problems("", answer.n, answer.counts, getattr(answer, "checkpoints", {}))


def _vote_problems(
    where: str, n: int, counts: tuple[int, ...], checkpoints: Mapping[int, tuple[int, ...]], name: str = "counts"
) -> Iterator[str]:
    for votes, most in ((counts, n), *((votes, reached) for reached, votes in checkpoints.items())):
        if min(votes, default=0) < 0 or sum(votes) > most:
            yield f"{where}{name} are negative or more than {most} samples"


def radius_text(radius: float, digits: int = 3) -> str:
    """Return a radius as decimal text, rounded **down**: no printed radius exceeds the proved one.

    Example:
        >>> radius_text(0.24996, 3)
        '0.249'
    """
    return f"{Decimal(radius).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_FLOOR):f}"


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
