"""``smoothcert ensemble``."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from smoothcert.classifiers import VOTES
from smoothcert.cli.classifiers import ClassifierOptions, DataOptions, InputOptions, open_models
from smoothcert.cli.noises import NoiseOptions
from smoothcert.cli.options import output_file
from smoothcert.cli.show import show_columns
from smoothcert.compositions import (
    ComposedModel,
    Composition,
    ConsensusOf,
    EnsembleOf,
    names_code,
    trained_noise,
    write_composition,
)
from smoothcert.files import STANDARD_OUTPUT
from smoothcert.store.selection import select
from smoothcert.training.ensembles import fit_ensemble
from smoothcert.types import UsageError, unknown_name


def ensemble(
    about: DataOptions,
    noise: NoiseOptions,
    inputs: InputOptions,
    classifier: ClassifierOptions,
    copies: Annotated[int, typer.Option(min=1, help="Noisy copies of each input.")] = 20,
    seed: Annotated[int, "Seed of the noise."] = 0,
    output: Annotated[Path | None, output_file(".yaml file of the consensus, or with --vote of the vote")] = None,
) -> None:
    """Order models by their accuracy under noise, find their weights, and when two of them suffice.

    Use inputs that the models were not trained on and that you will not certify: a part of the test set, or the
    held-out training inputs (recipes hold out every 120th of MNIST's 60 000: `--split train --every 120`). Prints the
    commands that certify the ensemble: by a vote of all, or by a consensus of the first two where they agree and their
    class leads by a margin, which almost always gives the answer of all at little more than the cost of two. With `-o`
    the consensus is written to a file that every command accepts as a model. `--vote weighted` writes the weighted vote
    of all instead, and `--first 2 --vote weighted` the consensus with weights.

    **Examples**

        smoothcert ensemble a.safetensors b.safetensors c.safetensors --data mnist --split train --every 120
        smoothcert ensemble a.safetensors b.safetensors c.safetensors --data mnist --every 120 -o ensemble.yaml
        smoothcert certify ensemble.yaml --data mnist
    """
    if classifier.router or classifier.weights or classifier.margin is not None or classifier.first not in (None, 2):
        raise UsageError("`ensemble` finds order, weights and the margin of two; leave out the options for them.")
    if output is not None and output != STANDARD_OUTPUT and output.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{output} must end with .yaml, as files of classifiers do.")
    vote, consensus = classifier.vote or "soft", classifier.first is not None or classifier.vote is None
    if vote not in VOTES:
        raise unknown_name("vote", vote, VOTES)
    if consensus and vote not in ("soft", "weighted"):
        raise UsageError(f"a consensus votes softly, not by {vote}; leave out --vote or --first.")
    chosen = noise.build()
    dataset = about.load()
    members = replace(classifier, vote=None, first=None)
    described = members.composition
    base = open_models(members, dataset, chosen).base
    parts = base.parts if isinstance(described, EnsembleOf) and isinstance(base, ComposedModel) else (base,)
    pairs = [dataset[index] for index in select(len(dataset), **vars(inputs))]
    found = fit_ensemble(
        [each.model for each in parts],
        pairs,
        chosen or trained_noise(base),
        copies=copies,
        seed=seed,
        weighted=consensus and vote == "weighted",
        progress=True,
    )
    names = classifier.denoisers or classifier.specifiers
    ordered = [names[member.position] for member in found.ranked]
    lines = [
        [f"{member.accuracy:.2%}", f"{weight:.3f}", name]
        for member, weight, name in zip(found.ranked, found.weights, ordered, strict=True)
    ]
    if output != STANDARD_OUTPUT:
        show_columns([["accuracy", "weight", "member"], *lines])
    if output is not None and isinstance(described, EnsembleOf):
        best = tuple(described.members[member.position] for member in found.ranked)
        weights = found.weights if vote == "weighted" else None
        fitted: Composition = EnsembleOf(members=best, vote=vote, weights=weights)
        if consensus:
            fitted = ConsensusOf(members=best, first=2, margin=found.margin, weights=weights)
        shown = "; ".join(f"accuracy {line[0]}, weight {line[1]}" for line in lines)
        write_composition(output, fitted, f"Fitted by `smoothcert ensemble` on {about.data_name}: {shown}.")
        trusted = " --trust" if names_code(fitted) else ""
        if output != STANDARD_OUTPUT:
            typer.echo(f"\nsmoothcert certify {shlex.quote(str(output))} --data {about.data_name}{trusted}")
        return
    files = [shlex.quote(name) for name in ordered]
    if classifier.denoisers:
        files = [shlex.quote(classifier.specifiers[0]), *(f"--denoiser {file}" for file in files)]
    command = f"smoothcert certify {' '.join(files)} --data {about.data_name}"
    shares = ",".join(f"{share:.4g}" for share in found.weights)
    typer.echo(f"\n{command} --vote weighted --weights {shares}")
    margin = f" --margin {found.margin:g}" if found.margin else ""
    typer.echo(f"{command} --first 2{margin}" + (f" --weights {shares}" if consensus and vote == "weighted" else ""))
    typer.echo("\nWith -o ensemble.yaml it is written to a file, which every command accepts as a model.", err=True)
