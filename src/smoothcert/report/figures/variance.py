"""Figures of the variance model: margins, votes, radii and covariances, modelled and measured.

After Figures 2, 3, 8, 9 and 11 of Horváth, Müller, Fischer and Vechev (2022). Save them by ``style.save_figure``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import ArrayLike, NDArray

from smoothcert.report.figures.style import COLOURS, Picture, canvas, dashed, finished, line_style, plain, require
from smoothcert.report.metrics import NORM_TEXT
from smoothcert.stats import (
    Agreement,
    Covariances,
    RadiusDistribution,
    VarianceModel,
    component_covariances,
    estimate_variance,
    expected_radius,
    soft_voting_margins,
)
from smoothcert.types import Norm, radius_text

FloatArray = NDArray[np.float64]

_BINS = 60
_SAMPLES = tuple(round(10 ** (quarter / 4)) for quarter in range(8, 25))  # 100 to a million


def margin_figure(model: VarianceModel, noisy: ArrayLike, sizes: Sequence[int], *, title: str | None = None) -> Picture:
    """Draw the margin to the runner-up class for several ensemble sizes, modelled and measured (Fig. 2a).

    Thin steps are the measured margins of soft voting, lines the Gaussians of these members. ``noisy`` has the logits
    of noisy copies by the members of the model, (members, copies, classes).
    """
    require(sizes, "ensemble sizes")
    position = int(np.argmin(model.given_members(max(sizes)).mean))
    measured = [soft_voting_margins(noisy, k, model.label)[:, position] for k in sizes]
    bins = np.histogram_bin_edges(np.concatenate(measured), bins=_BINS // 2)
    figure, (axes,) = canvas(height=4.0)
    axes.axvline(0.0, color="0.4", linewidth=0.7)
    handles = []
    for number, k in enumerate(sizes):
        style = line_style(number)
        density, _ = np.histogram(measured[number], bins=bins, density=True)
        axes.stairs(density, bins, color=style["color"], alpha=0.5, linewidth=0.8)
        margins = model.given_members(k)
        curve = _gaussian(bins, margins.mean[position], np.sqrt(margins.covariance[position, position]))
        handles += axes.plot(*curve, label=f"k = {k}", **style)
    handles.append(Line2D([], [], color="0.2", linewidth=1.8, label="modelled"))
    handles.append(Line2D([], [], color="0.2", linewidth=0.8, alpha=0.5, label="measured"))
    axes.set_xlabel(f"margin of class {model.label} over class {model.others[position]} (logits)")
    axes.set_ylabel("probability density (1/logit)")
    return finished(figure, handles, title, columns=4)


def success_figure(agreement: Agreement, *, bound: bool = False, title: str | None = None) -> Picture:
    """Draw the probability of the label over the ensemble size, modelled and measured (Fig. 2b).

    The bars are one standard error of the measured share. ``bound`` adds the Chebyshev bound, which lies far below.
    """
    require(agreement.sizes, "ensemble sizes")
    figure, (axes,) = canvas(height=4.0)
    error = np.sqrt(agreement.measured * (1 - agreement.measured) / agreement.copies)
    axes.errorbar(agreement.sizes, agreement.measured, error, fmt="o", color=COLOURS[4], capsize=3, label="measured")
    modelled = {
        "modelled, these members": agreement.given_members,
        "modelled, members newly trained": agreement.random_ensemble,
    }
    if bound:
        modelled["Chebyshev bound"] = agreement.chebyshev
    for number, (name, values) in enumerate(modelled.items()):
        axes.plot(agreement.sizes, values, label=name, **line_style(number))
    axes.set(xticks=agreement.sizes, xlabel="ensemble size k (members)", ylabel="success probability")
    return finished(figure, axes.get_legend_handles_labels()[0], title)


def radii_figure(
    distributions: Mapping[str, RadiusDistribution], *, norm: Norm = Norm.L2, title: str | None = None
) -> Picture:
    """Draw the distributions of the radii that certification will report, by name (Fig. 2c).

    The steps are the probability of each of 60 intervals of the radius, and a thin line is the mean.
    """
    require(distributions, "distributions")
    bins = np.linspace(0.0, 1.02 * max(_usual_most(each) for each in distributions.values()) or 1.0, _BINS + 1)
    figure, (axes,) = canvas(height=4.0)
    handles = []
    for number, (name, each) in enumerate(distributions.items()):
        style = line_style(number, 1.6)
        percent = 100 * np.histogram(each.radii, bins=bins, weights=each.probabilities)[0]
        axes.stairs(percent, bins, **style)
        axes.axvline(each.expected, color=style["color"], linewidth=0.7, zorder=1)
        text = f"{plain(name)} (mean {radius_text(each.expected)}, abstains {100 * each.abstain:.1f} %)"
        handles += axes.plot([], [], label=text, **style)
    axes.set_ylim(bottom=0.0)
    axes.set(xlim=(0.0, bins[-1]), xlabel=f"certified radius ({NORM_TEXT[norm]})")
    axes.set_ylabel(f"probability (% per {bins[1]:.2g})")
    return finished(figure, handles, title, columns=1)


def expected_radius_figure(
    radius: Callable[[FloatArray], FloatArray],
    *,
    probabilities: Sequence[float] = (0.6, 0.8, 0.9, 0.99, 0.999, 1.0),
    samples: Sequence[int] = _SAMPLES,
    alpha: float = 0.001,
    norm: Norm = Norm.L2,
    title: str | None = None,
) -> Picture:
    """Draw the mean radius over the number of samples, a curve per true success probability (Fig. 3).

    ``radius`` returns the radius that a lower bound proves, as ``Gaussian(0.25).radius`` does.
    """
    require(probabilities, "probabilities")
    require(samples, "numbers of samples")
    curves = expected_radius(np.array(probabilities)[:, None], np.array(samples), alpha, radius)
    figure, (axes,) = canvas(height=4.0)
    for number, (p, values) in enumerate(zip(probabilities, curves, strict=True)):
        axes.plot(samples, values, label=f"p = {p:g}", **line_style(number))
    axes.set(xscale="log", xlabel="samples n", ylabel=f"expected certified radius ({NORM_TEXT[norm]})")
    axes.set_ylim(bottom=0.0)
    return finished(figure, axes.get_legend_handles_labels()[0], title, columns=3)


def components_figure(inputs: Sequence[tuple[ArrayLike, ArrayLike]], *, title: str | None = None) -> Picture:
    """Draw the components of the logits against the Gaussians of the model, under both readings of y_c (Fig. 8 and 9).

    Left, the clean component over members; in the middle, the perturbation effect over noise; each about its modelled
    mean and in its modelled standard deviations, over all inputs and classes. Right, each member's mean perturbation
    effect, which the model assumes to be 0. With few members the left panel is narrower than a Gaussian by arithmetic:
    no deviation from the mean of k values exceeds (k − 1)/√k of their standard deviations.

    Each input has clean logits (members, classes) and noisy logits (members, copies, classes).
    """
    require(inputs, "inputs")
    shares: dict[str, list[tuple[FloatArray, FloatArray]]] = {"clean": [], "mean": []}
    shifts = []
    for clean, noisy in inputs:
        copies = np.asarray(noisy, dtype=np.float64)
        for reading, parts in shares.items():
            model = estimate_variance(clean, noisy, reading=reading)
            deviation = np.sqrt(np.stack([np.diag(model.clean_covariance), np.diag(model.perturbation_covariance)]))
            effect = copies - model.members[:, None]
            parts.append((_standard(model.members - model.mean, deviation[0]), _standard(effect, deviation[1])))
        shifts.append(np.ravel(copies.mean(axis=1) - np.asarray(clean, dtype=np.float64)))
    figure, panels = canvas(3, width=10.2, height=3.8)
    grid = np.linspace(-5.0, 5.0, _BINS + 1)
    styles = {
        "clean": (COLOURS[1], "$y_c$ = logits of the clean input"),
        "mean": (COLOURS[0], "$y_c$ = mean over noise"),
    }
    handles: list[Line2D | Patch] = [Line2D([], [], color="0", linewidth=1.6, label="Gaussian of the model")]
    for panel, axes in enumerate(panels[:2]):
        for reading, (colour, _) in styles.items():
            values = np.concatenate([parts[panel].ravel() for parts in shares[reading]])
            _histogram(axes, values[np.abs(values) <= grid[-1]], grid, colour)
        axes.plot(*_gaussian(grid, 0.0, 1.0), color="0", linewidth=1.6)
        axes.set_ylabel("probability density")
    handles += [Patch(facecolor=colour, alpha=0.4, label=name) for colour, name in styles.values()]
    shift = np.concatenate(shifts)
    _histogram(panels[2], shift, np.histogram_bin_edges(shift, bins=_BINS), COLOURS[2])
    panels[0].set_xlabel(r"clean component, $(y_c - c)/\sigma_c$")
    panels[1].set_xlabel(r"perturbation effect, $y_p/\sigma_p$")
    panels[2].set(xlabel="mean perturbation effect (logits)", ylabel="probability density (1/logit)")
    handles.append(
        panels[2].axvline(0.0, color="0", linestyle=dashed("--", 1.2), linewidth=1.2, label="zero, as modelled")
    )
    return finished(figure, handles, title, columns=4)


def covariance_figure(
    clean: ArrayLike, noisy: ArrayLike, *, reading: str = "mean", title: str | None = None
) -> Picture:
    """Draw the covariance of the logits of two members, measured and modelled, and the difference (Fig. 11).

    The clean component is above, the perturbation effect below; each row has one scale. Measured matrices are means
    over all members and pairs of members. The arguments are those of ``stats.estimate_variance``.
    """
    model = estimate_variance(clean, noisy, reading=reading)
    zetas = {rf"clean component, $\zeta_c$ = {model.zeta_c:.2f}": model.zeta_c}
    zetas[rf"perturbation effect, $\zeta_p$ = {model.zeta_p:.2f}"] = model.zeta_p
    figure, panels = canvas(3, rows=2, width=9.6, height=6.4)
    classes = len(model.mean)
    for row, (name, zeta) in enumerate(zetas.items()):
        found = component_covariances(clean, noisy, reading=reading)[row]
        measured, modelled = _blocks(found), _blocks(Covariances(found.intra, zeta * found.intra))
        limit = float(np.abs(measured).max()) or 1.0
        difference = measured - modelled
        between = f"difference, at most {np.abs(difference).max():.2g}"
        columns = {"measured": measured, between: difference, "modelled": modelled}
        for axes, (heading, matrix) in zip(panels[3 * row : 3 * row + 3], columns.items(), strict=True):
            image = axes.imshow(matrix, cmap="RdBu_r", vmin=-limit, vmax=limit)
            for line in (axes.axhline, axes.axvline):
                line(classes - 0.5, color="0.4", linewidth=0.7)
            middles = [classes / 2 - 0.5, 1.5 * classes - 0.5]
            axes.set_xticks(middles, ["member i", "member j"])
            axes.set_yticks(middles, ["i", "j"])
            axes.tick_params(length=0)
            axes.grid(False)
            axes.set_title(heading, fontsize="medium")
        panels[3 * row].set_ylabel(name)
        figure.colorbar(image, ax=panels[3 * row : 3 * row + 3], shrink=0.9, label="covariance (logits²)")
    return finished(figure, [], title)


def _usual_most(distribution: RadiusDistribution) -> float:
    """Return the radius exceeded once in ten thousand, where the axis ends."""
    beyond = 1.0 - distribution.abstain - np.cumsum(distribution.probabilities)
    usual = distribution.radii[: int(np.searchsorted(-beyond, -1e-4)) + 1]
    return float(usual[-1]) if len(usual) else 0.0


def _blocks(covariances: Covariances) -> FloatArray:
    return np.block([[covariances.intra, covariances.inter], [covariances.inter.T, covariances.intra]])


def _standard(values: FloatArray, deviation: FloatArray) -> FloatArray:
    """Divide by the standard deviation of each class; classes that do not vary are left out."""
    return values[..., deviation > 0] / deviation[deviation > 0]


def _gaussian(span: FloatArray, mean: float, deviation: float) -> tuple[FloatArray, FloatArray]:
    x = np.linspace(span[0], span[-1], 400)
    deviation = max(deviation, 1e-300)  # a margin that does not vary is drawn as nothing rather than refused
    return x, np.exp(-0.5 * ((x - mean) / deviation) ** 2) / (deviation * np.sqrt(2 * np.pi))


def _histogram(axes: Axes, values: FloatArray, bins: FloatArray, colour: str) -> None:
    density, _ = np.histogram(values, bins=bins, density=True)
    axes.stairs(density, bins, fill=True, color=colour, alpha=0.25)
    axes.stairs(density, bins, color=colour, linewidth=1.2)
