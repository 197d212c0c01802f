"""Metrics of certified robustness over a set of inputs: pure NumPy, no tolerance that could overstate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothcert.report.metadata import UNKNOWN, Metadata, read_metadata, read_norm
from smoothcert.types import ABSTAIN, LARGEST_RADIUS, Norm, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from smoothcert.report.origins import Origin

NORM_TEXT: dict[Norm | None, str] = {
    Norm.L0: "ℓ0",
    Norm.L1: "ℓ1",
    Norm.L2: "ℓ2",
    Norm.LINF: "ℓ∞",
    None: "unknown-norm",
}
"""How a norm is written before the word radius, in headings and sentences."""

_MOST_RADII = 1000


def axis_norm(norm: Norm | None) -> str:
    """How a norm is written in brackets, as in the labels of axes."""
    return "norm unknown" if norm is None else NORM_TEXT[norm]


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What one run answered for every input; the arrays are copied and read-only.

    Attributes:
        name: The name of the run in tables and plots.
        index: The index of every input in its dataset, each once.
        label: The true classes.
        predict: The certified classes, ``ABSTAIN`` (-1) where there is none.
        radius: The certified radii in ``norm``, 0 for abstentions.
        norm: The norm of the radii; None if it is unknown, as in logs without a norm column.
        origin: How the run came about, if that is known.
        natural: The number of inputs that PREDICT answers rightly, if that is known and one noise was used for all.
        alpha: The probability of a false statement for every input, or one for all; None if it is unknown.
        metadata: Guarantee, arithmetic, runtime, classifier and seed, as far as they are known.

    Raises:
        UsageError: If the arrays are empty, differ in length or hold values that no run can have; the input is named.
    """

    name: str
    index: NDArray[np.int64]
    label: NDArray[np.int64]
    predict: NDArray[np.int64]
    radius: NDArray[np.float64]
    norm: Norm | None = None
    origin: Origin | None = None
    natural: int | None = None
    alpha: NDArray[np.float64] | None = None
    metadata: Metadata = UNKNOWN

    def __post_init__(self) -> None:
        for field in ("index", "label", "predict"):
            values = np.asarray(getattr(self, field))
            if values.size and not np.issubdtype(values.dtype, np.integer):
                missing = _missing(values)
                raise UsageError(
                    f"{self.name}: {field} must hold a whole number for every input{self._but(missing, 'none')}."
                )
            self._set(field, values.astype(np.int64))
        try:
            self._set("radius", np.array(self.radius, dtype=np.float64))
        except (TypeError, ValueError):
            raise UsageError(f"{self.name}: radius must hold a number for every input.") from None
        if self.norm is not None:
            object.__setattr__(self, "norm", Norm(self.norm))
        if len({array.shape for array in (self.index, self.label, self.predict, self.radius)}) > 1:
            raise UsageError(f"{self.name}: index, label, predict and radius must have equal lengths.")
        if self.alpha is not None:
            self._set_alpha(self.alpha)
        if self.index.ndim != 1 or self.index.size == 0:
            raise UsageError(f"{self.name}: there are no inputs to measure.")
        if len(np.unique(self.index)) < len(self.index):
            twice = np.sort(self.index)[1:][np.diff(np.sort(self.index)) == 0][0]
            raise UsageError(f"{self.name}: the index {twice} appears twice.")
        for field, lowest in (("label", 0), ("predict", ABSTAIN)):
            values = getattr(self, field)
            if values.min() < lowest:
                shown = self._but(values < lowest, f"the {field} {values.min()}")
                raise UsageError(f"{self.name}: classes count from 0, and only an answer may be -1 (abstain){shown}.")
        wrong = ~(np.isfinite(self.radius) & (self.radius >= 0))
        if wrong.any():
            shown = self._but(wrong, f"{self.radius[wrong][0]}")
            raise UsageError(f"{self.name}: radii must be finite and not negative{shown}.")
        wrong = self.radius >= LARGEST_RADIUS
        if wrong.any():
            shown = self._but(wrong, f"{self.radius[wrong][0]}")
            raise UsageError(f"{self.name}: radii must be below {LARGEST_RADIUS:g}{shown}.")
        wrong = (self.predict == ABSTAIN) & (self.radius > 0)
        if wrong.any():
            shown = self._but(wrong, f"{self.radius[wrong][0]}")
            raise UsageError(f"{self.name}: an abstention (predict -1) must have radius 0{shown}.")

    def _set_alpha(self, alpha: ArrayLike) -> None:
        values = np.array(np.broadcast_to(alpha, self.index.shape), dtype=np.float64)
        self._set("alpha", values)
        wrong = ~((values > 0) & (values < 1))
        if wrong.any():
            shown = self._but(wrong, f"{values[wrong][0]}")
            raise UsageError(f"{self.name}: alpha must lie strictly between 0 and 1{shown}.")

    def _but(self, wrong: NDArray[np.bool_], what: str) -> str:
        """The end of a sentence that names the first input for which it is wrong, if its index is known."""
        index = np.asarray(self.index)
        if not wrong.any() or index.shape != wrong.shape or not np.issubdtype(index.dtype, np.integer):
            return ""
        return f", but input {index[np.argmax(wrong)]} has {what}"

    def _set(self, field: str, array: NDArray[Any]) -> None:
        array.setflags(write=False)
        object.__setattr__(self, field, array)

    @classmethod
    def from_table(
        cls,
        name: str,
        table: pa.Table,
        *,
        origin: Origin | None = None,
        natural: int | None = None,
        seed: int | None = None,
    ) -> Outcomes:
        """Take the outcomes from the columns index, label, predict and radius of an Arrow table.

        Args:
            name: The name of the run.
            table: The rows of a run or a log; norm, alpha and metadata are taken from their columns, and are unknown
                without them.
            origin: How the run came about.
            natural: The number of inputs that PREDICT answers rightly.
            seed: The seed of the run, for rows of earlier versions, which lack it.

        Raises:
            UsageError: If a column is missing, rows are in several norms, or as the class says.
        """
        needed = ("index", "label", "predict", "radius")
        missing = [column for column in needed if column not in table.column_names]
        if missing:
            raise UsageError(f"{name} has no {' and no '.join(missing)}; certified accuracy needs {', '.join(needed)}.")
        index, label, predict, radius = (table.column(column).to_numpy() for column in needed)
        try:
            norm, metadata = read_norm(table), read_metadata(table, seed=seed)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None
        told = "alpha" in table.column_names and table["alpha"].null_count == 0
        alpha = table["alpha"].to_numpy() if told else None
        return cls(name, index, label, predict, radius, norm, origin, natural, alpha, metadata)

    def at(self, places: NDArray[np.int64]) -> Outcomes:
        """The outcomes at some places of the arrays, in their order."""
        arrays = {name: getattr(self, name)[places] for name in ("index", "label", "predict", "radius")}
        alpha = None if self.alpha is None else self.alpha[places]
        return replace(self, **arrays, alpha=alpha, natural=None)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Where the certified class is the true one; never for an abstention."""
        return np.equal(self.predict, self.label)

    @property
    def abstained(self) -> NDArray[np.bool_]:
        """Where there is no certified class."""
        return np.equal(self.predict, ABSTAIN)


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where there is no number, as far as the kind of the array can tell."""
    if np.issubdtype(values.dtype, np.floating):
        return np.asarray(np.isnan(values))
    return np.array([value is None for value in values.ravel()], dtype=bool).reshape(values.shape)


