"""Pictures of the probability of the top class, p_A: how sure the smoothed classifier is of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from smoothcert.report.figures.style import LineStyle, canvas, entry, finished, in_columns, legend_columns, run_style
from smoothcert.store import Outcomes, Result
from smoothcert.types import UsageError

_WIDTH = 9.0
_DASHES: dict[str, LineStyle] = {"correct": "-", "wrong": "--", "abstained": ":"}


@dataclass(frozen=True, eq=False)
class Confidence:
    """How sure a run was of every input that was voted on.

    Attributes:
        name: The name of the run.
        bound: The lower bound on the probability of the guessed class.
        share: The share of the estimation votes that the most voted class got.
        answer: ``correct``, ``wrong`` or ``abstained``.
    """

    name: str
    bound: NDArray[np.float64]
    share: NDArray[np.float64]
    answer: NDArray[np.str_]

    @classmethod
    def of(cls, result: Result) -> Confidence:
        """The confidence of a run; inputs answered without a vote, such as by a core, are left out.

        Raises:
            UsageError: If it keeps no votes.
            RunError: If it has no rows yet.
        """
        counts, n, bound = result.column("counts").to_pylist(), result.array("n"), result.array("p_lower")
        voted = np.array([len(votes) > 0 for votes in counts]) & (n > 0)
        if not voted.any():
            raise UsageError(f"{result.path} keeps no votes, so its confidence is not known; show other runs.")
        most = np.array([max(votes, default=0) for votes in counts])[voted]
        return cls(result.name, bound[voted], most / n[voted], answers(result.outcomes)[voted])


def answers(outcomes: Outcomes) -> NDArray[np.str_]:
    """Whether each answer is ``correct``, ``wrong`` or ``abstained``.

    Example:
        >>> answers(Outcomes("run", [0, 1, 2], [5, 5, 5], [5, 7, -1], [0.5, 0.2, 0.0])).tolist()
        ['correct', 'wrong', 'abstained']
    """
    return np.where(outcomes.abstained, "abstained", np.where(outcomes.correct, "correct", "wrong"))


def confidence_figure(runs: Sequence[Confidence], *, title: str | None = None) -> Figure:
    """Draw how p_A is distributed over the inputs: its lower bound, and the share of the votes.

    Curves are empirical distribution functions, of correct, wrong and abstained answers apart: the height at p is the
    share of those answers whose value is at most p. The radius of a certificate is a function of the bound, so this is
    what the average certified radius averages over; like the distributions of p_A that Sun et al. (2024), Average
    certified radius is a poor metric for randomized smoothing, set beside it.

    Returns:
        A figure of its own: on the left the lower bound, on the right the share of votes.
    """
    if not runs:
        raise UsageError("there are no runs to show.")
    labels = [entry(f"{run.name} ({_numbers(run)})", width=_WIDTH) for run in runs]
    columns, height = legend_columns(labels, len(_DASHES), width=_WIDTH)
    figure, (left, right) = canvas(2, width=_WIDTH, height=3.7 + height)
    for number, run in enumerate(runs):
        for axes, values in ((left, run.bound), (right, run.share)):
            for answer, dashes in _DASHES.items():
                _distribution(axes, values[run.answer == answer], number, dashes)
    left.axvline(0.5, color="0.4", linewidth=0.7, zorder=1)
    lowest = min(float(min(run.bound.min(), run.share.min())) for run in runs)
    for axes in (left, right):
        axes.set_xlim(min(np.floor(10 * lowest) / 10, 0.5) - 0.01, 1.01)
        axes.set_ylim(0, 102)
        axes.set_ylabel("inputs at or below (% of such answers)")
    left.set_xlabel("lower bound on $p_A$ (probability; abstains up to ½)")
    right.set_xlabel("votes for the top class (share of samples)")
    handles = [Line2D([], [], label=label, **run_style(number)) for number, label in enumerate(labels)]
    dashed = [Line2D([], [], color="0.3", linestyle=dashes, label=answer) for answer, dashes in _DASHES.items()]
    return finished(figure, in_columns(handles, dashed, columns), title, columns)


def _distribution(axes: Axes, values: NDArray[np.float64], number: int, dashes: LineStyle) -> None:
    """The empirical distribution function of some values in [0, 1]; nothing without any."""
    if len(values):
        heights = np.linspace(0, 100, len(values) + 1)
        steps = np.concatenate([[0.0], np.sort(values), [1.0]])
        axes.step(steps, np.append(heights, 100.0), where="post", linestyle=dashes, **run_style(number))


def _numbers(run: Confidence) -> str:
    """How many answers of each kind there are."""
    return ", ".join(f"{(run.answer == answer).sum()} {answer}" for answer in _DASHES)
