"""A figure of the curse of dimension: the limit of per-input noise scales over the size of the input.

After Theorem 1 of Jeong et al. (2021), App. B. Save it by ``style.save_figure``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.lines import Line2D

from smoothcert.report.figures.style import Picture, canvas, finished, line_style, require
from smoothcert.stats.dimension import scale_limit, worst_case_probability
from smoothcert.types import UsageError

RATIOS = (0.5, 0.8, 0.95, 0.99, 1.02, 1.1, 1.5)
DIMENSIONS = tuple(sorted({round(10 ** (step / 16)) for step in range(83)} | {150_528}))
"""From 1 to an ImageNet image."""

_KNOWN = {"MNIST": 784, "CIFAR": 3_072, "ImageNet": 150_528}


def scale_limit_figure(
    ratios: Sequence[float] = RATIOS,
    *,
    p: float = 0.99,
    sigma: float = 0.5,
    epsilon: float = 0.5,
    dimensions: Sequence[int] = DIMENSIONS,
    worst: bool = False,
    lowest: float = 1e-6,
    title: str | None = None,
) -> Picture:
    """Draw the limit on a class's probability under another noise scale over the number of coordinates.

    Thin lines mark the probability ½, below which nothing is certified, and known image sizes.

    Args:
        ratios: The ratios τ/σ of the scales, a curve for each.
        p: The probability of the class under the scale σ.
        epsilon: The largest distance ε of the two inputs.
        worst: Whether to draw the worst classifier's probability at distance ε, as thin curves.
        lowest: The lower end of the probability axis.
    """
    require(ratios, "ratios of scales")
    if len(dimensions) < 2 or any(b <= a for a, b in itertools.pairwise(dimensions)):
        raise UsageError("dimensions must be at least two whole numbers in increasing order.")
    if not 0 < lowest < 0.5:
        raise UsageError(f"lowest must lie between 0 and ½, got {lowest}.")
    figure, (axes,) = canvas(height=3.9)
    handles = []
    for number, ratio in enumerate(ratios):
        values = scale_limit(p, dimensions, sigma, ratio * sigma, epsilon)
        handles += axes.plot(dimensions, values, label=f"τ/σ = {ratio:g}", **line_style(number))
        if worst:
            exact = worst_case_probability(p, dimensions, sigma, ratio * sigma, epsilon)
            axes.plot(dimensions, exact, alpha=0.7, **line_style(number, 0.8))
    if worst:
        handles.append(Line2D([], [], color="0.2", linewidth=0.8, alpha=0.7, label="worst classifier"))
    axes.set(xscale="log", yscale="log", xlim=(dimensions[0], dimensions[-1]))
    axes.set_ylim(lowest, 10 ** (-np.log10(lowest) / 40))
    axes.axhline(0.5, color="0.4", linewidth=0.7, zorder=1)
    right, above = axes.get_yaxis_transform(), axes.get_xaxis_transform()
    axes.annotate("½", (1, 0.5), (4, 0), xycoords=right, textcoords="offset points", va="center")
    for name, size in _KNOWN.items():
        if dimensions[0] <= size <= dimensions[-1]:
            axes.axvline(size, color="0.4", linewidth=0.7, zorder=1)
            place = axes.annotate(name, (size, 1), (0, 3), xycoords=above, textcoords="offset points", ha="center")
            place.set(color="0.3", fontsize="small")
    axes.set_xlabel("coordinates of an input, d")
    axes.set_ylabel(f"limit on the class's probability\n(p = {p:g}, σ = {sigma:g}, ε = {epsilon:g})")
    return finished(figure, handles, title, columns=3)