def certified_counts(outcomes: Outcomes, radii: ArrayLike) -> NDArray[np.int64]:
    """Count the inputs whose certified class is right and whose radius is at least r, for every r in ``radii``.

    Raises:
        UsageError: If a radius is negative or not a number.
    """
    wanted = np.atleast_1d(np.asarray(radii, dtype=np.float64))
    if not (wanted >= 0).all():
        raise UsageError("the radii of certified accuracy must be numbers, 0 or larger.")
    proved = np.sort(outcomes.radius[outcomes.correct])
    return np.asarray(len(proved) - np.searchsorted(proved, wanted, side="left"), dtype=np.int64)


def certified_accuracy(outcomes: Outcomes, radii: ArrayLike) -> NDArray[np.float64]:
    """The share of inputs whose certified class is right and whose radius is at least r, for every r in ``radii``.

    Args:
        outcomes: The run.
        radii: The radii r; at 0 every right answer counts, and an abstention is not one.

    Returns:
        One share in [0, 1] per radius.

    Raises:
        UsageError: If a radius is negative or not a number.

    Example:
        >>> run = Outcomes("run", [0, 1, 2, 3], [5, 5, 5, 5], [5, 5, 7, -1], [0.5, 0.2, 0.9, 0.0])
        >>> certified_accuracy(run, [0, 0.25, 0.5, 0.75]).tolist()
        [0.5, 0.25, 0.25, 0.0]
    """
    return certified_counts(outcomes, radii) / len(outcomes)


def clean_accuracy(outcomes: Outcomes) -> float:
    """The certified accuracy at radius 0."""
    return float(outcomes.correct.mean())


def average_certified_radius(outcomes: Outcomes) -> float:
    """ACR: the mean over **all** inputs of the radius where the answer is right, and of 0 where it is not."""
    return math.fsum(outcomes.radius[outcomes.correct]) / len(outcomes)


def acr_text(value: float) -> str:
    """An ACR with three decimals: an average, not a certificate, so rounded to the nearest as the papers print it.

    Example:
        >>> acr_text(0.53753288)
        '0.538'
    """
    return str(Decimal(repr(float(value))).quantize(Decimal("0.001"), rounding=ROUND_HALF_EVEN))


def abstention_rate(outcomes: Outcomes) -> float:
    """The share of inputs without a certified class."""
    return float(outcomes.abstained.mean())


