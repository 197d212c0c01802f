"""Pictures of inputs under noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from smoothcert.report.style import canvas, finished, plain
from smoothcert.types import UsageError


def scales_figure(
    images: Sequence[ArrayLike],
    scales: Mapping[str, Sequence[float]],
    *,
    names: Sequence[str] | None = None,
    seed: int = 0,
    title: str | None = None,
) -> Figure:
    """Draw inputs without noise and under Gaussian noise at several scales, such as σ₀ and the σ* chosen for each.

    Args:
        images: The inputs, (channels, height, width) in [0, 1] with 1 or 3 channels.
        scales: By name of the scale, its value for every input; a row of pictures for each.
        names: What to write above the inputs.
        seed: The seed of the noise, which is the same in a column but for its scale.
        title: A title above the picture.

    Returns:
        A figure of its own, a column per input; values outside [0, 1] are cut off, as a screen does.

    Raises:
        UsageError: If there are no inputs, one is no image, or a scale is missing or negative.
    """
    pixels = [np.asarray(image, dtype=np.float64) for image in images]
    if not pixels or any(image.ndim != 3 or image.shape[0] not in (1, 3) for image in pixels):
        raise UsageError("the inputs must be images of shape (1 or 3, height, width), at least one.")
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
            axes.imshow(_visible(image + scale * noise), cmap="gray", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            axes.grid(False)
            if column == 0:
                axes.set_ylabel(plain(name))
            if row:
                axes.set_title(f"{scale:.2f}", fontsize="small")
            elif names is not None:
                axes.set_title(plain(names[column]), fontsize="small")
    return finished(figure, [], title)


def _visible(image: NDArray[np.float64]) -> NDArray[np.float64]:
    clipped = np.clip(image, 0.0, 1.0)
    return clipped[0] if len(clipped) == 1 else np.moveaxis(clipped, 0, 2)
