"""Which of two runs is better, and is the difference real?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from smoothcert.report.intervals import bootstrap_interval, credited_radius, sign_flip_p_value
from smoothcert.report.metrics import average_certified_radius, common_norm, radii_or_default
from smoothcert.report.notes import notes, subjects
from smoothcert.store import Origin, Outcomes
from smoothcert.types import Norm, UsageError

SIGNIFICANCE = 0.05
"""The p-value below which a difference counts as real; intervals have one minus this confidence."""

_MOST_INPUTS = 5


@dataclass(frozen=True)
class RadiusComparison:
    """The inputs that each run, and only that run, certifies correctly at a radius.

    The p-value is that of the exact McNemar test: the probability of so uneven a split if both were equally good. It is
    corrected by Holm's method for all radii compared.
    """

    radius: float
    certified: tuple[int, int]
    only: tuple[int, int]
    p_value: float
    corrected: float


@dataclass(frozen=True)
class InputDifference:
    """An input on which two runs differ: its index and label, both answers (-1: abstention) and both radii."""

    index: int
    label: int
    predict: tuple[int, int]
    radius: tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """Two runs over the inputs that both have. Pairs are (first run, second run)."""

    names: tuple[str, str]
    norm: Norm | None
    inputs: int
    acr: tuple[float, float]
    interval: tuple[float, float]  # paired-bootstrap 95 % interval of the difference of the ACRs, first minus second
    acr_p_value: float  # of the sign-flip test that the ACRs differ by chance
    radii: tuple[RadiusComparison, ...]
    longer: tuple[int, int]  # on how many inputs each run proves the larger radius for the correct class
    sign_p_value: float  # of the exact sign test over these inputs, equal ones left out
    abstained: tuple[int, int]
    largest: tuple[InputDifference, ...]  # the inputs whose radii differ most, the most first
    guarantees: tuple[str, str]
    data: tuple[str | None, str | None]  # the datasets and their splits, if known
    remarks: tuple[str, ...]  # sentences about other differences between the runs

    @property
    def better(self) -> int | None:
        """0 or 1 for the run whose ACR is really larger, None for neither.

        The interval must lie on one side of 0, and, because a bootstrap of few inputs is too confident, the sign-flip
        test must agree.
        """
        low, high = self.interval
        if self.acr_p_value >= SIGNIFICANCE:
            return None
        return 0 if low > 0 else 1 if high < 0 else None


def compare(first: Outcomes, second: Outcomes, radii: Sequence[float] | None = None, *, seed: int = 0) -> Comparison:
    """Compare two runs over the inputs that both have.

    Intervals and p-values are about the choice of test inputs. They do not cover training: another training seed is
    another model. Runs in different norms are refused, since their radii cannot be compared; remarks report where
    guarantee or arithmetic differ or are unknown.

    Example:
        >>> one = Outcomes("one", range(20), [1] * 20, [1] * 20, [0.5] * 20)
        >>> two = Outcomes("two", range(20), [1] * 20, [1] * 20, [0.25] * 20)
        >>> print(verdict(compare(one, two)))
        one is better: its ACR is larger by 0.250 (95 % interval 0.250 to 0.250, 20 inputs).
    """
    norm = common_norm([first, second])
    index = np.intersect1d(first.index, second.index)
    if len(index) == 0:
        raise UsageError(f"{first.name} and {second.name} have no input in common; compare runs over the same inputs.")
    one, two = first.restrict(index), second.restrict(index)
    other = one.label != two.label
    if other.any():
        at = int(np.argmax(other))
        raise UsageError(
            f"{first.name} and {second.name} are about different data: the label of input {index[at]} is "
            f"{one.label[at]} in one and {two.label[at]} in the other."
        )
    difference = credited_radius(one) - credited_radius(two)
    longer = int((difference > 0).sum()), int((difference < 0).sum())
    return Comparison(
        names=(first.name, second.name),
        norm=norm,
        inputs=len(index),
        acr=(average_certified_radius(one), average_certified_radius(two)),
        interval=bootstrap_interval(difference, confidence=1 - SIGNIFICANCE, seed=seed),
        acr_p_value=sign_flip_p_value(difference, seed=seed),
        radii=_at_radii(one, two, radii_or_default([one, two], radii)),
        longer=longer,
        sign_p_value=_even_split(*longer),
        abstained=(int(one.abstained.sum()), int(two.abstained.sum())),
        largest=_largest(one, two, difference),
        guarantees=(one.metadata.text("guarantee"), two.metadata.text("guarantee")),
        data=((one.origin or Origin()).data, (two.origin or Origin()).data),
        remarks=tuple(_remarks((first, second), (one, two))),
    )


def _at_radii(one: Outcomes, two: Outcomes, radii: tuple[float, ...]) -> tuple[RadiusComparison, ...]:
    found = []
    for radius in radii:
        a, b = (run.correct & (run.radius >= radius) for run in (one, two))
        only = int((a & ~b).sum()), int((b & ~a).sum())
        found.append((radius, (int(a.sum()), int(b.sum())), only, _even_split(*only)))
    corrected = holm([p_value for *_, p_value in found])
    return tuple(RadiusComparison(*numbers, float(p_value)) for numbers, p_value in zip(found, corrected, strict=True))


def _even_split(first: int, second: int) -> float:
    """Compute the exact two-sided p-value that these are heads and tails of a fair coin; 1 without a toss."""
    return float(scipy.stats.binomtest(first, first + second, 0.5).pvalue) if first + second else 1.0


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Correct p-values of several tests by Holm's method, valid under any dependence between them.

    Reference:
        S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6 (1979).
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values)
    grown = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    corrected = np.empty_like(values)
    corrected[order] = np.minimum(grown, 1.0)
    return corrected


def _largest(one: Outcomes, two: Outcomes, difference: NDArray[np.float64]) -> tuple[InputDifference, ...]:
    order = np.argsort(-np.abs(difference), kind="stable")[:_MOST_INPUTS]
    return tuple(
        InputDifference(
            index=int(one.index[at]),
            label=int(one.label[at]),
            predict=(int(one.predict[at]), int(two.predict[at])),
            radius=(float(one.radius[at]), float(two.radius[at])),
        )
        for at in order
        if difference[at] != 0
    )


def _remarks(whole: tuple[Outcomes, Outcomes], compared: tuple[Outcomes, Outcomes]) -> list[str]:
    """Report what else differs between the runs, so that a difference is not attributed to the models alone."""
    remarks = []
    for run, kept in zip(whole, compared, strict=True):
        if count := len(run) - len(kept):
            remarks.append(f"{count} of the {len(run)} inputs of {run.name} were left out: the other run lacks them.")
    arithmetic = [run.metadata.text("arithmetic") for run in compared]
    if arithmetic[0] != arithmetic[1]:
        remarks.append(f"The runs differ in arithmetic ({arithmetic[0]} and {arithmetic[1]}).")
    for what, name in (("n", "numbers of samples"), ("alpha", "alpha"), ("bound", "bounds")):
        values = [getattr(run.origin or Origin(), what) for run in compared]
        if None not in values and values[0] != values[1]:
            shown = " and ".join(f"{value:,}" if isinstance(value, int) else f"{value}" for value in values)
            advice = "radii depend on it, and --at-n, --at-alpha or --bound make them comparable"
            remarks.append(f"The runs have different {name} ({shown}); {advice}.")
    return [*remarks, *notes(subjects(compared))]


def verdict(comparison: Comparison) -> str:
    """Write in a sentence or two which run is better, by how much, and how reliable that is."""
    better, names = comparison.better, comparison.names
    unlike = comparison.guarantees[0] != comparison.guarantees[1]
    other_data = None not in comparison.data and comparison.data[0] != comparison.data[1]
    gap = comparison.acr[0] - comparison.acr[1]
    if better is None:
        low, high = comparison.interval
        answer = (
            f"No difference in ACR that {comparison.inputs} inputs could show: {names[0]} minus {names[1]} is "
            f"{signed(gap)} (95 % interval {signed(low)} to {signed(high)})."
        )
    else:
        low, high = sorted(abs(end) for end in comparison.interval)
        words = "has the larger radii" if unlike or other_data else "is better"
        answer = (
            f"{names[better]} {words}: its ACR is larger by {abs(gap):.3f} (95 % interval {low:.3f} to {high:.3f}, "
            f"{comparison.inputs} inputs)."
        )
    if unlike:
        kinds = ", ".join(f"{name}: {kind}" for name, kind in zip(names, comparison.guarantees, strict=True))
        answer += f" The guarantees differ ({kinds}), so equal radii do not mean the same."
    if other_data:
        answer += f" The runs are about different data ({comparison.data[0]} and {comparison.data[1]})."
    for run in (0, 1):
        at = [r.radius for r in comparison.radii if r.corrected < SIGNIFICANCE and r.only[run] > r.only[1 - run]]
        if at and run != better:
            however = "However, " if better is not None else ""
            radii = ", ".join(f"{radius:g}" for radius in at)
            answer += f" {however}{names[run]} certifies more inputs at radius {radii}."
    return answer


def p_text(p_value: float) -> str:
    """Write a p-value with two significant digits, and a tiny one as an upper bound."""
    return "< 0.0001" if p_value < 0.0001 else f"{p_value:.2g}"


def signed(value: float) -> str:
    """Write a difference with three decimals, without a sign where it rounds to 0."""
    return f"{round(value, 3) + 0.0:.3f}"
