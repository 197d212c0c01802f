"""``smoothcert certify`` and ``smoothcert predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import track

from smoothcert import data, models
from smoothcert.certify import Cohen, Smoothed
from smoothcert.cli.procedures import (
    N0,
    Alpha,
    Beta,
    Budget,
    Deadline,
    N,
    Name,
    Radius,
    Stages,
    build_procedure,
)
from smoothcert.cli.results import show_savings, show_table
from smoothcert.noise import Gaussian
from smoothcert.report.load import run_outcomes
from smoothcert.store import certify_dataset
from smoothcert.store.certification import select
from smoothcert.types import UsageError

Model = Annotated[
    Path, typer.Argument(help="A checkpoint (.safetensors, or an earlier system's .pth.tar) or its folder.")
]
Data = Annotated[
    str, typer.Option("--data", help="A dataset name (`smoothcert data list`), an .npz file or an image folder.")
]
Split = Annotated[str, typer.Option(help="Which part of the dataset.")]
Root = Annotated[Path | None, typer.Option("--data-root", help="Where datasets are kept.")]
Sigma = Annotated[float | None, typer.Option(help="Noise level; by default the one the checkpoint was trained with.")]
Every = Annotated[int, typer.Option(help="Take every this many-th input.")]
Start = Annotated[int, typer.Option(help="First input.")]
Stop = Annotated[int | None, typer.Option(help="End of the inputs, exclusive.")]
Seed = Annotated[int, typer.Option(help="Seed of the noise.")]
BatchSize = Annotated[int | None, typer.Option(help="Noisy copies per forward pass; does not change the noise.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 … or auto.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; does not change the noise.")]
RuntimeName = Annotated[
    str, typer.Option("--runtime", help="How the model is run: auto (fastest that agrees), eager, compiled, onnx.")
]
Precision = Annotated[str | None, typer.Option(help="bf16 or fp16 autocast, on CUDA only.")]
Arch = Annotated[str | None, typer.Option(help="Architecture, for a checkpoint that does not name its own.")]


def certify(
    model: Model,
    data_name: Data,
    sigma: Sigma = None,
    procedure: Name = "cohen",
    radius: Radius = None,
    n: N = None,
    n0: N0 = None,
    alpha: Alpha = None,
    beta: Beta = None,
    stages: Stages = None,
    budget: Budget = None,
    deadline: Deadline = None,
    every: Every = 1,
    start: Start = 0,
    stop: Stop = None,
    seed: Seed = 0,
    run: Annotated[
        Path | None, typer.Option("--run", help="Run folder; by default under runs/, named after model, data and σ.")
    ] = None,
    split: Split = "test",
    data_root: Root = None,
    batch_size: BatchSize = None,
    device: Device = "auto",
    threads: Threads = None,
    runtime: RuntimeName = "auto",
    precision: Precision = None,
    arch: Arch = None,
) -> None:
    """Prove a radius for inputs of a dataset, and keep the evidence in a run folder.

    Stop it at any time; the same command continues. `cohen` finds the largest radius with a fixed number of samples;
    `anytime` and `staged` decide whether given radii hold, usually with a hundredth of them.

    **Examples**

        smoothcert certify demo/models/sigma-0.25.safetensors --data digits

        smoothcert certify lenet.safetensors --data mnist --procedure anytime --radius 0.5

        smoothcert certify cohen.pth.tar --data cifar10 --sigma 0.5 --every 20
    """
    settings = build_procedure(
        procedure,
        radius=radius,
        n=n,
        n0=n0,
        alpha=alpha,
        beta=beta,
        stages=stages,
        budget=budget,
        deadline=deadline,
    )
    smoothed, dataset, source = load_smoothed(
        model, data_name, sigma, split, data_root, batch_size, device, threads, runtime, precision, arch
    )
    folder = run or Path("runs") / _run_name(model, dataset, smoothed)
    finished = certify_dataset(
        smoothed, dataset, settings, run=folder, every=every, start=start, stop=stop, seed=seed, source=source
    )
    show_table([run_outcomes(finished)])
    show_savings(finished)
    typer.echo(f"Run: {folder}", err=True)


def predict(
    model: Model,
    data_name: Data,
    sigma: Sigma = None,
    n: Annotated[int, typer.Option("--n", help="Samples per input.")] = 1_000,
    alpha: Annotated[float, typer.Option(help="Probability that an answer is wrong.")] = 0.001,
    every: Every = 1,
    start: Start = 0,
    stop: Stop = None,
    seed: Seed = 0,
    split: Split = "test",
    data_root: Root = None,
    batch_size: BatchSize = None,
    device: Device = "auto",
    threads: Threads = None,
    runtime: RuntimeName = "auto",
    precision: Precision = None,
    arch: Arch = None,
) -> None:
    """Print the smoothed classifier's class for inputs of a dataset: fewer samples than `certify`, no radius.

    Columns: idx, label, predict (-1: abstain), p-value. The last line, on stderr, sums up.

    **Examples**

        smoothcert predict demo/models/sigma-0.25.safetensors --data digits

        smoothcert predict lenet.safetensors --data mnist --start 7 --stop 8 --n 10000
    """
    settings = Cohen(n=n, alpha=alpha)
    smoothed, dataset, _ = load_smoothed(
        model, data_name, sigma, split, data_root, batch_size, device, threads, runtime, precision, arch
    )
    indices = select(len(dataset), every=every, start=start, stop=stop)
    correct = abstained = 0
    lines: dict[int, str] = {}
    inputs = ((index, dataset[index][0]) for index in indices)
    answers = smoothed.run(inputs, settings, settings.predict, seed=seed, count=len(indices))
    for job, answer in track(answers, "predict", total=len(indices), console=Console(stderr=True)):
        label = dataset[job.index][1]
        lines[job.index] = f"{job.index}\t{label}\t{answer.label}\t{answer.p_value:.3g}"
        correct += answer.label == label
        abstained += answer.abstained
    typer.echo("idx\tlabel\tpredict\tp_value")
    typer.echo("\n".join(lines[index] for index in indices))
    typer.echo(f"{correct} of {len(indices)} correct, {abstained} abstained (n = {n}, alpha = {alpha:g}).", err=True)


def _run_name(model: Path, dataset: data.Dataset, smoothed: Smoothed) -> str:
    name = model.resolve().name
    for suffix in (".safetensors", ".tar", ".pth", ".pt"):
        name = name.removesuffix(suffix)
    return "-".join([name, dataset.name, *map(str, smoothed.noise.config().values())])


def load_smoothed(
    model: Path,
    data_name: str,
    sigma: float | None,
    split: str,
    root: Path | None,
    batch_size: int | None,
    device: str,
    threads: int | None,
    runtime: str,
    precision: str | None,
    arch: str | None,
) -> tuple[Smoothed, data.Dataset, dict[str, str]]:
    """The smoothed classifier and the dataset that the options name, and where the classifier comes from."""
    noise = Gaussian(sigma) if sigma is not None else None  # a wrong σ is said before anything is loaded
    checkpoint = models.load_checkpoint(model, architecture=arch)
    if noise is None:
        if checkpoint.info.sigma is None:
            raise UsageError(f"{model} does not say which noise it was trained with; give --sigma.")
        noise = Gaussian(checkpoint.info.sigma)
    if threads is not None:
        if threads < 1:
            raise UsageError(f"threads must be at least 1, got {threads}.")
        torch.set_num_threads(threads)
    dataset = data.load(data_name, split=split, root=root)
    network = checkpoint.model.to(_device(device))
    classes = checkpoint.info.num_classes
    if dataset.num_classes > classes or (data_name in data.DATASETS and dataset.num_classes != classes):
        raise UsageError(f"{model} has {classes} classes and {data_name} has {dataset.num_classes}; use one that fits.")
    smoothed = Smoothed(
        network, noise, num_classes=classes, batch_size=batch_size, runtime=runtime, precision=precision
    )
    return smoothed, dataset, {"checkpoint": str(checkpoint.path), "sha256": checkpoint.sha256}


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {name!r} cannot be used here; try cpu.") from error
    return device
