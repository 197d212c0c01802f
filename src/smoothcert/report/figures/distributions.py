"""Figures of distributions over inputs: how sure a smoothed classifier is, and how many samples it took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from smoothcert.report.figures.style import LineStyle, Picture, canvas, dashed, finished, plain, require, run_style
from smoothcert.store import Result
from smoothcert.store.result import no_rows
from smoothcert.types import UsageError

FloatArray = NDArray[np.float64]

_WIDTH = 9.0
_SAMPLE_WIDTH = 1.5
_ANSWERS = ("correct", "wrong", "abstained")
_OUTCOMES: dict[str, LineStyle] = {"certified": "-", "refuted": "--", "undecided": ":"}


@dataclass(frozen=True, eq=False)
class Confidence:
    """How sure a run is of the true class of every input with votes."""

    name: str
    bound: FloatArray  # the lower bound on the probability of the guessed class
    share: FloatArray  # the share of the estimation votes for the true class
    answer: NDArray[np.str_]  # correct, wrong or abstained

    @classmethod
    def of(cls, result: Result) -> Confidence:
        """Read the confidence of a run, without inputs that were answered without a vote, such as by a core."""
        _read(result)
        counts, n, bound = result.column("counts").to_pylist(), result.array("n"), result.array("p_lower")
        voted = np.array([len(votes) > 0 for votes in counts]) & (n > 0)
        if not voted.any():
            raise UsageError(f"{result.path} keeps no votes, so its confidence is not known; show other runs.")
        found = result.outcomes
        labels = result.array("label").tolist()
        true = [votes[label] if label < len(votes) else 0 for votes, label in zip(counts, labels, strict=True)]
        answer = np.where(found.abstained, "abstained", np.where(found.correct, "correct", "wrong"))
        return cls(result.name, bound[voted], np.array(true)[voted] / n[voted], answer[voted])


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


def confidence_figure(runs: Sequence[Confidence], *, title: str | None = None) -> Picture:
    """Draw the distribution of the probability of the true class: bounds on the left, shares of the votes on the right.

    The curves are shares of **all** inputs. On the left those that are answered right are counted where their bound is,
    and all others from the left edge on, so that a curve begins at their share. With the plain bound the radius is a
    function of the bound, so the ACR is a mean over this distribution; Sun et al. (2024), Average certified radius is a
    poor metric for randomized smoothing, show similar distributions.
    """
    require(runs, "runs")
    counts = [", ".join(f"{(run.answer == answer).sum()} {answer}" for answer in _ANSWERS) for run in runs]
    figure, (left, right) = canvas(2, width=_WIDTH, height=3.7)
    proved = [np.where(run.answer == "correct", run.bound, 0.0) for run in runs]
    for number, (run, bound) in enumerate(zip(runs, proved, strict=True)):
        for axes, values in ((left, bound), (right, run.share)):
            _cumulative(axes, values, len(values), (0.0, 1.0), number)
    lowest = min(float(run.bound[run.answer == "correct"].min(initial=0.5)) for run in runs)
    left.set_xlim(np.floor(10 * lowest) / 10, 1.01)
    right.set_xlim(-0.01, 1.01)
    right.axvline(0.5, color="0.4", linewidth=0.7, zorder=1)
    for axes in (left, right):
        axes.set(ylim=(0, 102), ylabel="inputs at or below (% of all)")
    left.set_xlabel("lower bound on the probability of the right answer")
    right.set_xlabel("votes for the true class (share of samples)")
    named = [f"{run.name} ({count})" for run, count in zip(runs, counts, strict=True)]
    return finished(figure, _handles(named, {}), title)


def samples_figure(runs: Sequence[Samples], *, title: str | None = None) -> Picture:
    """Draw how many samples the inputs took, to compare procedures that decide early with a fixed number.

    Curves are shares of **all** inputs, so each ends at the share of its outcome. SampleRF in Tables 3 and 4 of Horváth
    et al. (2022), Boosting randomized smoothing, is a summary, and their Figure 15 the expectation by true probability.
    """
    require(runs, "runs")
    labels = [f"{run.name} (mean {run.used.mean():,.0f})" for run in runs]
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
    axes: Axes, values: FloatArray, total: int, ends: tuple[float, float], number: int, kind: LineStyle = "-"
) -> None:
    """Draw the share of a total that the sorted values make up, in per cent; nothing without values."""
    if len(values):
        heights = 100 * np.arange(len(values) + 1) / total
        steps = np.concatenate([[ends[0]], np.sort(values), [ends[1]]])
        axes.step(steps, np.append(heights, heights[-1]), where="post", **run_style(number, kind))


def _handles(labels: Sequence[str], kinds: dict[str, LineStyle]) -> list[Line2D]:
    runs = [Line2D([], [], label=plain(label), **run_style(number)) for number, label in enumerate(labels)]
    looks = [(kind, dashed(dashes, _SAMPLE_WIDTH)) for kind, dashes in kinds.items()]
    return [
        *runs,
        *(Line2D([], [], color="0.3", linestyle=dashes, linewidth=_SAMPLE_WIDTH, label=kind) for kind, dashes in looks),
    ]
