"""``smoothcert ensemble``: the order and the weights of an ensemble's members."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from smoothcert.cli.classifiers import (
    ClassifierOptions,
    DataOptions,
    InputOptions,
    load_members,
    trained_noise,
)
from smoothcert.cli.procedures import NoiseOptions
from smoothcert.store.certification import select
from smoothcert.training.ensembles import fit_ensemble


def ensemble(
    about: DataOptions,
    noise: NoiseOptions,
    inputs: InputOptions,
    classifier: ClassifierOptions,
    copies: Annotated[int, typer.Option(min=1, help="Noisy copies of each input.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the noise that members are judged under.")] = 0,
) -> None:
    """Order models by their accuracy under noise, find their weights, and when two of them suffice.

    Give inputs that the models were not trained on and that you will not certify: a part of the test set, or the
    training inputs kept out (recipes keep every 120th of MNIST's 60 000: `--split train --every 120`). Prints the
    commands that certify the ensemble: by a vote of all, or by a consensus of the first two where they agree and their
    class leads by a margin, which almost always gives the answer of all at little more than the cost of two.

    **Examples**

        smoothcert ensemble a.safetensors b.safetensors c.safetensors --data mnist --split train --every 120
    """
    chosen = noise.build()
    dataset = about.load()
    checkpoints, members = load_members(classifier, dataset)
    names = classifier.paths if len(checkpoints) > 1 else list(classifier.denoiser or ())
    level = chosen or trained_noise(checkpoints, classifier.denoiser or ())
    pairs = [dataset[index] for index in select(len(dataset), **vars(inputs))]
    found = fit_ensemble(members, pairs, level, copies=copies, seed=seed, progress=True)
    typer.echo(f"{'accuracy':>8}  {'weight':>6}  member")
    for member, share in zip(found.ranked, found.weights, strict=True):
        typer.echo(f"{member.accuracy:8.2%}  {share:6.3f}  {names[member.position]}")
    files = [shlex.quote(str(names[member.position])) for member in found.ranked]
    if len(checkpoints) == 1:
        files = [shlex.quote(str(classifier.paths[0])), *(f"--denoiser {file}" for file in files)]
    command = f"smoothcert certify {' '.join(files)} --data {about.data_name}"
    typer.echo(f"\n{command} --vote weighted --weights {','.join(f'{share:.4g}' for share in found.weights)}")
    typer.echo(f"{command} --first 2" + (f" --margin {found.margin:g}" if found.margin else ""))