def curve(outcomes: Outcomes) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Certified accuracy as an exact step function.

    Returns:
        ``(radii, accuracy)``: radii are 0 and every distinct radius of a right answer, ascending. ``accuracy[i]`` holds
        for r in (``radii[i - 1]``, ``radii[i]``], and beyond the last radius the accuracy is 0.

    Example:
        >>> run = Outcomes("run", [0, 1, 2, 3], [5, 5, 5, 5], [5, 5, 7, -1], [0.5, 0.2, 0.9, 0.0])
        >>> [values.tolist() for values in curve(run)]
        [[0.0, 0.2, 0.5], [0.5, 0.5, 0.25]]
    """
    radii = np.union1d(0.0, outcomes.radius[outcomes.correct])
    return radii, certified_accuracy(outcomes, radii)


def envelope(runs: Sequence[Outcomes]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The best certified accuracy of several runs at every radius, as the exact step function of :func:`curve`.

    It is what the runs could reach if the best one were known for each radius beforehand, not what any one of them
    reaches (Alfarra et al., 2022, Figs. 2 to 6, over noise scales and numbers of steps).

    Args:
        runs: The outcomes of runs over the same inputs, in one norm.

    Returns:
        ``(radii, accuracy)`` as in :func:`curve`.

    Raises:
        UsageError: If there are no runs, or they differ in inputs or norm.

    Example:
        >>> a = Outcomes("a", [0, 1], [5, 5], [5, 7], [0.9, 0.9])
        >>> b = Outcomes("b", [0, 1], [5, 5], [5, 5], [0.2, 0.3])
        >>> [values.tolist() for values in envelope([a, b])]
        [[0.0, 0.2, 0.3, 0.9], [1.0, 1.0, 0.5, 0.5]]
    """
    common_norm(runs)
    for run in runs[1:]:
        if not np.array_equal(np.sort(run.index), np.sort(runs[0].index)):
            raise UsageError(
                f"{run.name} is about other inputs than {runs[0].name}; an envelope is over the same ones."
            )
    radii = np.unique(np.concatenate([curve(run)[0] for run in runs]))
    return radii, np.max([certified_accuracy(run, radii) for run in runs], axis=0)


def wilson_interval(successes: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a share, for example a certified accuracy over a sample of test inputs.

    Raises:
        UsageError: If there is nothing to count, more successes than trials, or a confidence outside (0, 1).

    Reference:
        E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927).

    Example:
        >>> low, high = wilson_interval(326, 500)
        >>> print(f"{low:.3f} {high:.3f}")
        0.609 0.692
    """
    if total < 1 or not 0 <= successes <= total:
        raise UsageError(f"{successes} of {total} is not a share.")
    if not 0 < confidence < 1:
        raise UsageError(f"a confidence must lie between 0 and 1, not {confidence}.")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / total
    centre = share + z * z / (2 * total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    low = 0.0 if successes == 0 else max(0.0, (centre - half) / scale)
    high = 1.0 if successes == total else min(1.0, (centre + half) / scale)
    return low, high


def parse_radii(text: str) -> tuple[float, ...]:
    """Radii from text: ``start:stop:step`` with the stop included, or a comma-separated list.

    Args:
        text: For example ``0:2:0.25`` or ``0,0.5,1``.

    Returns:
        The radii; a grid is laid in decimal arithmetic, so no error builds up.

    Raises:
        UsageError: If the text is malformed, or a radius is negative, not finite or given twice.

    Example:
        >>> parse_radii("0:0.9:0.3")
        (0.0, 0.3, 0.6, 0.9)
    """
    grid = ":" in text
    try:
        values = [Decimal(part.strip()) for part in text.split(":" if grid else ",")]
    except InvalidOperation:
        values = []
    if not values or (grid and len(values) != 3) or not all(v.is_finite() and v >= 0 for v in values):
        raise UsageError(f"radii {text!r} must read like 0:2:0.25 or 0,0.5,1, with numbers that are 0 or larger.")
    if grid:
        start, stop, step = values
        if not step or stop < start or stop - start >= _MOST_RADII * step:
            raise UsageError(f"radii {text!r} must go up in steps above 0, at most {_MOST_RADII} of them.")
        values = [start + i * step for i in range(int((stop - start) // step) + 1)]
    radii = tuple(float(value) for value in values)
    if len(set(radii)) < len(radii) or not all(math.isfinite(radius) for radius in radii):
        raise UsageError(f"radii {text!r} must be finite and each given once.")
    return radii


def common_norm(runs: Sequence[Outcomes]) -> Norm | None:
    """The norm that all runs share as far as it is known, so that their radii can stand side by side.

    Returns:
        The norm; None where no run tells it. A run that does not tell it may be shown with others of one norm, but must
        be marked: see ``notes``.

    Raises:
        UsageError: If there are no runs, or runs of different norms.
    """
    if not runs:
        raise UsageError("there are no runs to show.")
    first = next((run for run in runs if run.norm is not None), None)
    for run in runs:
        if first is not None and run.norm not in (None, first.norm):
            raise UsageError(
                f"{first.name} ({NORM_TEXT[first.norm]}) and {run.name} ({NORM_TEXT[run.norm]}) have radii in "
                "different norms and cannot be compared; show each norm by itself."
            )
    return None if first is None else first.norm
