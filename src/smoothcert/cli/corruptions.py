"""``smoothcert corruptions``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from smoothcert import data
from smoothcert.classifiers.identity import model_identity
from smoothcert.cli.classifiers import ClassifierOptions, DataOptions, InputOptions, Seed, load_smoothed
from smoothcert.cli.options import Group, choice, whole_numbers
from smoothcert.cli.procedures import DrawnNoiseOptions, ProcedureOptions
from smoothcert.cli.show import Format, Output, picture, radii, save_pictures, show
from smoothcert.evaluate import certify_dataset
from smoothcert.report.corruptions import check_alike, comparable, load_suite_results
from smoothcert.report.tables.corruptions import LINES, corruption_sheet
from smoothcert.store.selection import select
from smoothcert.types import UsageError


@dataclass(kw_only=True)
class ShowOptions(Group, panel="Table and figures"):
    """How results are shown."""

    radii: Annotated[tuple[float, ...] | None, radii("Radii of certified accuracy (0)")] = None
    by: Annotated[str, choice("--by", LINES, "What a line stands for")] = "type"
    style: Annotated[str | None, choice("--style", ["catrs"], "Names and order of types as in a paper")] = None
    format: Format = None
    output: Output = None
    plot: Annotated[Path | None, picture("Draw the ACR of every type: .png, .pdf or .svg.")] = None
    plot_severity: Annotated[Path | None, picture("Draw the ACR of every type over the severity.")] = None


def run(
    about: DataOptions,
    folder: Annotated[Path, typer.Option("--run", help="Folder of the suite, for a run folder per corruption.")],
    noise: DrawnNoiseOptions,
    how: ProcedureOptions,
    inputs: InputOptions,
    classifier: ClassifierOptions,
    shown: ShowOptions,
    types: Annotated[str | None, "Corruptions, as a,b,c; identity is the clean set. By default all."] = None,
    severities: Annotated[str | None, "Severities, as 1,3,5; by default all."] = None,
    seed: Seed = None,
    corruption_seed: Annotated[int, "Seed of corruptions that are made on the fly."] = 0,
) -> None:
    """Certify a model on every corruption of a suite, and show the results by corruption.

    `--data mnist-c` and `--data cifar10-c` are the published suites; any other dataset is corrupted on the fly by
    similar functions, so do not compare those results with published ones. Stop it at any time; the same command
    continues.

    **Examples**

        smoothcert corruptions run lenet.safetensors --data mnist-c --every 20 --run suites/lenet
        smoothcert corruptions run cohen.pth.tar --data cifar10-c --every 100 --severities 1,3,5 --run suites/cohen
        smoothcert corruptions run models/digits --data digits --types identity,fog,rotate --n 1000 --run suites/digits
    """
    chosen, procedure = noise.build(), how.build(classifier.aces)
    sets = data.load_suite(
        about.data_name,
        types=_default_types(about) if types is None else [part.strip() for part in types.split(",")],
        severities=None if severities is None else whole_numbers(severities, "--severities"),
        split=about.split,
        root=about.data_root,
        seed=corruption_seed,
    )
    if all(member.type == data.IDENTITY for member in sets):
        raise UsageError("identity is the clean set; name a corruption too, or use `smoothcert certify`.")
    if (shown.by == "severity" or shown.plot_severity is not None) and not any(member.severity for member in sets):
        raise UsageError(f"these corruptions of {about.data_name} have no severities; show types instead.")
    count = sum(len(select(len(member.dataset), **vars(inputs))) for member in sets)
    loaded = load_smoothed(classifier, [member.dataset for member in sets], chosen, noise.exact)
    smoothed = loaded.smoothed
    procedure, shared = how.share(loaded.completed(procedure), count, smoothed.device)
    made = {"noise": smoothed.noise.config(), "procedure": procedure.config(), "inputs": vars(inputs)}
    check_alike(folder, {**made, "model": model_identity(smoothed.model), "precision": smoothed.precision})
    recorded: dict[str, Any] = {**vars(inputs), "seed": seed, "source": loaded.source | shared}
    for number, member in enumerate(sets, 1):
        typer.echo(f"{member.name} ({number} of {len(sets)})", err=True)
        certify_dataset(smoothed, member.dataset, procedure, run=folder / member.name, **recorded)
    table([folder], shown)


def table(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="A folder of runs or logs for each method.")],
    shown: ShowOptions,
) -> None:
    """Show methods side by side: ACR and certified accuracy by corruption, and the means mACR and mAcc.

    A folder comes from `corruptions run`, or holds published logs named TYPE or TYPE-SEVERITY. Severities are averaged
    within a type first, then types; `identity`, the clean set, is in no mean. Methods in different norms are refused;
    best and runner-up are marked among methods of the same norm and guarantee.

    **Examples**

        smoothcert corruptions table suites/gaussian suites/catrs --plot types.png
        smoothcert corruptions table suites/* --by severity --radii 0,0.5 --format latex -o severity.tex
        smoothcert corruptions table logs/catrs-mnistc-025 --style catrs
    """
    methods, notes = comparable(load_suite_results(folders))
    sheet = corruption_sheet(methods, radii=shown.radii or (0.0,), lines=shown.by, style=shown.style)
    if shown.plot or shown.plot_severity:
        from smoothcert.report.figures.corruptions import severity_figure, type_figure

        wanted = {shown.plot: type_figure, shown.plot_severity: severity_figure}
        save_pictures({path: draw(methods) for path, draw in wanted.items() if path is not None})
    show(sheet, shown.format, shown.output, notes=[*notes, *(sheet.notes if shown.format == "csv" else ())])


def _default_types(about: DataOptions) -> list[str] | None:
    """All types: None includes the clean set, which is left out where it is missing."""
    info = data.DATASETS.get(about.data_name)
    if info is None or not info.severities or info.clean is None or data.available(info.clean, root=about.data_root):
        return None
    typer.echo(
        f"Note: the clean set is left out, as {info.clean} is not here; run `smoothcert data fetch {info.clean}`.",
        err=True,
    )
    return list(info.types)
