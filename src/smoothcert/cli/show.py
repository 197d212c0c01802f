"""Show tables, figures and notes: the one place that decides between terminal, pipe and file."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType

from smoothcert.cli.options import checked, choice, output_file
from smoothcert.files import saving
from smoothcert.report.metrics import parse_radii
from smoothcert.report.notes import chosen
from smoothcert.report.notes import notes as table_notes
from smoothcert.report.tables.accuracy import accuracy_table, render, rich_table
from smoothcert.report.tables.layout import FORMATS, Sheet, render_sheet, rich_sheet
from smoothcert.store import Outcomes
from smoothcert.types import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Format = Annotated[str | None, choice("table format", FORMATS, "Format", "--format", "-f")]
Output = Annotated[Path | None, output_file("File to write")]


def radii(help: str, *names: str) -> Any:
    """Make an option for radii, or other numbers written as radii are."""
    listed = f"{help}, as a,b,c or FIRST:LAST:STEP."
    return typer.Option(*names, parser=parse_radii, metavar="<float,…>", help=listed)


Radii = Annotated[tuple[float, ...] | None, radii("Radii (0, 0.25, …)")]


def listed(help: str) -> Any:
    """Make an option for texts that commas separate, as in a line of CSV."""

    def read(text: str) -> list[str]:
        return [value.strip() for value in next(csv.reader([text], skipinitialspace=True), [])]

    return typer.Option(parser=read, metavar="<text,…>", help=help)


def inches(help: str) -> Any:
    """Make an option for the width and the height of a figure."""

    def read(text: str) -> tuple[float, float]:
        try:
            width, height = map(float, text.split("x"))
        except ValueError:
            raise UsageError(f"a size is a width and a height in inches, such as 3.25x2.5, not {text!r}.") from None
        return width, height

    return typer.Option(parser=read, metavar="<WxH>", help=help)


def picture(help: str, *names: str) -> Any:
    """Make an option for the file of a figure."""

    def check(path: Path) -> None:
        from smoothcert.report.figures.style import check_suffix  # matplotlib takes a second to load

        check_suffix(path)

    return checked(check, *names, help=help)


def show(
    table: Sheet | Callable[[str | None], RenderableType],
    format: str | None = None,
    output: Path | None = None,
    *,
    err: bool = False,
    notes: Iterable[str] = (),
) -> None:
    """Show a table: drawn on a terminal, as Markdown in a pipe or a file, or in the given format.

    A terminal that is too narrow for the table gets Markdown, so that no column is lost.

    Args:
        table: The table, or a function that returns its text in a format and, for None, its drawing for a terminal.
        err: Print the table on stderr, because another file goes to standard output.
        notes: Sentences to print on stderr.
    """

    def made(format: str | None) -> RenderableType:
        if not isinstance(table, Sheet):
            return table(format)
        return rich_sheet(table) if format is None else render_sheet(table, format)

    console = Console(stderr=err)
    if output is not None:
        with saving(output) as temporary:
            temporary.write_text(str(made(format or "md")), encoding="utf-8")
    elif format is None and (sys.stderr if err else sys.stdout).isatty() and fits(drawn := made(None), console):
        console.print(drawn)
    else:
        typer.echo(str(made(format or "md")), nl=False, err=err)
    for sentence in notes:
        typer.echo(f"Note: {sentence}", err=True)


def show_accuracy(
    runs: Sequence[Outcomes],
    radii: Sequence[float] | None = None,
    format: str | None = None,
    output: Path | None = None,
    *,
    each: bool = False,
    **look: Any,
) -> None:
    """Show certified accuracy; ``look`` are options of ``report.render``."""
    table = accuracy_table(runs, radii, each=each)
    # CSV has no place for notes.
    notes = table_notes(table.rows) if format == "csv" else chosen(runs)
    show(
        lambda wanted: rich_table(table, **look) if wanted is None else render(table, wanted, **look),
        format,
        output,
        notes=notes,
    )


def fits(drawn: RenderableType, console: Console) -> bool:
    """Tell whether a terminal is wide enough to draw a table with all its columns."""
    wide = console.options.update(max_width=10_000)  # a measure never exceeds the width it is given
    return console.measure(drawn, options=wide).minimum <= console.width


def show_columns(lines: Sequence[Sequence[str]], left: int = 0) -> None:
    """Print lines of cells in columns: the first ``left`` aligned to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = enumerate(zip(line, widths, strict=True))
        typer.echo("  ".join(f"{text:{'<' if i < left else '>'}{width}}" for i, (text, width) in cells))


def save_pictures(figures: Mapping[Path, Figure]) -> None:
    """Save figures, all of which are drawn before the first is saved."""
    from smoothcert.report.figures.style import save_figure

    for path, figure in figures.items():
        save_figure(figure, path)
        typer.echo(f"Picture: {path}", err=True)
