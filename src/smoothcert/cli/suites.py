"""``smoothcert corruptions table``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from smoothcert.cli.options import Group, choice
from smoothcert.cli.show import Format, Output, picture, radii, save_pictures, show
from smoothcert.report.corruptions import comparable, load_suite_results
from smoothcert.report.tables.corruptions import LINES, corruption_sheet


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
