"""The pictures of the concepts, each from a computation, in light and in dark colours.

Usage: python website/pictures.py    (writes docs/concepts/*.svg, in about a minute)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from scipy import ndimage, stats

import smoothcert as sc
from smoothcert.stats import boundary, lower_bound, operating_characteristics, wald_bound

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "concepts"
BLUE, RED, GREEN, PINK, AMBER = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#d69200"
LOOKS = {"": {"ink": "#1b1b1b", "grid": "#dddddd"}, "-dark": {"ink": "#e2e4e9", "grid": "#4a4d5a"}}
ALPHA = 0.001


class Regions(torch.nn.Module):
    """Three classes in the plane, with wavy boundaries and small islands."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x[:, 0], x[:, 1]
        angle = torch.atan2(b, a) + 0.9 * torch.sin(2.5 * (a**2 + b**2).sqrt())
        logits = torch.stack([torch.cos(angle - turn) for turn in (0.5, 2.6, 4.7)], dim=1)
        island = torch.exp(-((a - 1.05) ** 2 + (b - 0.95) ** 2) / 0.02)
        return logits + 3 * island[:, None] * torch.tensor([-1.0, 1.0, 0.0])


def smoothing(ink: str) -> Figure:
    """The base classifier with noisy copies, their votes, and the smoothed classifier with the certified ball."""
    sigma, x, n = 0.35, torch.tensor([0.85, 0.75]), 10_000
    model = Regions()
    certificate = sc.Smoothed(model, sc.Gaussian(sigma)).certify(x, sc.Cohen(n, alpha=ALPHA), seed=1)
    side = np.linspace(-1.6, 2.8, 221)
    points = torch.tensor(np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2), dtype=torch.float32)
    base = model(points).argmax(1).numpy().reshape(221, 221)
    step = side[1] - side[0]
    shares = np.stack([ndimage.gaussian_filter((base == k).astype(float), sigma / step) for k in range(3)])
    colours = mpl.colors.ListedColormap([BLUE, AMBER, PINK])
    figure = Figure(figsize=(9.2, 3.3), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(3, 2, 3))
    box = (side[0], side[-1], side[0], side[-1])
    for axes, classes, title in (
        (left, base, "Base classifier and noisy copies"),
        (right, shares.argmax(0), "Smoothed classifier"),
    ):
        axes.imshow(classes, origin="lower", extent=box, cmap=colours, vmin=0, vmax=2, alpha=0.45, aspect="equal")
        axes.plot(*x, "o", color=ink, ms=5)
        axes.set(title=title, xticks=[], yticks=[], xlim=(-0.6, 2.2), ylim=(-0.6, 2.1))
    noisy = x + sigma * torch.randn(150, 2, generator=torch.Generator().manual_seed(0))
    left.plot(*noisy.T, ".", color=ink, ms=3, alpha=0.7)
    middle.bar(range(3), np.array(certificate.counts) / n, color=[BLUE, AMBER, PINK], alpha=0.75)
    middle.axhline(certificate.p_lower, color=ink, lw=1.2, ls="--")
    middle.text(2.45, certificate.p_lower + 0.015, f"lower bound {certificate.p_lower:.3f}", ha="right", color=ink)
    middle.axhline(0.5, color=ink, lw=0.8, ls=":")
    middle.set(title=f"Votes of {n:,} copies", xticks=range(3), xlabel="class", ylim=(0, 1))
    right.add_patch(mpl.patches.Circle(tuple(x), certificate.radius, fill=False, color=ink, lw=1.6))
    right.annotate(f"radius {certificate.radius:.3f}", tuple(x), (0, -36), textcoords="offset points", ha="center")
    return figure


