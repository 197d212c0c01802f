"""``smoothcert ensemble``."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from smoothcert.cli.classifiers import ClassifierOptions, DataOptions, InputOptions, load_members, trained_noise
from smoothcert.cli.procedures import NoiseOptions
from smoothcert.cli.show import show_columns
from smoothcert.data.subset import select
from smoothcert.training.ensembles import fit_ensemble


def ensemble(
    about: DataOptions,
    noise: NoiseOptions,
    inputs: InputOptions,
    classifier: ClassifierOptions,
    copies: Annotated[int, typer.Option(min=1, help="Noisy copies of each input.")] = 20,
    seed: Annotated[int, "Seed of the noise."] = 0,
) -> None:
    """Order models by their accuracy under noise, find their weights, and when two of them suffice.

    Use inputs that the models were not trained on and that you will not certify: a part of the test set, or the
    held-out training inputs (recipes hold out every 120th of MNIST's 60 000: `--split train --every 120`). Prints the
    commands that certify the ensemble: by a vote of all, or by a consensus of the first two where they agree and their
    class leads by a margin, which almost always gives the answer of all at little more than the cost of two.

    **Examples**

        smoothcert ensemble a.safetensors b.safetensors c.safetensors --data mnist --split train --every 120
    """
    chosen = noise.build()
    dataset = about.load()
    loaded, members = load_members(classifier, dataset, chosen)
    names = classifier.denoisers or classifier.specifiers
    level = chosen or trained_noise(loaded)
    pairs = [dataset[index] for index in select(len(dataset), **vars(inputs))]
    found = fit_ensemble(members, pairs, level, copies=copies, seed=seed, progress=True)
    ordered = [names[member.position] for member in found.ranked]
    lines = [
        [f"{member.accuracy:.2%}", f"{weight:.3f}", name]
        for member, weight, name in zip(found.ranked, found.weights, ordered, strict=True)
    ]
    show_columns([["accuracy", "weight", "member"], *lines])
    files = [shlex.quote(name) for name in ordered]
    if classifier.denoisers:
        files = [shlex.quote(classifier.specifiers[0]), *(f"--denoiser {file}" for file in files)]
    command = f"smoothcert certify {' '.join(files)} --data {about.data_name}"
    typer.echo(f"\n{command} --vote weighted --weights {','.join(f'{share:.4g}' for share in found.weights)}")
    typer.echo(f"{command} --first 2" + (f" --margin {found.margin:g}" if found.margin else ""))
