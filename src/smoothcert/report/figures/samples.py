"""Pictures of what certificates cost: the samples used for every input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from smoothcert.report.figures.style import LineStyle, canvas, entry, finished, in_columns, legend_columns, run_style
from smoothcert.store import Result
from smoothcert.store.result import no_rows
from smoothcert.types import Outcome, UsageError

_DASHES: dict[Outcome, LineStyle] = {Outcome.CERTIFIED: "-", Outcome.REFUTED: "--", Outcome.UNDECIDED: ":"}


@dataclass(frozen=True, eq=False)
class Samples:
    """What a run spent on every input.

    Attributes:
        name: The name of the run.
        used: The samples of each input, selection included.
        outcome: What was found out, ``certified``, ``refuted`` or ``undecided``.
    """

    name: str
    used: NDArray[np.float64]
    outcome: NDArray[np.str_]

    @classmethod
    def of(cls, result: Result) -> Samples:
        """The samples of a run.

        Raises:
            UsageError: If it does not tell them.
            RunError: If it has no rows yet.
        """
        used = (result.array("n") + result.array("n0")).astype(np.float64)
        if not len(used):
            raise no_rows(result.path)
        return cls(result.name, used, np.array(result.column("outcome").to_pylist()))


def samples_figure(runs: Sequence[Samples], *, title: str | None = None) -> Figure:
    """Draw how many samples the inputs took: procedures that decide early against a fixed number.

    The height at n is the share of **all** inputs that were certified, refuted or left undecided with at most n
    samples, so a curve ends at the share of that outcome; the thin line is the mean. It shows input by input what
    SampleRF in Tables 3 and 4 of Horváth et al. (2022), Boosting randomized smoothing, sums up, and what their
    Figure 15 expects by true probability.
    """
    if not runs:
        raise UsageError("there are no runs to show.")
    labels = [entry(f"{run.name} (mean {run.used.mean():,.0f})") for run in runs]
    columns, height = legend_columns(labels, len(_DASHES) + 1)
    figure, (axes,) = canvas(1, height=3.9 + height)
    least, most = min(run.used.min() for run in runs), max(run.used.max() for run in runs)
    right = 1.5 * most
    left = min(least / 1.5, right / 10)
    for number, run in enumerate(runs):
        style = run_style(number)
        for outcome, dashes in _DASHES.items():
            used = np.sort(run.used[run.outcome == outcome.value])
            if len(used):
                heights = 100 * np.arange(len(used) + 1) / len(run.used)
                steps = np.concatenate([[left], used, [right]])
                axes.step(steps, np.append(heights, heights[-1]), where="post", linestyle=dashes, **style)
        axes.axvline(float(run.used.mean()), color=style["color"], linewidth=0.7, zorder=1)
    axes.set_xscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(0, 102)
    axes.set_xlabel("samples per input, selection included")
    axes.set_ylabel("inputs decided so far (% of all)")
    handles = [Line2D([], [], label=label, **run_style(number)) for number, label in enumerate(labels)]
    dashed = [Line2D([], [], color="0.3", linestyle=look, label=outcome.value) for outcome, look in _DASHES.items()]
    dashed.append(Line2D([], [], color="0.4", linewidth=0.7, label="mean"))
    return finished(figure, in_columns(handles, dashed, columns), title, columns)
