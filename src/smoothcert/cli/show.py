"""Show tables and notes: the one place that decides between terminal, pipe and file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType

from smoothcert.files import saving
from smoothcert.report.tables.layout import FORMATS, Sheet, render_sheet, rich_sheet

Format = Annotated[str | None, typer.Option("--format", "-f", help=f"{', '.join(FORMATS)}.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file; - is standard output.")]
Radii = Annotated[str | None, typer.Option(help="Radii, as FIRST:LAST:STEP or a,b,c; by default 0, 0.25, …")]


def show(
    table: Sheet | Callable[[str | None], RenderableType],
    format: str | None = None,
    output: Path | None = None,
    *,
    err: bool = False,
    notes: Iterable[str] = (),
) -> None:
    """Show a table: drawn on a terminal, as Markdown into a pipe or a file, or in the format asked for.

    A terminal that is too narrow for the table gets Markdown too, so that no column is lost.

    Args:
        table: The table, or a function that gives its text in a format and, for None, what a terminal draws.
        format: The format asked for.
        output: The file to write; ``-`` is standard output.
        err: Whether standard output is taken, so that the table goes to stderr.
        notes: What to say about the table on stderr.
    """
    given = partial(_sheet, table) if isinstance(table, Sheet) else table
    console = Console(stderr=err)
    if output is not None:
        write_text(output, str(given(format or "md")))
    elif format is None and (sys.stderr if err else sys.stdout).isatty() and fits(drawn := given(None), console):
        console.print(drawn)
    else:
        typer.echo(str(given(format or "md")), nl=False, err=err)
    show_notes(notes)


def _sheet(sheet: Sheet, format: str | None) -> RenderableType:
    return rich_sheet(sheet) if format is None else render_sheet(sheet, format)


def fits(drawn: RenderableType, console: Console) -> bool:
    """Whether a terminal is wide enough to draw a table with all its columns."""
    wide = console.options.update(max_width=10_000)  # a measure never exceeds the width it is given
    return console.measure(drawn, options=wide).minimum <= console.width


def show_notes(sentences: Iterable[str]) -> None:
    """Print notes on stderr."""
    for sentence in sentences:
        typer.echo(f"Note: {sentence}", err=True)


def write_text(path: Path, text: str) -> None:
    """Write a text to the file of ``--output``, whole or not at all; ``-`` is standard output.

    Raises:
        SmoothcertError: If it cannot be written.
    """
    with saving(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
