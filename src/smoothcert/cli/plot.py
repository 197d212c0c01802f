"""``smoothcert plot``: each kind of figure reads runs and logs, and draws them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smoothcert import data
from smoothcert.cli.options import DataRoot, Group, choice, whole_numbers
from smoothcert.cli.results import Results
from smoothcert.cli.show import inches, listed, picture, radii, save_pictures
from smoothcert.report.aces import load_components, load_single
from smoothcert.store import Result, Run, find_results, flat_config, labelled
from smoothcert.types import CheckpointError, Norm, RunError, SmoothcertError, UsageError, unknown_name

if TYPE_CHECKING:
    from smoothcert.report.figures.style import Picture

_COPIES = 4


@dataclass(kw_only=True)
class PlotOptions(Group):
    """Options of single kinds of figures."""

    envelope: Annotated[bool, "curve: add the best of the runs at every radius."] = False
    intervals: Annotated[bool, "curve: shade 95 % intervals over the test sample."] = False
    radius: Annotated[float | None, "tradeoff: certified accuracy at this radius, instead of the ACR."] = None
    core: Annotated[Path | None, "tradeoff: predictions of the core of ACES, for logs that lack them."] = None
    over: Annotated[str | None, "effect: a setting, such as noise.sigma, procedure.n or recipe.method.lam."] = None
    radii: Annotated[tuple[float, ...] | None, radii("effect: up to four radii")] = None
    bars: Annotated[str | None, "effect: range (default) or sd of runs with the same value."] = None
    index: Annotated[str | None, "inputs: which ones, as 3,17 (smallest, median and largest radius)."] = None
    copies: Annotated[int | None, typer.Option(min=1, max=20, help=f"inputs: noisy copies of each ({_COPIES}).")] = None
    data_name: Annotated[str | None, typer.Option("--data", help="inputs: the dataset; by default the run's.")] = None
    data_root: DataRoot = None
    labels: Annotated[tuple[str, ...] | None, listed('Names of the runs in the legend, as "Cohen,CAT-RS".')] = None
    title: Annotated[str | None, "A title above the figure."] = None
    size: Annotated[tuple[float, float] | None, inches("Width and height in inches, as 3.25x2.5, legend included.")] = (
        None
    )


def draw_curve(paths: Sequence[Path], options: PlotOptions) -> Picture:
    """Draw certified accuracy over the radius, with the sampling limits of runs that have one."""
    from smoothcert.report.figures.curves import certified_accuracy_figure

    found = _named(paths, options)
    return certified_accuracy_figure(
        [each.outcomes for each in found],
        limits={each.name: limit for each in found if (limit := each.sampling_limit)},
        best=options.envelope,
        intervals=options.intervals,
        title=options.title,
    )


def draw_tradeoff(paths: Sequence[Path], options: PlotOptions) -> Picture:
    """Draw robustness over natural accuracy: points for runs with a fixed n, curves for ACES."""
    from smoothcert.report.figures.aces import pareto_figure

    compositions, singles, unknown = {}, {}, {}
    for place, each in enumerate(_named(paths, options)):
        try:
            if each.prefix is not None or each.settings.composed:
                compositions[place] = load_components(each, options.core)
            else:
                singles[place] = load_single(each)
        except UsageError as error:
            unknown[each.name] = str(error)
    if unknown:
        raise UsageError(f"the natural accuracy of {', '.join(unknown)} is not known: {next(iter(unknown.values()))}")
    places = [*compositions, *singles]
    shown = [*compositions.values()], [*singles.values()]
    return pareto_figure(*shown, radius=options.radius, places=places, title=options.title)


def draw_effect(paths: Sequence[Path], options: PlotOptions) -> Picture:
    """Draw robustness over the value of a setting."""
    from smoothcert.report.figures.effects import effect_figure

    if options.over is None:
        raise UsageError("name the setting on the horizontal axis, such as --over noise.sigma.")
    runs = [(_setting(each, options.over), each.outcomes) for each in find_results(paths)]
    return effect_figure(runs, options.over, radii=options.radii, bars=options.bars or "range", title=options.title)


def draw_confidence(paths: Sequence[Path], options: PlotOptions) -> Picture:
    """Draw the distribution of p_A over the inputs."""
    from smoothcert.report.figures.distributions import Confidence, confidence_figure

    return confidence_figure([Confidence.of(each) for each in _named(paths, options)], title=options.title)


def draw_samples(paths: Sequence[Path], options: PlotOptions) -> Picture:
    """Draw the distribution of the number of samples over the inputs."""
    from smoothcert.report.figures.distributions import Samples, samples_figure

    return samples_figure([Samples.of(each) for each in _named(paths, options)], title=options.title)


def draw_inputs(paths: Sequence[Path], options: PlotOptions) -> Picture:
    """Draw inputs of one run under noise, and their votes."""
    from smoothcert.report.figures.inputs import VotedInput, votes_figure
    from smoothcert.store.noisy_copies import check_data, noisy_copies  # imports PyTorch

    found = find_results(paths)
    if len(found) != 1 or found[0].run is None or "data" not in found[0].run.config:
        words = "name one" if len(found) != 1 else f"{found[0].path} is not one"
        raise UsageError(f"this figure needs one run folder that smoothcert certified; {words}.")
    run = found[0].run
    rows = {row["index"]: row for row in run.rows()}
    indices = _indices(options.index, rows, run)
    dataset = _dataset(run, options)
    check_data(run, dataset)
    shown = []
    for row in map(rows.__getitem__, indices):
        x = dataset[row["index"]][0]
        copies = list(noisy_copies(run, row, x, options.copies or _COPIES).numpy())
        votes = {key: row[key] for key in ("index", "counts", "n", "label", "predict", "radius")}
        shown.append(VotedInput(image=x.numpy(), copies=copies, norm=Norm(row["norm"]), **votes))
    return votes_figure(shown, dataset.class_names, title=options.title)


KINDS: dict[str, tuple[Callable[[Sequence[Path], PlotOptions], Picture], tuple[str, ...]]] = {
    "curve": (draw_curve, ("envelope", "intervals", "labels")),
    "tradeoff": (draw_tradeoff, ("radius", "core", "labels")),
    "effect": (draw_effect, ("over", "radii", "bars")),
    "confidence": (draw_confidence, ("labels",)),
    "samples": (draw_samples, ("labels",)),
    "inputs": (draw_inputs, ("index", "copies", "data_name", "data_root")),
}
"""The function that draws each kind of figure, and the options that not all kinds have."""


def draw(kind: str, paths: Sequence[Path], options: PlotOptions) -> Picture:
    """Draw a figure of a kind; options that it does not have are refused."""
    function, own = KINDS[kind]
    for name in (field.name for field in fields(options)):
        kinds = [each for each, (_, names) in KINDS.items() if name in names]
        if kinds and name not in own and getattr(options, name) not in (None, False):
            option = "--data" if name == "data_name" else f"--{name.replace('_', '-')}"
            of = f"the kind {kinds[0]}" if len(kinds) == 1 else f"the kinds {', '.join(kinds)}"
            raise UsageError(f"{option} is for {of}, not for {kind}.")
    figure = function(paths, options)
    if options.size is not None:
        from smoothcert.report.figures.style import resize

        resize(figure, options.size)
    return figure


def plot(
    paths: Results,
    options: PlotOptions,
    kind: Annotated[str, choice("kind of figure", KINDS, "What to draw", "--kind", "-k")] = "curve",
    output: Annotated[Path | None, picture("File: .png, .pdf, .svg or - (KIND.png).", "--output", "-o")] = None,
) -> None:
    """Draw runs and logs.

    `curve`: certified accuracy over the radius. `tradeoff`: robustness over natural accuracy. `effect`: robustness over
    a setting in which the runs differ. `confidence`: the probability of the top class over the inputs. `samples`: the
    number of samples over the inputs. `inputs`: inputs under noise, and their votes.

    **Examples**

        smoothcert plot demo/runs -o curves.pdf
        smoothcert plot runs/mine published/sigma_0.50 --envelope --intervals
        smoothcert plot runs/mine published/sigma_0.50 --labels "Ours,Cohen et al." --size 3.25x2.75 -o column.pdf
        smoothcert plot runs/* --kind tradeoff --radius 0.5
        smoothcert plot runs/* --kind effect --over noise.sigma --radii 0,0.25,0.5
        smoothcert plot runs/anytime runs/fixed --kind samples
        smoothcert plot demo/runs/sigma-0.25 --kind inputs --index 4,18
    """
    save_pictures({output or Path(f"{kind}.png"): draw(kind, paths, options)})


def _named(paths: Sequence[Path], options: PlotOptions) -> list[Result]:
    """Find the results, under the names that --labels has for them."""
    return labelled(find_results(paths), options.labels)


def _setting(each: Result, key: str) -> Any:
    """A setting of a run or, below ``recipe``, of the training of its model."""
    if each.run is None:
        raise UsageError(f"{each.path} is a log, which does not record its settings; name run folders.")
    if not key.startswith("recipe."):
        return _looked_up(each.run.config, key, each.name)
    source = each.run.info["sessions"][0].get("source") or {}
    if "checkpoint" not in source:
        raise UsageError(f"{each.path} does not record its checkpoint, so its {key} is not known.")
    from smoothcert import models  # imports PyTorch

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


def _indices(text: str | None, rows: Mapping[int, Mapping[str, Any]], run: Run) -> list[int]:
    if not rows:
        raise RunError(f"{run.path} holds no rows yet.")
    if text is None:
        ordered = sorted(rows, key=lambda index: (rows[index]["radius"], index))
        return list(dict.fromkeys([ordered[0], ordered[len(ordered) // 2], ordered[-1]]))
    indices = list(dict.fromkeys(whole_numbers(text, "--index")))
    for index in indices:
        if index not in rows:
            nearest = min(rows, key=lambda known: (abs(known - index), known))
            raise UsageError(f"input {index} is not among the {len(rows)} of {run.path}; the nearest is {nearest}.")
    return indices


def _dataset(run: Run, options: PlotOptions) -> data.Dataset:
    known = run.config["data"]
    split = known["split"] or "test"
    try:
        if options.data_name is None and known["name"] not in data.DATASETS:  # a file must not name code to be imported
            raise UsageError(f"{known['name']!r} is not a named dataset.")
        return data.load(options.data_name or known["name"], split=split, root=options.data_root)
    except SmoothcertError as error:
        if options.data_name is not None:
            raise
        raise UsageError(
            f"{run.path} is about {known['name']}, which cannot be loaded; give --data: {error}"
        ) from error
