"""``smoothcert aces``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from smoothcert.cli.show import Format, Output, Radii, picture, save_pictures, show
from smoothcert.report.aces import check_comparable, load_components, load_single
from smoothcert.report.tables.aces import aces_table, parse_thetas, render_aces, rich_aces
from smoothcert.store.result import distinct_names
from smoothcert.types import UsageError


def aces(
    runs: Annotated[list[Path], "A run of the procedure aces, or the prefix of published logs. May be repeated."],
    core: Annotated[Path | None, "Predictions of the core: a log (idx, label, predict) or its imported run."] = None,
    theta: Annotated[str | None, "Thresholds, as a,b,c or FIRST:LAST:STEP; by default 0, 0.1, …, 1."] = None,
    radii: Radii = None,
    format: Format = None,
    output: Output = None,
    plot: Annotated[Path | None, picture("Draw robustness over natural accuracy: .png, .pdf or .svg.")] = None,
    plot_radius: Annotated[float | None, "Certified accuracy at this radius in figures, instead of the ACR."] = None,
    single: Annotated[list[Path] | None, "A run or log to show as a point in the figure. May be repeated."] = None,
    plot_selection: Annotated[Path | None, picture("Draw the certified radii of the selection.")] = None,
    plot_entropy: Annotated[Path | None, picture("Draw the inputs certified at --plot-radius by entropy.")] = None,
) -> None:
    """Compose a certifier, its selector and an accurate core (ACES), at any threshold and without new samples.

    For every threshold θ: natural accuracy (NAC), average certified radius (ACR), and at each radius the certified
    accuracy and the share of inputs certified to go to the certifier. Each line holds with confidence 1 - α per input
    for a θ that was chosen beforehand; a θ picked by looking at test results is fitted to them. Runs in different norms
    are refused, and nothing is ranked.

    **Examples**

        smoothcert aces --runs runs/cifar10-aces --theta 0.1,0.3 --radii 0:1:0.25
        smoothcert aces --runs logs/cifar10_consistency_025 --core logs/lanet_core_prediction --plot pareto.png
    """
    thetas = parse_thetas(theta) if theta is not None else None
    if single and plot is None:
        raise UsageError("--single shows a point in a figure; name the figure with --plot.")
    if plot_radius is not None and plot is None and plot_entropy is None:
        raise UsageError("--plot-radius is about a figure; name it with --plot or --plot-entropy.")
    if len(runs) > 1 and (plot_selection or plot_entropy):
        raise UsageError("--plot-selection and --plot-entropy show one run; give --runs once.")
    if plot_entropy is not None and plot_radius is None:
        raise UsageError("--plot-entropy counts what is certified at a radius; give --plot-radius.")
    parts = [load_components(path, core, thetas=thetas) for path in runs]
    names = distinct_names({path.resolve(): part.name for path, part in zip(runs, parts, strict=True)})
    parts = [part.named(names[path.resolve()]) for path, part in zip(runs, parts, strict=True)]
    check_comparable(parts)
    table = aces_table(parts, thetas, radii)
    if plot or plot_selection or plot_entropy:
        from smoothcert.report.figures.aces import entropy_figure, pareto_figure, selection_figure

        figures = {}
        if plot is not None:
            figures[plot] = pareto_figure(parts, [load_single(path) for path in single or ()], radius=plot_radius)
        if plot_selection is not None:
            figures[plot_selection] = selection_figure(parts[0], thetas or (0.1, 0.3, 0.5, 0.7))
        if plot_entropy is not None and plot_radius is not None:
            chosen = thetas[0] if thetas is not None and len(thetas) == 1 else None
            figures[plot_entropy] = entropy_figure(parts[0], plot_radius, theta=chosen)
        save_pictures(figures)
    show(
        lambda wanted: rich_aces(table) if wanted is None else render_aces(table, wanted),
        format,
        output,
        notes=table.notes if format == "csv" else (),
    )
