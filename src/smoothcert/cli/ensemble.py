"""``smoothcert ensemble``: the order and the weights of an ensemble's members."""

from __future__ import annotations

import shlex
from typing import Annotated

import torch
import typer

from smoothcert.cli.classifiers import (
    ClassifierOptions,
    DataOptions,
    InputOptions,
    load_members,
    trained_noise,
)
from smoothcert.cli.options import grouped
from smoothcert.cli.procedures import NoiseOptions
from smoothcert.data.subset import select
from smoothcert.training.ensembles import fit_margin, fit_weights, rank_members
from smoothcert.types import UsageError


@grouped
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
    if len(members) < 2:
        raise UsageError("an ensemble has several members; name at least two models, or two denoisers.")
    names = classifier.paths if len(checkpoints) > 1 else list(classifier.denoiser or ())
    level = chosen or trained_noise(checkpoints, classifier.denoiser or ())
    indices = select(len(dataset), every=inputs.every, start=inputs.start, stop=inputs.stop)
    pairs = [dataset[index] for index in indices]
    weight = next(members[0].parameters())
    x = torch.stack([torch.as_tensor(image) for image, _ in pairs]).to(weight)
    y = torch.tensor([int(label) for _, label in pairs], device=weight.device)
    ranked = rank_members(members, x, y, level, copies=copies, seed=seed, progress=True)
    ordered = [members[member.position] for member in ranked]
    weights = fit_weights(ordered, x, y, level, copies=copies, seed=seed, progress=True)
    typer.echo(f"{'accuracy':>8}  {'weight':>6}  member")
    for member, share in zip(ranked, weights, strict=True):
        typer.echo(f"{member.accuracy:8.2%}  {share:6.3f}  {names[member.position]}")
    shares = ",".join(f"{share:.4g}" for share in weights)
    files = [shlex.quote(str(names[member.position])) for member in ranked]
    first = shlex.quote(str(classifier.paths[0]))
    named = " ".join(files) if len(checkpoints) > 1 else " ".join([first, *(f"--denoiser {file}" for file in files)])
    typer.echo(f"\nsmoothcert certify {named} --data {about.data_name} --vote weighted --weights {shares}")
    margin = fit_margin(ordered, 2, x, level, copies=10 * copies, seed=seed, progress=True)
    sure = f" --margin {margin:g}" if margin else ""
    typer.echo(f"smoothcert certify {named} --data {about.data_name} --consensus 2{sure}")
