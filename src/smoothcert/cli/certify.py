"""``smoothcert certify`` and ``smoothcert predict``."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from smoothcert.certify import Anytime, Cohen, Procedure
from smoothcert.cli.classifiers import ClassifierOptions, DataOptions, InputOptions, Seed, SigmaOptions, load_smoothed
from smoothcert.cli.info import show_savings
from smoothcert.cli.noises import DrawnNoiseOptions
from smoothcert.cli.procedures import ClusterOptions, ProcedureOptions
from smoothcert.cli.show import show_accuracy
from smoothcert.evaluate import certify_dataset
from smoothcert.noise import Noise
from smoothcert.report.recompute import outcomes_of
from smoothcert.store.run import clear_run
from smoothcert.store.selection import select
from smoothcert.types import UsageError, invalid_text


def certify(
    about: DataOptions,
    noise: DrawnNoiseOptions,
    how: ProcedureOptions,
    inputs: InputOptions,
    classifier: ClassifierOptions,
    each: SigmaOptions,
    over: ClusterOptions,
    seed: Seed = None,
    shard: Annotated[str | None, typer.Option(metavar="I/K", help="Certify the I-th of K equal shares.")] = None,
    run: Annotated[Path | None, "Run folder; by default in runs/, named after model, data and settings."] = None,
    fresh: Annotated[bool, "Delete the earlier run in the folder first."] = False,
) -> None:
    """Certify inputs of a dataset, and keep the votes in a run folder.

    Stop it at any time; the same command continues. `cohen` finds the largest radius with a fixed number of samples;
    `anytime` and `staged` decide whether given radii hold, usually with a hundredth of them. Several models vote; with
    `--first K` the later ones run only where the first K disagree. `aces` sends inputs on which the model is uncertain
    to an accurate core without a guarantee. With `--router` each model is an expert under its noise, and a certified
    selector chooses between them. A `.yaml` file describes any of these (see docs/compositions.md). A certificate is
    false with probability at most α.

    **Examples**

        smoothcert certify demo/models/sigma-0.25.safetensors --data digits
        smoothcert certify lenet.safetensors --data mnist --procedure anytime --radius 0.5
        smoothcert certify cohen.pth.tar --data cifar10 --sigma 0.5 --every 20
        smoothcert certify a.safetensors b.safetensors c.safetensors --data mnist --first 2
        smoothcert certify lenet.safetensors --data mnist --procedure aces --core-model clean.safetensors --theta 0.3
        smoothcert certify s25.safetensors s50.safetensors --router selector.safetensors --data mnist
        smoothcert certify router.yaml --data mnist
        smoothcert certify clean.safetensors --denoiser dncnn-0.25 --data cifar10
        smoothcert certify lenet.safetensors --data mnist --sigma-steps 100 --memory balls.safetensors
        smoothcert certify resnet50.safetensors --data imagenet --ray 10.0.0.1:6379 --ray-gpus 1
    """
    chosen, procedure, cluster = noise.build(), how.build(classifier.aces), over.build()
    part = None if shard is None else _shard(shard)
    dataset = about.load()
    loaded = load_smoothed(classifier, [dataset], chosen, noise.exact, **each.build())
    smoothed, procedure = loaded.smoothed, loaded.completed(procedure)
    selected = select(len(dataset), **vars(inputs))
    per_input, shared = how.share(procedure, len(selected), smoothed.device)
    names = [classifier.name, dataset.name, *_noise_names(smoothed.noise), *["chosen-sigma"] * each.chosen]
    names += [procedure.name, *_changed(procedure), *_changed(inputs), *["simultaneous"] * how.simultaneous]
    names += [] if seed is None else [f"seed-{seed}"]
    names += [] if part is None else ["shard-{}-of-{}".format(*part)]
    folder = run or Path("runs") / "-".join(names)
    if fresh:
        smoothed.check(dataset[selected[0]][0], per_input)  # a command that is refused must not delete anything
        clear_run(folder)
    finished = certify_dataset(
        smoothed,
        dataset,
        per_input,
        run=folder,
        **vars(inputs),
        shard=part,
        seed=seed,
        source=loaded.source | shared,
        cluster=cluster,
    )
    if smoothed.memory is not None:
        smoothed.memory.save()
        smoothed.memory.close()
    outcomes = outcomes_of(finished)
    show_accuracy([outcomes])
    show_savings(finished)
    if not (outcomes.predict >= 0).any():
        typer.echo("Warning: the model abstained on every input; `smoothcert doctor` looks for the reason.", err=True)
    typer.echo(f"Run: {folder}", err=True)


def predict(
    about: DataOptions,
    noise: DrawnNoiseOptions,
    inputs: InputOptions,
    classifier: ClassifierOptions,
    votes: Annotated[int, "Samples per input, at most."] = 1_000,
    fixed: Annotated[
        bool, "Draw all samples for every input and test them once (Hung and Fithian, 2019), as in the papers' tables."
    ] = False,
    alpha: Annotated[float, "Probability that an answer is wrong."] = 0.001,
    seed: Seed = None,
) -> None:
    """Print the smoothed classifier's class for inputs of a dataset: fewer samples than `certify`, no radius.

    Clear inputs are decided after a few dozen samples.

    Columns: idx, label, predict (-1: abstain), p-value. The last line, on stderr, is a summary.

    **Examples**

        smoothcert predict demo/models/sigma-0.25.safetensors --data digits
        smoothcert predict lenet.safetensors --data mnist --start 7 --stop 8 --votes 10000
    """
    settings: Procedure
    if classifier.aces is not None:
        if fixed:
            raise UsageError("a composition of ACES stops early; leave out --fixed.")
        settings = replace(classifier.aces, n=votes, alpha=alpha)
    else:
        settings = Cohen(votes, alpha=alpha) if fixed else Anytime(n_max=votes, alpha=alpha)
    chosen = noise.build()
    dataset = about.load()
    loaded = load_smoothed(classifier, [dataset], chosen, noise.exact)
    smoothed, settings = loaded.smoothed, loaded.completed(settings)
    indices = select(len(dataset), **vars(inputs))
    correct = abstained = invalid = samples = 0
    lines: dict[int, str] = {}
    pairs = ((index, dataset[index][0]) for index in indices)
    answers = smoothed.run(pairs, settings, settings.predict, seed=seed, count=len(indices))
    for job, answer in track(answers, "predict", total=len(indices), console=Console(stderr=True)):
        label = dataset[job.index][1]
        lines[job.index] = f"{job.index}\t{label}\t{answer.label}\t{answer.p_value:.3g}"
        correct += answer.label == label
        abstained += answer.abstained
        invalid += answer.invalid
        samples += answer.samples
    typer.echo("idx\tlabel\tpredict\tp_value")
    typer.echo("\n".join(lines[index] for index in indices))
    total = f"{correct} of {len(indices)} correct, {abstained} abstained"
    typer.echo(f"{total} ({samples / len(indices):,.0f} samples per input, alpha = {alpha:g}).", err=True)
    if invalid:
        typer.echo(f"Warning: {invalid_text(invalid, samples)}", err=True)


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if not found:
        raise UsageError(f"--shard must be I/K, such as 2/5 for the second of five shards, got {text!r}.")
    return int(found[1]), int(found[2])


def _noise_names(noise: Noise) -> list[str]:
    config = noise.config()
    grid = [f"grid-{config.pop('grid')}"] if "grid" in config else []
    return [*map(str, config.values()), *grid]


def _changed(settings: Any) -> list[str]:
    """The settings that differ from their defaults, as parts of a folder's name."""
    parts = []
    for each in fields(settings):
        value = getattr(settings, each.name)
        if value != each.default:
            shown = "" if callable(value) else "-" + "-".join(map(str, value if isinstance(value, tuple) else [value]))
            parts.append(each.name.replace("_", "-") + shown)
    return parts
