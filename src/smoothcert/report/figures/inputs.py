"""Figures of inputs under noise."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from numpy.typing import ArrayLike, NDArray

from smoothcert.report.figures.style import COLOURS, Picture, canvas, finished, plain, require
from smoothcert.report.metrics import NORM_TEXT
from smoothcert.types import ABSTAIN, Norm, UsageError, radius_text

_MOST_CLASSES = 10
_NAME_WIDTH = 16


@dataclass(frozen=True, eq=False, kw_only=True)
class VotedInput:
    """An input, some of its noisy copies, and how the classifier voted on all of them.

    Images are (channels, height, width) in [0, 1] with 1 or 3 channels; ``n`` counts all votes, invalid ones included.
    """

    index: int
    image: ArrayLike
    copies: Sequence[ArrayLike]
    counts: Sequence[int]
    n: int
    label: int
    predict: int
    radius: float
    norm: Norm


def scales_figure(
    images: Sequence[ArrayLike],
    scales: Mapping[str, Sequence[float]],
    *,
    names: Sequence[str] | None = None,
    seed: int = 0,
    title: str | None = None,
) -> Picture:
    """Draw inputs without noise and under Gaussian noise at several scales, such as σ₀ and the σ* chosen for each.

    Args:
        images: The inputs, (channels, height, width) in [0, 1] with 1 or 3 channels; a column for each.
        scales: By name of the scale, its value for every input; a row for each.
        seed: The seed of the noise, which in a column differs only by its scale.
    """
    pixels = [_image(image) for image in images]
    require(pixels, "inputs")
    for name, values in scales.items():
        if len(values) != len(pixels) or not all(value >= 0 for value in values):
            raise UsageError(f"{name} must hold one scale for each of the {len(pixels)} inputs, none of them negative.")
    rows = 1 + len(scales)
    figure, panels = canvas(len(pixels), rows=rows, width=1.3 * len(pixels) + 1.0, height=1.5 * rows + 0.3)
    for column, image in enumerate(pixels):
        noise = np.random.default_rng([seed, column]).standard_normal(image.shape)
        shown = {"input": 0.0, **{name: float(values[column]) for name, values in scales.items()}}
        for row, (name, scale) in enumerate(shown.items()):
            axes = panels[row * len(pixels) + column]
            _show(axes, image + scale * noise)
            if column == 0:
                axes.set_ylabel(plain(name))
            if row:
                axes.set_title(f"{scale:.2f}", fontsize="small")
            elif names is not None:
                axes.set_title(plain(names[column]), fontsize="small")
    return finished(figure, [], title)


def votes_figure(inputs: Sequence[VotedInput], class_names: Sequence[str], *, title: str | None = None) -> Picture:
    """Draw inputs, some of their noisy copies, and the votes on all copies, a row for each input.

    The noisy inputs are like those in Figure 9 of Alfarra et al. (2022), the votes like the histogram of Cohen,
    Rosenfeld and Kolter (2019), Figure 1. A radius is rounded down. Of more than ten classes, those with the most votes
    and the true one are shown.
    """
    require(inputs, "inputs")
    pixels = [[_image(image, each.index) for image in (each.image, *each.copies)] for each in inputs]
    most = max(len(each.counts) for each in inputs)
    if most > len(class_names):
        raise UsageError(f"votes are on {most} classes, but only {len(class_names)} have names; use their dataset.")
    columns = max(map(len, pixels))
    size = 1.25 * columns + 3.4, 2.1 * len(inputs) + 0.5
    figure = Picture(*size, layout=ConstrainedLayoutEngine(h_pad=0.09, w_pad=0.05))
    grid = figure.add_gridspec(len(inputs), columns + 1, width_ratios=[*[1.0] * columns, 1.9])
    for row, (each, images) in enumerate(zip(inputs, pixels, strict=True)):
        for column, image in enumerate(images):
            axes = figure.add_subplot(grid[row, column])
            _show(axes, image)
            axes.set_title(f"copy {column}" if column else f"input {each.index}", fontsize="small")
            if column == 0:
                axes.set_xlabel(f"class {_short(class_names[each.label])}", fontsize="small")
        _draw_votes(figure.add_subplot(grid[row, columns]), each, class_names)
    handles = [
        Patch(color=COLOURS[2], label="votes for the true class"),
        Patch(color=COLOURS[1], label="votes for another class"),
    ]
    return finished(figure, handles, title)


def _image(image: ArrayLike, index: int | None = None) -> NDArray[np.float64]:
    pixels = np.asarray(image, dtype=np.float64)
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        which = "an input" if index is None else f"input {index}"
        raise UsageError(f"{which} is not an image of shape (1 or 3, height, width), so it cannot be shown.")
    return pixels


def _show(axes: Axes, image: NDArray[np.float64]) -> None:
    """Show an image; pixels outside [0, 1] are clipped."""
    clipped = np.clip(image, 0.0, 1.0)
    axes.imshow(clipped[0] if len(clipped) == 1 else np.moveaxis(clipped, 0, 2), cmap="gray", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)


def _draw_votes(axes: Axes, each: VotedInput, class_names: Sequence[str]) -> None:
    counts = np.asarray(each.counts)
    shown = list(range(len(counts)))
    if len(counts) > _MOST_CLASSES:
        shown = np.argsort(-counts, kind="stable")[:_MOST_CLASSES].tolist()
        if each.label not in shown:
            shown[-1] = each.label
    places = np.arange(len(shown))
    colours = [COLOURS[2] if which == each.label else COLOURS[1] for which in shown]
    axes.barh(places, 100 * counts[shown] / each.n, color=colours)
    for place, count in zip(places, counts[shown].tolist(), strict=True):
        if count:
            at = 100 * count / each.n, float(place)
            axes.annotate(f"{count:,}", at, (2, 0), textcoords="offset points", va="center", fontsize=6)
    axes.set_yticks(places, [_short(class_names[which]) for which in shown], fontsize=6)
    axes.invert_yaxis()
    axes.set(xlim=(0, 118), xticks=[0, 50, 100])
    axes.tick_params(axis="x", labelsize="small")
    axes.set_xlabel(f"votes (% of {each.n:,})", fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    if each.predict == ABSTAIN:
        answer = "abstains"
    else:
        proved = f"{NORM_TEXT[each.norm]} radius {radius_text(each.radius, 0 if each.norm is Norm.L0 else 3)}"
        answer = f"answers {_short(class_names[each.predict])}, {proved}"
    axes.set_title(answer, fontsize="small")


def _short(name: str) -> str:
    return plain(textwrap.shorten(name, _NAME_WIDTH, placeholder="…") if len(name) > _NAME_WIDTH else name)
