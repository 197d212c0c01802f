"""The command line: thin, over the library's public functions."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

import smoothcert
from smoothcert.cli import (
    aces,
    attack,
    certify,
    compare,
    corruptions,
    data,
    demo,
    doctor,
    ensemble,
    merge,
    plan,
    plot,
    report,
    results,
    selection,
    train,
)
from smoothcert.cli.cluster import with_address
from smoothcert.types import SmoothcertError

app = typer.Typer(
    name="smoothcert",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Certified robustness by randomized smoothing: prove how far an input can be perturbed before the answer "
    "changes.\n\nStart with `smoothcert demo`.",
)
app.command("demo")(demo.demo)
app.command("plan")(plan.plan)
app.command("train")(train.train)
app.command("doctor")(doctor.doctor)
app.command("certify")(certify.certify)
app.command("predict")(certify.predict)
app.command("ensemble")(ensemble.ensemble)
app.command("aces")(aces.aces)
app.command("selection")(selection.selection)
app.command("attack")(attack.attack)
app.command("table")(results.table)
app.command("compare")(compare.compare)
app.command("plot")(plot.plot)
app.command("report")(report.report)
app.command("import")(results.import_logs)
app.command("export")(results.export)
app.command("merge")(merge.merge)
app.command("info")(results.info)
app.add_typer(corruptions.app, name="corruptions")
app.add_typer(train.recipes, name="recipes")
app.add_typer(data.app, name="data")

_STOPPED = 130  # the exit code of a command stopped by Ctrl-C
_usual_warning = warnings.formatwarning
_UsageMistake: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException, wherever this typer keeps it


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"smoothcert {smoothcert.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command line: errors are one sentence on stderr, 2 for wrong use, 1 for a failure, 130 for Ctrl-C."""
    warnings.formatwarning = _warning
    sys.exit(_run())


def _run() -> int:
    try:
        code: int = app(with_address(sys.argv[1:]), standalone_mode=False) or 0
        if code == _STOPPED:  # how newer versions of typer tell of Ctrl-C
            raise KeyboardInterrupt
        return code
    except SmoothcertError as error:
        return _fail(str(error), error.exit_code)
    except _UsageMistake as error:
        message = error.format_message()  # type: ignore[attr-defined]
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(message)
            return 2
        return _fail(f"{' '.join(message.split())} Run with --help for the options.", 2)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped; the same command continues where this one ended.", _STOPPED)
    except BrokenPipeError:
        # The reader has gone. Python writes what is left once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _fail(message: str, code: int) -> int:
    print(f"smoothcert: {message}", file=sys.stderr)
    return code


def _warning(message: Any, category: type[Warning], filename: str, *place: Any, **line: Any) -> str:
    """A warning of this package as one sentence, without the place in the code; those of others as usual."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        return f"smoothcert: {message}\n"
    return _usual_warning(message, category, filename, *place, **line)