def bounds(ink: str) -> Figure:
    """The lower bound and the radius over the number of votes, for three shares of votes."""
    n = np.unique(np.geomspace(20, 100_000, 200).astype(int))
    figure = Figure(figsize=(8.4, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2)
    for share, colour in ((0.8, AMBER), (0.99, RED), (1.0, BLUE)):
        p = lower_bound((share * n).astype(int), n, ALPHA)
        left.plot(n, p, color=colour, label=f"{100 * share:g} % of votes")
        left.axhline(share, color=colour, lw=0.7, ls=":")
        right.plot(n, np.where(p > 0.5, stats.norm.ppf(np.maximum(p, 0.5)), 0), color=colour)
    left.axhline(0.5, color=ink, lw=0.8, ls="--")
    left.set(xscale="log", xlabel="votes n", ylabel="lower bound on p", ylim=(0, 1.02))
    right.set(xscale="log", xlabel="votes n", ylabel="radius / σ")
    left.legend(frameon=False, loc="lower right")
    return figure


def abstention(ink: str) -> Figure:
    """The probability of an abstention over the true probability of the top class."""
    p = np.linspace(0.4, 0.8, 161)
    figure = Figure(figsize=(6.2, 3.1), layout="constrained")
    axes = figure.subplots()
    for n, colour in ((100, AMBER), (1_000, RED), (10_000, GREEN), (100_000, BLUE)):
        k = np.arange(n + 1)
        first = int(k[np.searchsorted(lower_bound(k, n, ALPHA), 0.5, side="right")])
        axes.plot(100 * p, 100 * stats.binom.cdf(first - 1, n, p), color=colour, label=f"n = {n:,}")
    axes.axvline(50, color=ink, lw=0.8, ls="--")
    axes.set(xlabel="true probability of the top class (%)", ylabel="abstains (%)")
    axes.legend(frameon=False)
    return figure


def norms(ink: str) -> Figure:
    """Balls of four norms, and the radii that the noises prove over the bound."""
    figure = Figure(figsize=(8.4, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    angle = np.linspace(0, 2 * np.pi, 400)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    for name, norm, colour in (("ℓ1", 1, AMBER), ("ℓ2", 2, BLUE), ("ℓ∞", np.inf, RED)):
        left.plot(*(circle / np.linalg.norm(circle, norm, axis=0)), color=colour, label=name)
    left.plot([-1.4, 1.4], [0, 0], color=GREEN, lw=1, ls="--", label="ℓ0: one coordinate")
    left.plot([0, 0], [-1.4, 1.4], color=GREEN, lw=1, ls="--")
    left.plot(0, 0, "o", color=ink, ms=4)
    left.set(aspect="equal", xlim=(-1.45, 1.45), ylim=(-1.45, 1.45), xticks=[], yticks=[], title="Balls of radius 1")
    left.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2)
    p = np.linspace(0.5, 0.999, 300)
    gaussian, uniform, discrete = sc.Gaussian(0.5), sc.Uniform(3**0.5 / 2), sc.Discrete(0.8, 1)
    right.plot(p, [gaussian.radius(q) for q in p], color=BLUE, label="Gaussian, ℓ2")
    right.plot(p, [uniform.radius(q) for q in p], color=AMBER, label="Uniform, ℓ1")
    right.plot(p, [discrete.radius(q) for q in p], color=GREEN, label="Discrete, ℓ0 (pixels)", drawstyle="steps-post")
    right.set(xlabel="lower bound on p", ylabel="radius", title="Radius that a bound proves", ylim=(0, 6.2))
    right.legend(frameon=False)
    return figure


def acr(ink: str) -> Figure:
    """Certified accuracy, and the distribution of the lower bound, of two models of the zoo."""
    figure = Figure(figsize=(8.4, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2)
    radii = np.linspace(0, 2, 201)
    for name, colour in (("gaussian", BLUE), ("catrs", RED)):
        run = sc.load_run(ROOT / "zoo" / f"mnist-lenet-{name}-0.50")
        table = run.table()
        label = f"{name}, ACR {run.acr:.3f}"
        left.plot(radii, [100 * each for each in run.certified_accuracy(list(radii))], color=colour, label=label)
        p = np.where(table["correct"].to_numpy(), table["p_lower"].to_numpy(), 0)
        right.plot(
            np.sort(stats.norm.ppf(np.clip(p, 0.5, None))), 100 * np.arange(1, len(p) + 1) / len(p), color=colour
        )
    left.set(xlabel="ℓ2 radius", ylabel="certified accuracy (%)", ylim=(0, 102))
    left.legend(frameon=False, loc="lower left")
    ticks = [0.5, 0.9, 0.99, 0.999, 0.9999]
    right.set(xlabel="lower bound on p_A", ylabel="share of images at or below (%)")
    right.set_xticks(stats.norm.ppf(ticks), [f"{tick:g}" for tick in ticks])
    return figure


def cost(ink: str) -> Figure:
    """Mean samples to decide a radius, over the probability of the top class; and the largest radius over n."""
    figure = Figure(figsize=(8.4, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2)
    threshold, n_max = float(stats.norm.cdf(1.0)), 100_000
    p = np.concatenate([np.linspace(0.5, 0.83, 34), np.linspace(0.832, 0.852, 11), np.linspace(0.86, 0.999, 30)])
    test = boundary(threshold, ALPHA, ALPHA, n_max)
    used = [operating_characteristics(test, float(q)) for q in p]
    left.plot(p, [each.expected_n for each in used], color=BLUE, label="Anytime, mean")
    left.plot(
        p, [min(wald_bound(q, threshold, ALPHA, ALPHA), 1e6) for q in p], color=RED, ls="--", label="Wald's bound"
    )
    left.axhline(n_max + 100, color=ink, lw=1, ls=":", label="Cohen, n = 100,000")
    left.set(yscale="log", xlabel="probability of the top class", ylabel="samples", ylim=(5, 4e5))
    left.set_title("Does the radius σ hold?")
    left.legend(frameon=False)
    n = np.geomspace(10, 1e7, 100)
    right.plot(n, stats.norm.ppf(ALPHA ** (1 / n)), color=BLUE)
    right.set(xscale="log", xlabel="samples n, all for one class", ylabel="radius / σ", title="Largest radius of n")
    return figure


PICTURES: tuple[Callable[[str], Figure], ...] = (smoothing, bounds, abstention, norms, acr, cost)


def main() -> None:
    """Write every picture in both colours."""
    FOLDER.mkdir(exist_ok=True)
    for suffix, look in LOOKS.items():
        ink = look["ink"]
        style = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), ink)
        style |= {"svg.hashsalt": "smoothcert", "svg.fonttype": "path", "font.size": 10, "axes.titlesize": 10.5}
        style |= {"axes.spines.top": False, "axes.spines.right": False, "axes.facecolor": "none"}
        with mpl.rc_context(style):
            for draw in PICTURES:
                figure = draw(ink)
                figure.savefig(FOLDER / f"{draw.__name__}{suffix}.svg", transparent=True, metadata={"Date": None})
                print(f"{draw.__name__}{suffix}.svg", flush=True)


if __name__ == "__main__":
    main()
