"""``smoothcert corruptions``: certify on suites of corruptions, and compare methods there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from smoothcert import data
from smoothcert.classifiers.identity import model_identity
from smoothcert.cli.certify import move_models
from smoothcert.cli.classifiers import ClassifierOptions, DataOptions, InputOptions, Seed, smoothed_for
from smoothcert.cli.options import check_choice, whole_numbers
from smoothcert.cli.procedures import DrawnNoiseOptions, ProcedureOptions
from smoothcert.cli.show import Format, Output, show, show_notes
from smoothcert.data.subset import select
from smoothcert.evaluate import certify_dataset
from smoothcert.report.corruptions import SuiteResults, check_alike, comparable, load_suite_results
from smoothcert.report.metrics import parse_radii
from smoothcert.report.tables.corruptions import LINES, corruption_sheet
from smoothcert.report.tables.layout import FORMATS
from smoothcert.types import UsageError

PICTURES = (".png", ".pdf", ".svg")


@dataclass(kw_only=True)
class ShowOptions:
    """How results are shown."""

    panel: ClassVar[str] = "Table and figures"

    radii: Annotated[str, typer.Option(help="Radii of certified accuracy, as a,b,c or FIRST:LAST:STEP.")] = "0"
    by: Annotated[str, typer.Option(help=f"What a line stands for: {', '.join(LINES)}.")] = "type"
    style: Annotated[
        str | None, typer.Option(help="catrs: names and order of types as in the tables of that paper.")
    ] = None
    format: Format = None
    output: Output = None
    plot: Annotated[Path | None, typer.Option(help="Draw the ACR of every type: .png, .pdf or .svg.")] = None
    plot_severity: Annotated[Path | None, typer.Option(help="Draw the ACR of every type over the severity.")] = None


def run(
    about: DataOptions,
    folder: Annotated[
        Path, typer.Option("--run", help="Folder of the suite; each corruption gets a run folder in it.")
    ],
    noise: DrawnNoiseOptions,
    how: ProcedureOptions,
    inputs: InputOptions,
    classifier: ClassifierOptions,
    shown: ShowOptions,
    types: Annotated[
        str | None,
        typer.Option(help="Corruptions, as a,b,c; identity is the clean set. By default all usual ones."),
    ] = None,
    severities: Annotated[str | None, typer.Option(help="Severities, as 1,3,5; by default all.")] = None,
    seed: Seed = None,
    corruption_seed: Annotated[int, typer.Option(help="Seed of corruptions that are made on the fly.")] = 0,
) -> None:
    """Certify a model on every corruption of a suite, and show what each costs.

    `--data mnist-c` and `--data cifar10-c` are the published suites; any other dataset is corrupted on the fly, in ways
    of our own, so do not compare those results with published ones. Stop it at any time; the same command
    continues, and what is finished is only read.

    **Examples**

        smoothcert corruptions run lenet.safetensors --data mnist-c --every 20 --run suites/lenet

        smoothcert corruptions run cohen.pth.tar --data cifar10-c --every 100 --severities 1,3,5 --run suites/cohen

        smoothcert corruptions run models/digits --data digits --types identity,fog,rotate --n 1000 --run suites/digits
    """
    radii = _checked(shown)
    chosen, procedure = noise.build(), how.build()
    sets = data.load_suite(
        about.data_name,
        types=_usual(about) if types is None else [part.strip() for part in types.split(",")],
        severities=None if severities is None else whole_numbers(severities, "--severities"),
        split=about.split,
        root=about.data_root,
        seed=corruption_seed,
    )
    if all(member.type == data.IDENTITY for member in sets):
        raise UsageError("identity is the clean set alone; name a corruption too, or take `smoothcert certify`.")
    if (shown.by == "severity" or shown.plot_severity is not None) and not any(member.severity for member in sets):
        raise UsageError(f"what is chosen of {about.data_name} has no severities to show; show types instead.")
    chosen_inputs = [select(len(member.dataset), **vars(inputs)) for member in sets]
    smoothed, source = smoothed_for(classifier, [member.dataset for member in sets], chosen, exact=noise.exact)
    move_models(procedure, smoothed)
    procedure, shared = how.share(procedure, sum(map(len, chosen_inputs)))  # of all sets of the suite
    check_alike(
        folder,
        {
            "noise": smoothed.noise.config(),
            "procedure": procedure.config(),
            "inputs": vars(inputs),
            "model": model_identity(smoothed.model),
            "precision": smoothed.precision,
        },
    )
    for number, member in enumerate(sets, 1):
        typer.echo(f"{member.name} ({number} of {len(sets)})", err=True)
        certify_dataset(
            smoothed,
            member.dataset,
            procedure,
            run=folder / member.name,
            **vars(inputs),
            seed=seed,
            source=source | shared,
        )
    _show([folder], shown, radii)


def table(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="One folder for each method, of runs or logs named TYPE or TYPE-SEVERITY."),
    ],
    shown: ShowOptions,
) -> None:
    """Show methods side by side: ACR and certified accuracy by corruption, and the means mACR and mAcc.

    Severities are averaged within a type first, then types; `identity`, the clean set, is in no mean. Folders of
    published logs work as well as those of `corruptions run`. Methods in different norms are refused; the best and the
    runner-up are found among methods of the same norm and guarantee.

    **Examples**

        smoothcert corruptions table suites/gaussian suites/catrs --plot types.png

        smoothcert corruptions table suites/* --by severity --radii 0,0.5 --format latex -o severity.tex

        smoothcert corruptions table logs/catrs-mnistc-025 --style catrs
    """
    _show(folders, shown, _checked(shown))


def _checked(shown: ShowOptions) -> tuple[float, ...]:
    """The radii to show; what cannot be shown is refused before anything is sampled."""
    check_choice("--by", shown.by, LINES)
    check_choice("--style", shown.style, ["catrs"])
    check_choice("table format", shown.format, FORMATS)
    for path in (shown.plot, shown.plot_severity):
        if path is not None and path.suffix.lower() not in PICTURES:
            raise UsageError(f"{path}: a picture is saved as {', '.join(PICTURES)}, by the suffix of its name.")
    return parse_radii(shown.radii)


def _show(folders: Sequence[Path], shown: ShowOptions, radii: tuple[float, ...]) -> None:
    methods, notes = comparable(load_suite_results(folders))
    show_notes(notes)
    sheet = corruption_sheet(methods, radii=radii, lines=shown.by, style=shown.style)
    _draw(methods, shown)
    show(sheet, shown.format, shown.output, notes=sheet.notes if shown.format == "csv" else ())


def _draw(methods: Sequence[SuiteResults], shown: ShowOptions) -> None:
    if shown.plot is None and shown.plot_severity is None:
        return
    from smoothcert.report.figures.corruptions import severity_figure, type_figure  # matplotlib takes a second to load
    from smoothcert.report.figures.style import save_figure

    # All are drawn before the first is saved.
    figures = {}
    if shown.plot is not None:
        figures[shown.plot] = type_figure(methods)
    if shown.plot_severity is not None:
        figures[shown.plot_severity] = severity_figure(methods)
    for path, figure in figures.items():
        save_figure(figure, path)
        typer.echo(f"Picture: {path}", err=True)


def _usual(about: DataOptions) -> list[str] | None:
    """The types to take where none are named; None for all, the clean set included."""
    info = data.DATASETS.get(about.data_name)
    if info is None or not info.severities or info.clean is None or data.available(info.clean, root=about.data_root):
        return None
    typer.echo(
        f"Note: the clean set is left out, as {info.clean} is not here; run `smoothcert data fetch {info.clean}`.",
        err=True,
    )
    return list(info.types)
