"""``smoothcert selection``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from smoothcert.cli.classifiers import DataOptions
from smoothcert.cli.options import output_file
from smoothcert.files import STANDARD_OUTPUT, saving
from smoothcert.store import load_run
from smoothcert.store.selector_labels import best_of, certifiable
from smoothcert.types import UsageError


def selection(
    about: DataOptions,
    runs: Annotated[list[Path], typer.Argument(help="Runs over training inputs: one for ACES, or one per expert.")],
    output: Annotated[Path, output_file("The .npz file")],
    eta: Annotated[float | None, "With one run: the share of votes of the true class for 'certify' (0.5)."] = None,
) -> None:
    """Make the training data of a selector: the inputs of runs, labelled with who should answer for them.

    With one run the classes are 'core' and 'certify', for a selection network of ACES. With several the class is the
    run that proves the largest radius, for a router between their classifiers; a `.yaml` file then names the selector
    and the experts (see docs/compositions.md).

    **Examples**

        smoothcert certify lenet.safetensors --data mnist --split train --every 10 --n 1000 --run runs/train
        smoothcert selection runs/train --data mnist --split train --eta 0.95 -o selection.npz
        smoothcert selection runs/s25 runs/s50 runs/s100 --data mnist --split train -o sigma.npz
        smoothcert train mnist-gaussian-0.50-quick --set dataset=selection.npz -o models/selector
        smoothcert certify router.yaml --data mnist
    """
    if output.suffix != ".npz" and output != STANDARD_OUTPUT:
        raise UsageError(f"{output} must end with .npz, as datasets in a file do.")
    if len(runs) > 1 and eta is not None:
        raise UsageError("--eta is for one run; several are compared by their radii.")
    read = [load_run(path) for path in runs]
    index, label = best_of(read) if len(read) > 1 else certifiable(read[0], 0.5 if eta is None else eta)
    names = [path.resolve().name for path in runs] if len(read) > 1 else ["core", "certify"]
    dataset = about.load()
    if index.max() >= len(dataset):
        raise UsageError(f"{runs[0]} holds input {index.max()}, but {dataset.name} {dataset.split} ends before it.")
    images = np.stack([dataset[int(i)][0].numpy() for i in index])
    with saving(output) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, x=images, y=label, class_names=np.array(names))
    shares = ", ".join(f"{name} {np.mean(label == number):.1%}" for number, name in enumerate(names))
    typer.echo(f"{output}: {len(index)} inputs ({shares})", err=True)
