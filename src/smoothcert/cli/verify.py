"""``smoothcert verify``."""

from __future__ import annotations

import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smoothcert.cli.classifiers import ClassifierOptions, SigmaOptions
from smoothcert.cli.noises import DrawnNoiseOptions
from smoothcert.cli.procedures import ProcedureOptions
from smoothcert.cli.serve import InputFormOptions, load_answering, require_packages
from smoothcert.files import parse_json
from smoothcert.noise import noise_from_config
from smoothcert.types import SmoothcertError, UsageError, wrong_path

if TYPE_CHECKING:
    from smoothcert.serve.verify import Redrawing, Report


@dataclass(kw_only=True)
class AnsweringOptions(ClassifierOptions, panel="Classifier"):
    """The classifier that answered, if it is here."""

    specifiers: Annotated[
        list[str], typer.Option("--model", metavar="MODEL", help="The model, as for `serve`; may be repeated.")
    ] = ()  # type: ignore[assignment]


def verify(
    answer: Annotated[Path, typer.Argument(metavar="ANSWER.json", help="An answer of a server.")],
    noise: DrawnNoiseOptions,
    form: InputFormOptions,
    classifier: AnsweringOptions,
    each: SigmaOptions,
    input: Annotated[Path | None, "The input that was sent: an image, .npy or JSON file."] = None,
) -> None:
    """Check an answer of `smoothcert serve`.

    From the votes alone it computes the decisions and the radius again. With `--model` and `--input` it also draws the
    noise again from the seed, and compares every vote. It prints what was checked and what was not.

    Exit code: 0 if everything that was checked is true, 1 if something is not, 2 for wrong use.

    **Examples**

        smoothcert verify answer.json
        smoothcert verify answer.json --model lenet.safetensors --input digit.png
    """
    require_packages()
    from smoothcert.serve.verify import verify as check

    stated = _read(answer)
    if bool(classifier.specifiers) != (input is not None):
        raise UsageError("drawing the votes again needs the model and the input; give both --model and --input.")
    model = None if input is None else _redrawing(stated, noise, form, classifier, each, input)
    report = check(stated, model)
    _show(report)
    if report.wrong:
        raise typer.Exit(1)


def _show(report: Report) -> None:
    for found in report.confirmed:
        typer.echo(f"confirmed      {found}")
    for found in report.wrong:
        typer.echo(f"NOT CONFIRMED  {found}")
    for found in report.unchecked:
        typer.echo(f"not checked    {found}")
    typer.echo("The answer is NOT confirmed." if report.wrong else "Everything that was checked is true.")


def _read(file: Path) -> Mapping[str, Any]:
    try:
        found = parse_json(file.read_bytes())
    except OSError as error:
        raise wrong_path(SmoothcertError(f"{file} cannot be read ({error.strerror or error}).")) from error
    except ValueError as error:
        raise UsageError(f"{file} is not JSON ({error}).") from error
    if isinstance(found, dict) and isinstance(found.get("answers"), list):
        raise UsageError(f"{file} holds the answers to a batch; write one of them to a file.")
    if not isinstance(found, dict):
        raise UsageError(f"{file} holds no answer of smoothcert serve.")
    return found


def _redrawing(
    stated: Mapping[str, Any],
    noise: DrawnNoiseOptions,
    form: InputFormOptions,
    classifier: ClassifierOptions,
    each: SigmaOptions,
    file: Path,
) -> Redrawing:
    """Load the model and the input."""
    from smoothcert.serve.inputs import Form, decode
    from smoothcert.serve.verify import Redrawing

    chosen, exact = noise.build(), noise.exact
    if chosen is None and not each.chosen and isinstance(stated.get("noise"), dict):
        chosen = noise_from_config(stated["noise"])
        exact = "grid" in stated["noise"] if exact is None and "sigma" in stated["noise"] else exact
    smoothed, procedure, shape, _ = load_answering(chosen, exact, ProcedureOptions(), form, classifier, each.build())
    try:
        content = file.read_bytes()
    except OSError as error:
        raise wrong_path(SmoothcertError(f"{file} cannot be read ({error.strerror or error}).")) from error
    kind = {".npy": "application/x-npy"}.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "image/*"
    inputs, batch, _ = decode(kind, content, Form(shape, 1 << 28, 1))
    if batch:
        raise UsageError(f"{file} holds a batch; give the one input of the answer.")
    return Redrawing(smoothed, inputs[0], procedure)
