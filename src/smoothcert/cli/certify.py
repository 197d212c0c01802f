"""``smoothcert certify`` and ``smoothcert predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from torch import nn

from smoothcert import data
from smoothcert.certify import Aces, Cohen, PerInput, Procedure, Smoothed
from smoothcert.cli.classifiers import ClassifierOptions, DataOptions, InputOptions, Seed, SigmaOptions, load_smoothed
from smoothcert.cli.cluster import ClusterOptions
from smoothcert.cli.merge import Shard, parse_shard
from smoothcert.cli.options import grouped
from smoothcert.cli.procedures import DrawnNoiseOptions, ProcedureOptions
from smoothcert.cli.results import show_savings, show_table
from smoothcert.report.recompute import outcomes_of
from smoothcert.store import certify_dataset
from smoothcert.store.certification import select


@grouped
def certify(
    about: DataOptions,
    noise: DrawnNoiseOptions,
    how: ProcedureOptions,
    inputs: InputOptions,
    classifier: ClassifierOptions,
    each: SigmaOptions,
    over: ClusterOptions,
    seed: Seed = None,
    shard: Shard = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="Run folder; by default one under runs/ named after what is certified.")
    ] = None,
) -> None:
    """Prove a radius for inputs of a dataset, and keep the evidence in a run folder.

    Stop it at any time; the same command continues. `cohen` finds the largest radius with a fixed number of samples;
    `anytime` and `staged` decide whether given radii hold, usually with a hundredth of them. Several models vote as
    one; with `--consensus K` the later ones are asked only where the first K disagree. `aces` gives inputs on which the
    model is uncertain to an accurate core without a guarantee; `smoothcert aces` then shows every threshold. A
    certificate is false with probability at most α; with `--simultaneous` that is the probability that any of them is.

    **Examples**

        smoothcert certify demo/models/sigma-0.25.safetensors --data digits

        smoothcert certify lenet.safetensors --data mnist --procedure anytime --radius 0.5

        smoothcert certify cohen.pth.tar --data cifar10 --sigma 0.5 --every 20

        smoothcert certify models/mnist-uniform-1.00-quick --data mnist --norm linf

        smoothcert certify a.safetensors b.safetensors c.safetensors --data mnist --consensus 2

        smoothcert certify lenet.safetensors --data mnist --procedure aces --core clean.safetensors --theta 0.3

        smoothcert certify lenet.safetensors --data mnist --sigma-steps 100 --memory balls.safetensors

        smoothcert certify lenet.safetensors --data mnist --every 20 --simultaneous

        smoothcert certify lenet.safetensors --data mnist --shard 1/4

        smoothcert certify resnet50.safetensors --data imagenet --ray 10.0.0.1:6379 --ray-gpus 1
    """
    chosen, procedure, cluster = noise.build(), how.build(), over.build()
    share = None if shard is None else parse_shard(shard)
    smoothed, dataset, source = load_smoothed(classifier, about, chosen, each.make, exact=noise.exact)
    move_models(procedure, smoothed)
    selected = select(len(dataset), every=inputs.every, start=inputs.start, stop=inputs.stop)
    procedure, shared = how.share(procedure, len(selected))
    special = [*(["aces"] if isinstance(procedure, Aces) else []), *(["chosen-sigma"] if each.chosen else [])]
    special += ["simultaneous"] if how.simultaneous else []
    if share is not None:
        special.append("shard-{}-of-{}".format(*share))
    folder = run or Path("runs") / "-".join([_run_name(classifier.name, dataset, smoothed, how.norm), *special])
    finished = certify_dataset(
        smoothed,
        dataset,
        procedure,
        run=folder,
        every=inputs.every,
        start=inputs.start,
        stop=inputs.stop,
        shard=share,
        seed=seed,
        source=source | shared,
        cluster=cluster,
    )
    if isinstance(smoothed, PerInput) and smoothed.memory is not None:
        smoothed.memory.save()
        smoothed.memory.close()
    show_table([outcomes_of(finished)])
    show_savings(finished)
    typer.echo(f"Run: {folder}", err=True)


@grouped
def predict(
    about: DataOptions,
    noise: DrawnNoiseOptions,
    inputs: InputOptions,
    classifier: ClassifierOptions,
    n: Annotated[int, typer.Option("--n", help="Samples per input.")] = 1_000,
    alpha: Annotated[float, typer.Option(help="Probability that an answer is wrong.")] = 0.001,
    seed: Seed = None,
) -> None:
    """Print the smoothed classifier's class for inputs of a dataset: fewer samples than `certify`, no radius.

    Columns: idx, label, predict (-1: abstain), p-value. The last line, on stderr, sums up.

    **Examples**

        smoothcert predict demo/models/sigma-0.25.safetensors --data digits

        smoothcert predict lenet.safetensors --data mnist --start 7 --stop 8 --n 10000
    """
    chosen, settings = noise.build(), Cohen(n=n, alpha=alpha)
    smoothed, dataset, _ = load_smoothed(classifier, about, chosen, exact=noise.exact)
    indices = select(len(dataset), every=inputs.every, start=inputs.start, stop=inputs.stop)
    correct = abstained = 0
    lines: dict[int, str] = {}
    pairs = ((index, dataset[index][0]) for index in indices)
    answers = smoothed.run(pairs, settings, settings.predict, seed=seed, count=len(indices))
    for job, answer in track(answers, "predict", total=len(indices), console=Console(stderr=True)):
        label = dataset[job.index][1]
        lines[job.index] = f"{job.index}\t{label}\t{answer.label}\t{answer.p_value:.3g}"
        correct += answer.label == label
        abstained += answer.abstained
    typer.echo("idx\tlabel\tpredict\tp_value")
    typer.echo("\n".join(lines[index] for index in indices))
    typer.echo(f"{correct} of {len(indices)} correct, {abstained} abstained (n = {n}, alpha = {alpha:g}).", err=True)


def move_models(procedure: Procedure, smoothed: Smoothed) -> None:
    """Bring the models that a procedure has of its own to where the classifier is."""
    if isinstance(procedure, Aces):
        for model in (procedure.core, procedure.selector):
            if isinstance(model, nn.Module):
                model.to(smoothed.device)


def _run_name(model: str, dataset: data.Dataset, smoothed: Smoothed, norm: str | None) -> str:
    ours = smoothed.noise.resolve_norm(norm)
    other = [] if ours is smoothed.noise.norms[0] else [ours.value]
    noise = smoothed.noise.config()
    grid = [f"grid-{noise.pop('grid')}"] if "grid" in noise else []
    return "-".join([model, dataset.name, *map(str, noise.values()), *grid, *other])
