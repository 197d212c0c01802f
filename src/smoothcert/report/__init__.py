"""Numbers, tables, tests and pictures of runs and logs.

These functions accept runs and logs in any form: a path, a folder of several, a ``Run`` or a ``Log``. The submodules
have the parts they are made of.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smoothcert.report import comparison as _comparison
from smoothcert.report import metrics as _metrics
from smoothcert.report.comparison import Comparison
from smoothcert.report.intervals import acr_interval, wilson_interval
from smoothcert.report.recompute import load_outcomes
from smoothcert.report.tables import accuracy as _accuracy
from smoothcert.report.tables.comparison import render_comparison
from smoothcert.store import Outcomes, find_results, labelled
from smoothcert.types import StrPath, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from smoothcert.report.page.images import ImageDataset

__all__ = [
    "Comparison",
    "acr",
    "acr_interval",
    "certified_accuracy",
    "compare",
    "curve",
    "load_outcomes",
    "plot",
    "render_comparison",
    "table",
    "wilson_interval",
    "write_page",
]

Results = StrPath | Sequence[StrPath]
"""One or several runs, logs, or folders of them."""


def table(
    results: Results,
    radii: Sequence[float] | None = None,
    *,
    format: str = "md",
    style: str = "plain",
    intervals: bool = False,
    marks: bool = True,
    each: bool = False,
    n: int | None = None,
    alpha: float | None = None,
    bound: str | None = None,
) -> str:
    """Write certified accuracy at radii, ACR and abstentions as a table, as ``smoothcert table`` does.

    Args:
        results: Runs and logs.
        radii: The radii; by default up to the largest that is certified.
        format: ``md``, ``latex``, ``csv`` or ``html``.
        style: A name in ``report.tables.accuracy.TABLE_STYLES``.
        intervals: Whether to add 95 % intervals over the test sample.
        marks: Whether to mark the best value and the runner-up.
        each: Whether runs that differ in seeds only have separate lines.
        n: Recompute with the first n stored votes of each input; choose it before looking.
        alpha: Recompute at this alpha; choose it before looking.
        bound: Recompute with this bound, ``plain`` or ``runner-up``; choose it before looking.
    """
    found = load_outcomes(_paths(results), n=n, alpha=alpha, bound=bound)
    made = _accuracy.accuracy_table(found, radii, each=each)
    return _accuracy.render(made, format, intervals=intervals, style=style, marks=marks)


def acr(result: StrPath) -> float:
    """Return the average certified radius of one run or log."""
    return _metrics.average_certified_radius(_one(result))


def certified_accuracy(result: StrPath, radii: Sequence[float]) -> NDArray[np.float64]:
    """Return the certified accuracy of one run or log, in [0, 1], at each radius."""
    return _metrics.certified_accuracy(_one(result), radii)


def curve(result: StrPath) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return certified accuracy over the radius as an exact step function.

    Returns:
        Radii, ascending from 0, and the accuracy at each; it holds down to the radius before, excluded. Beyond the last
        radius the accuracy is 0.
    """
    return _metrics.curve(_one(result))


def compare(first: StrPath, second: StrPath, radii: Sequence[float] | None = None) -> Comparison:
    """Test whether the difference between two runs or logs is more than chance, over the inputs that both have.

    ``render_comparison(comparison, "md")`` writes the result as text.
    """
    one, two = _one(first), _one(second)
    if one.name == two.name:
        one, two = replace(one, name=os.fspath(first)), replace(two, name=os.fspath(second))
    return _comparison.compare(one, two, radii)


def plot(
    results: Results,
    path: StrPath | None = None,
    *,
    envelope: bool = False,
    intervals: bool = False,
    labels: Sequence[str] | None = None,
    size: tuple[float, float] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw certified accuracy over the radius, as ``smoothcert plot`` does; the submodules of ``figures`` draw others.

    Args:
        results: Runs and logs.
        path: The file to save the figure to, a .png, .pdf or .svg; by default none.
        envelope: Whether to add the best of the runs at every radius.
        intervals: Whether to shade 95 % intervals over the test sample.
        labels: Names of the results in the legend, one for each; by default those of their folders or files.
        size: Width and height in inches, legend included.
        title: A title above the figure.
    """
    from smoothcert.report.figures.curves import certified_accuracy_figure  # matplotlib takes a second to load
    from smoothcert.report.figures.style import resize, save_figure

    found = labelled(find_results(_paths(results)), labels)
    figure = certified_accuracy_figure(
        [each.outcomes for each in found],
        limits={each.name: limit for each in found if (limit := each.sampling_limit)},
        best=envelope,
        intervals=intervals,
        title=title,
    )
    if size is not None:
        resize(figure, size)
    if path is not None:
        save_figure(figure, path)
    return figure


def write_page(
    results: Results,
    path: StrPath,
    *,
    radii: Sequence[float] | None = None,
    title: str | None = None,
    dataset: ImageDataset | None = None,
) -> None:
    """Write the page of ``smoothcert report``: one HTML file with tables, curves and every input, for any browser.

    Args:
        results: Runs and logs.
        path: The file.
        radii: The radii of the overview.
        title: The heading.
        dataset: The dataset of the runs, to show images; by default none.
    """
    from smoothcert.report.page.html import report_html, write_report  # slow to import

    write_report(path, report_html(_paths(results), radii=radii, title=title, dataset=dataset))


def _paths(results: Results) -> list[StrPath]:
    return [results] if isinstance(results, (str, os.PathLike)) else list(results)


def _one(result: StrPath) -> Outcomes:
    found = load_outcomes([result])
    if len(found) != 1:
        raise UsageError(f"{os.fspath(result)} holds {len(found)} runs or logs; name one of them.")
    return found[0]
