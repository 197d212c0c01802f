"""``smoothcert quantize``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from smoothcert import data, models
from smoothcert.cli.classifiers import ClassifierOptions, DataOptions, open_models
from smoothcert.cli.noises import NoiseOptions
from smoothcert.cli.options import output_file
from smoothcert.cli.show import show_columns
from smoothcert.compositions import trained_noise
from smoothcert.evaluate.agreement import compare_models
from smoothcert.files import STANDARD_OUTPUT
from smoothcert.tensors import as_tensor
from smoothcert.types import UsageError


def quantize(
    about: DataOptions,
    noise: NoiseOptions,
    classifier: ClassifierOptions,
    calibration: Annotated[str, "The part of the dataset whose noisy copies set the ranges of activations."] = "train",
    inputs: Annotated[int, typer.Option(min=1, help="Inputs of that part.")] = 256,
    compared: Annotated[int, typer.Option(min=1, help="Inputs of --split on which both models are compared.")] = 200,
    copies: Annotated[int, typer.Option(min=1, help="Noisy copies of each of these.")] = 20,
    seed: Annotated[int, "Seed of the noise of --calibration."] = 0,
    output: Annotated[Path | None, output_file("ONNX file; by default MODEL.int8.onnx")] = None,
) -> None:
    """Quantise a model to int8, and compare its accuracy with and without noise with that of the original.

    The result is another model, in an ONNX file that every command accepts; certificates are about the quantised
    function. Where a run of the original exists, `smoothcert recertify` needs fewer samples. The ranges of activations
    are measured once, on noisy copies, and then fixed, so that no row depends on its batch.

    **Examples**

        smoothcert quantize demo/models/sigma-0.25.safetensors --data digits -o digits.int8.onnx
        smoothcert quantize lenet.safetensors --data mnist --sigma 0.5
        smoothcert certify lenet.int8.onnx --data mnist
    """
    file = Path(f"{classifier.name}.int8.onnx") if output is None else output
    if file == STANDARD_OUTPUT:
        raise UsageError("a model is written to a file, not to standard output; name a file after -o.")
    chosen, dataset = noise.build(), about.load()
    opened = open_models(classifier, dataset, chosen)
    if opened.parts:
        raise UsageError(f"a {opened.source['kind']} classifier is not one model; quantise its parts.")
    original, chosen = opened.base.model, chosen or trained_noise(opened.base)
    training = data.load(about.data_name, split=calibration, root=about.data_root)
    rows = [as_tensor(training[index][0]) for index in _spread(len(training), inputs)]
    quantised = models.quantize(original, rows, chosen, file, seed=seed)
    found = compare_models(original, quantised, dataset, _spread(len(dataset), compared), chosen, copies=copies)
    pairs = zip((classifier.name, file.name), found.clean, found.noisy, strict=True)
    lines = [(name, f"{clean:.1%}", f"{noisy:.1%}") for name, clean, noisy in pairs]
    show_columns([("model", "clean", f"under {chosen}"), *lines], left=1)
    typer.echo(f"Both give {found.same:.2%} of the noisy copies the same class.")
    typer.echo(f"Model: {file}", err=True)


def _spread(size: int, count: int) -> range:
    """Choose inputs evenly."""
    return range(0, size, max(size // count, 1))[:count]
