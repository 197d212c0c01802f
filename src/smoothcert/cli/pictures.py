"""The kinds of pictures of ``smoothcert plot``: each reads runs and logs, and draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smoothcert import data, models
from smoothcert.report.aces import load_components, load_single
from smoothcert.report.metrics import parse_radii
from smoothcert.store import Result, Run, find_results, flat_config
from smoothcert.store.noisy_copies import check_data, noisy_copies
from smoothcert.types import CheckpointError, Norm, RunError, SmoothcertError, UsageError, unknown_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from smoothcert.report.aces import Components, Single
    from smoothcert.report.figures.inputs import VotedInput

COPIES = 4
"""Noisy copies shown beside an input."""


@dataclass(kw_only=True)
class PlotOptions:
    """What single kinds of pictures can be asked for."""

    envelope: Annotated[bool, typer.Option("--envelope", help="curve: the best of the runs at every radius too.")] = (
        False
    )
    intervals: Annotated[
        bool, typer.Option("--intervals", help="curve: shade 95 % intervals over the test sample.")
    ] = False
    radius: Annotated[
        float | None,
        typer.Option(min=0, help="tradeoff: certified accuracy at this radius, instead of the ACR."),
    ] = None
    core: Annotated[
        Path | None, typer.Option(help="tradeoff: predictions of the core of ACES, for logs that lack them.")
    ] = None
    over: Annotated[
        str | None,
        typer.Option(help="effect: a setting, as noise.sigma, procedure.n or, of the checkpoint, recipe.method.lam."),
    ] = None
    radii: Annotated[
        str | None, typer.Option(help="effect: radii, as FIRST:LAST:STEP or a,b,c; by default up to four.")
    ] = None
    bars: Annotated[
        str | None, typer.Option(help="effect: of runs that share a value, show their range (default) or sd.")
    ] = None
    index: Annotated[
        str | None,
        typer.Option(help="inputs: which ones, as 3,17; by default those of smallest, middle and largest radius."),
    ] = None
    copies: Annotated[int | None, typer.Option(min=1, max=20, help=f"inputs: noisy copies of each ({COPIES}).")] = None
    data_name: Annotated[
        str | None, typer.Option("--data", help="inputs: the dataset, where the run's own name does not lead to it.")
    ] = None
    data_root: Annotated[Path | None, typer.Option(help="inputs: where datasets are kept.")] = None
    title: Annotated[str | None, typer.Option(help="A title above the picture.")] = None


@dataclass(frozen=True)
class Kind:
    """A kind of picture.

    Attributes:
        draw: Reads the paths and draws them.
        options: The options that only this kind (and perhaps others that name them) takes.
    """

    draw: Callable[[Sequence[Path], PlotOptions], Figure]
    options: tuple[str, ...] = ()


def draw_curve(paths: Sequence[Path], options: PlotOptions) -> Figure:
    """Certified accuracy over the radius, with the sampling limits of runs that have one."""
    from smoothcert.report.figures.curves import certified_accuracy_figure

    found = find_results(paths)
    limits = {each.name: limit for each in found if (limit := each.sampling_limit)}
    return certified_accuracy_figure(
        [each.outcomes for each in found],
        limits=limits,
        best=options.envelope,
        intervals=options.intervals,
        title=options.title,
    )


def draw_tradeoff(paths: Sequence[Path], options: PlotOptions) -> Figure:
    """Robustness over natural accuracy: points for runs with a fixed n, curves for ACES.

    Raises:
        UsageError: If the natural accuracy of runs is not known; all of them are named.
    """
    from smoothcert.report.figures.aces import pareto_figure

    compositions: list[Components] = []
    singles: list[Single] = []
    unknown: dict[str, str] = {}
    for each in find_results(paths):
        try:
            if each.prefix is not None or each.settings.composed:
                compositions.append(load_components(each, options.core))
            else:
                singles.append(load_single(each))
        except UsageError as error:
            unknown[each.name] = str(error)
    if unknown:
        raise UsageError(f"the natural accuracy of {', '.join(unknown)} is not known: {next(iter(unknown.values()))}")
    return pareto_figure(compositions, singles, radius=options.radius, title=options.title)


def draw_effect(paths: Sequence[Path], options: PlotOptions) -> Figure:
    """Robustness over the value of a setting.

    Raises:
        UsageError: If no setting is named, or a run does not have it.
    """
    from smoothcert.report.figures.effects import effect_figure

    if options.over is None:
        raise UsageError("name the setting whose effect is to be drawn, such as --over noise.sigma.")
    radii = None if options.radii is None else parse_radii(options.radii)
    runs = [(_setting(each, options.over), each.outcomes) for each in find_results(paths)]
    return effect_figure(runs, options.over, radii=radii, bars=options.bars or "range", title=options.title)


def draw_confidence(paths: Sequence[Path], options: PlotOptions) -> Figure:
    """How p_A is distributed over the inputs."""
    from smoothcert.report.figures.distributions import Confidence, confidence_figure

    return confidence_figure([Confidence.of(each) for each in find_results(paths)], title=options.title)


def draw_samples(paths: Sequence[Path], options: PlotOptions) -> Figure:
    """How many samples the inputs took."""
    from smoothcert.report.figures.distributions import Samples, samples_figure

    return samples_figure([Samples.of(each) for each in find_results(paths)], title=options.title)


def draw_inputs(paths: Sequence[Path], options: PlotOptions) -> Figure:
    """Inputs of one run under noise, and their votes.

    Raises:
        UsageError: If there are several runs, the run keeps no votes or lacks an input, or its dataset is another.
    """
    from smoothcert.report.figures.inputs import votes_figure

    found = find_results(paths)
    if len(found) != 1 or found[0].run is None or "data" not in found[0].run.config:
        words = "name one" if len(found) != 1 else f"{found[0].path} is none"
        raise UsageError(f"inputs are shown of one run folder that smoothcert certified; {words}.")
    run = found[0].run
    rows = {row["index"]: row for row in run.rows()}
    chosen = _indices(options.index, rows, run)
    dataset = _dataset(run, options)
    check_data(run, dataset)
    shown = [_voted(run, rows[index], dataset[index][0], options.copies or COPIES) for index in chosen]
    return votes_figure(shown, dataset.class_names, title=options.title)


KINDS = {
    "curve": Kind(draw_curve, ("envelope", "intervals")),
    "tradeoff": Kind(draw_tradeoff, ("radius", "core")),
    "effect": Kind(draw_effect, ("over", "radii", "bars")),
    "confidence": Kind(draw_confidence),
    "samples": Kind(draw_samples),
    "inputs": Kind(draw_inputs, ("index", "copies", "data_name", "data_root")),
}
"""All kinds of pictures, by name."""


def _setting(each: Result, key: str) -> Any:
    """A setting of a run or, below ``recipe``, of the training of its model."""
    if each.run is None:
        raise UsageError(f"{each.path} is a log, which does not tell its settings; show run folders.")
    if not key.startswith("recipe."):
        return _looked_up(each.run.config, key, each.name)
    source = each.run.info["sessions"][0].get("source") or {}
    if "checkpoint" not in source:
        raise UsageError(f"{each.path} does not say which checkpoint it came from, so its {key} is not known.")
    try:
        checkpoint = models.describe(source["checkpoint"])
    except CheckpointError as error:
        raise UsageError(f"{each.path} came from a checkpoint that cannot be read now: {error}") from error
    if checkpoint.sha256 != source["sha256"]:
        raise UsageError(f"{source['checkpoint']} has changed since {each.path} was certified, so {key} is not known.")
    if "recipe" not in checkpoint.info.extra:
        raise UsageError(f"{source['checkpoint']}, from which {each.path} came, was not trained by a recipe.")
    return _looked_up({"recipe": checkpoint.info.extra["recipe"]}, key, each.name)


def _looked_up(config: Mapping[str, Any], key: str, name: str) -> Any:
    flat = flat_config(config)
    if key not in flat:
        raise unknown_name(f"setting of {name}", key, flat)
    return flat[key]


def _indices(text: str | None, rows: dict[int, dict[str, Any]], run: Run) -> list[int]:
    """The inputs asked for; else those of smallest, middle and largest radius."""
    if not rows:
        raise RunError(f"{run.path} holds no rows yet.")
    if text is None:
        ordered = sorted(rows, key=lambda index: (rows[index]["radius"], index))
        return list(dict.fromkeys([ordered[0], ordered[len(ordered) // 2], ordered[-1]]))
    try:
        wanted = list(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"indices must be whole numbers such as 3,17; got {text!r}.") from None
    for index in wanted:
        if index not in rows:
            nearest = min(rows, key=lambda known: (abs(known - index), known))
            raise UsageError(f"input {index} is not among the {len(rows)} of {run.path}; the nearest is {nearest}.")
    return wanted


def _dataset(run: Run, options: PlotOptions) -> data.Dataset:
    """The dataset a run is about."""
    known = run.config["data"]
    try:
        return data.load(options.data_name or known["name"], split=known["split"] or "test", root=options.data_root)
    except SmoothcertError as error:
        if options.data_name is not None:
            raise
        raise UsageError(
            f"{run.path} is about {known['name']}, which cannot be loaded; name it by --data: {error}"
        ) from error


def _voted(run: Run, row: dict[str, Any], x: Any, copies: int) -> VotedInput:
    from smoothcert.report.figures.inputs import VotedInput

    return VotedInput(
        index=row["index"],
        image=x.numpy(),
        copies=list(noisy_copies(run, row, x, copies).numpy()),
        norm=Norm(row["norm"]),
        **{key: row[key] for key in ("counts", "n", "label", "predict", "radius")},
    )
