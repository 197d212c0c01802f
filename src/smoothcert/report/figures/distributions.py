"""Figures of distributions over inputs: how sure a smoothed classifier is, and how many samples it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from smoothcert.report.figures.style import LineStyle, canvas, entry, finished, require, run_style
from smoothcert.store import Result
from smoothcert.store.result import no_rows
from smoothcert.types import UsageError

FloatArray = NDArray[np.float64]

_WIDTH = 9.0
_ANSWERS: dict[str, LineStyle] = {"correct": "-", "wrong": "--", "abstained": ":"}
_OUTCOMES: dict[str, LineStyle] = {"certified": "-", "refuted": "--", "undecided": ":"}


@dataclass(frozen=True, eq=False)
class Confidence:
    """How sure a run is of every input with votes."""

    name: str
    bound: FloatArray  # the lower bound on the probability of the guessed class
    share: FloatArray  # the share of the estimation votes for the class with the most votes
    answer: NDArray[np.str_]  # correct, wrong or abstained

    @classmethod
    def of(cls, result: Result) -> Confidence:
        """Read the confidence of a run, without inputs that were answered without a vote, such as by a core."""
        _read(result)
        counts, n, bound = result.column("counts").to_pylist(), result.array("n"), result.array("p_lower")
        voted = np.array([len(votes) > 0 for votes in counts]) & (n > 0)
        if not voted.any():
            raise UsageError(f"{result.path} keeps no votes, so its confidence is not known; show other runs.")
        most = np.array([max(votes, default=0) for votes in counts])[voted]
        found = result.outcomes
        answer = np.where(found.abstained, "abstained", np.where(found.correct, "correct", "wrong"))
        return cls(result.name, bound[voted], most / n[voted], answer[voted])


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of every input of a run, selection included, and its outcome."""

    name: str
    used: FloatArray
    outcome: NDArray[np.str_]

    @classmethod
    def of(cls, result: Result) -> Samples:
        """Read the samples of a run."""
        _read(result)
        used = (result.array("n") + result.array("n0")).astype(np.float64)
        return cls(result.name, used, np.array(result.column("outcome").to_pylist()))


def confidence_figure(runs: Sequence[Confidence], *, title: str | None = None) -> Figure:
    """Draw the distribution of p_A over the inputs: its lower bound on the left, the share of the votes on the right.

    Curves are empirical distribution functions of correct, wrong and abstained answers. With the plain bound, the
    radius of a certificate is a function of that on p_A, so the ACR is a mean over this distribution; Sun et al.
    (2024), Average certified radius is a poor metric for randomized smoothing, show similar distributions.
    """
    require(runs, "runs")
    counts = [", ".join(f"{(run.answer == answer).sum()} {answer}" for answer in _ANSWERS) for run in runs]
    labels = [entry(f"{run.name} ({count})", width=_WIDTH) for run, count in zip(runs, counts, strict=True)]
    figure, (left, right) = canvas(2, width=_WIDTH, height=3.7)
    for number, run in enumerate(runs):
        for axes, values in ((left, run.bound), (right, run.share)):
            for answer, dashes in _ANSWERS.items():
                of_answer = values[run.answer == answer]
                _cumulative(axes, of_answer, len(of_answer), (0.0, 1.0), number, dashes)
    left.axvline(0.5, color="0.4", linewidth=0.7, zorder=1)
    lowest = min(float(min(run.bound.min(), run.share.min())) for run in runs)
    for axes in (left, right):
        axes.set_xlim(min(np.floor(10 * lowest) / 10, 0.5) - 0.01, 1.01)
        axes.set(ylim=(0, 102), ylabel="inputs at or below (% of such answers)")
    left.set_xlabel("lower bound on $p_A$ (probability; the plain bound abstains up to ½)")
    right.set_xlabel("votes for the top class (share of samples)")
    return finished(figure, _handles(labels, _ANSWERS), title)


def samples_figure(runs: Sequence[Samples], *, title: str | None = None) -> Figure:
    """Draw how many samples the inputs took, to compare procedures that decide early with a fixed number.

    Curves are shares of **all** inputs, so each ends at the share of its outcome. SampleRF in Tables 3 and 4 of Horváth
    et al. (2022), Boosting randomized smoothing, is a summary, and their Figure 15 the expectation by true probability.
    """
    require(runs, "runs")
    labels = [entry(f"{run.name} (mean {run.used.mean():,.0f})") for run in runs]
    figure, (axes,) = canvas(height=3.9)
    high = 1.5 * max(run.used.max() for run in runs)
    low = min(min(run.used.min() for run in runs) / 1.5, high / 10)
    for number, run in enumerate(runs):
        for outcome, dashes in _OUTCOMES.items():
            _cumulative(axes, run.used[run.outcome == outcome], len(run.used), (low, high), number, dashes)
        axes.axvline(float(run.used.mean()), color=run_style(number)["color"], linewidth=0.7, zorder=1)
    axes.set(xscale="log", xlim=(low, high), ylim=(0, 102))
    axes.set(xlabel="samples per input, selection included", ylabel="inputs decided so far (% of all)")
    mean = Line2D([], [], color="0.4", linewidth=0.7, label="mean")
    return finished(figure, [*_handles(labels, _OUTCOMES), mean], title)


def _read(result: Result) -> None:
    """Read all columns together, so that votes are checked against the number of samples; refuse an empty run."""
    if not len(result.table()):
        raise no_rows(result.path)


def _cumulative(
    axes: Axes, values: FloatArray, total: int, ends: tuple[float, float], number: int, dashes: LineStyle
) -> None:
    """Draw the share of a total that the sorted values make up, in per cent; nothing without values."""
    if len(values):
        heights = 100 * np.arange(len(values) + 1) / total
        steps = np.concatenate([[ends[0]], np.sort(values), [ends[1]]])
        axes.step(steps, np.append(heights, heights[-1]), where="post", linestyle=dashes, **run_style(number))


def _handles(labels: Sequence[str], kinds: dict[str, LineStyle]) -> list[Line2D]:
    runs = [Line2D([], [], label=label, **run_style(number)) for number, label in enumerate(labels)]
    return [*runs, *(Line2D([], [], color="0.3", linestyle=dashes, label=kind) for kind, dashes in kinds.items())]
