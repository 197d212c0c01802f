"""The options that choose a classifier and the data it is asked about, shared by the commands that need them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import typer
from torch import nn

from smoothcert import data, models
from smoothcert.certify import Memory, Smoothed
from smoothcert.classifiers import VOTES, Consensus, Denoised, Ensemble
from smoothcert.cli.options import numbers
from smoothcert.cli.procedures import with_arithmetic
from smoothcert.noise import Gaussian, Noise, noise_from_config
from smoothcert.sampling.sigma import GridSigma, OptimizeSigma, SigmaSolver
from smoothcert.types import CheckpointError, UsageError

HARDWARE = "Hardware"


@dataclass(kw_only=True)
class ClassifierOptions:
    """One model, or several that vote, and how they are run."""

    panel: ClassVar[str] = "Classifier"

    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL",
            help="A checkpoint (.safetensors, or an earlier system's .pth.tar) or its folder; several are an ensemble.",
            show_default=False,
        ),
    ]
    vote: Annotated[str | None, typer.Option(help=f"How members vote: {', '.join(VOTES)} (soft).")] = None
    weights: Annotated[
        str | None, typer.Option(help="Weights of the members, as a,b,c; see `smoothcert ensemble`.")
    ] = None
    first: Annotated[
        int | None, typer.Option(help="K-consensus: evaluate the later members only where the first K disagree.")
    ] = None
    margin: Annotated[
        float | None,
        typer.Option(help="With --first: evaluate them also where the class leads by less; see `smoothcert ensemble`."),
    ] = None
    denoiser: Annotated[
        list[Path] | None,
        typer.Option(help="A denoiser in front of the model, see `smoothcert denoiser`; several are an ensemble."),
    ] = None
    router: Annotated[
        Path | None,
        typer.Option(
            help="A selector between the models, as experts with the noise they were trained with. The noise options "
            "are those of the selector."
        ),
    ] = None
    arch: Annotated[str | None, typer.Option(help="Architecture, for a checkpoint that does not name it.")] = None
    device: Annotated[str, typer.Option(rich_help_panel=HARDWARE, help="cpu, cuda, cuda:1 … or auto.")] = "auto"
    threads: Annotated[
        int | None, typer.Option(rich_help_panel=HARDWARE, help="CPU threads; does not change the noise.")
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(rich_help_panel=HARDWARE, help="Noisy copies per forward pass; does not change the noise."),
    ] = None
    runtime: Annotated[
        str,
        typer.Option(rich_help_panel=HARDWARE, help="auto (the fastest that agrees), eager, compiled or onnx."),
    ] = "auto"
    precision: Annotated[
        str | None, typer.Option(rich_help_panel=HARDWARE, help="bf16 or fp16 autocast, on CUDA only.")
    ] = None

    @property
    def name(self) -> str:
        """A name for files about the classifier: the first model, the number of members, and how they vote."""
        first = self.paths[0].resolve().name
        for suffix in (".safetensors", ".tar", ".pth", ".pt"):
            first = first.removesuffix(suffix)
        members = len(self.paths) * max(len(self.denoiser or ()), 1)
        parts = [first]
        if self.denoiser:
            parts.append("denoised")
        if self.router:
            parts.append(f"routed-{members}")
        elif members > 1:
            parts += [f"{members}", f"consensus-{self.first}" if self.first else self.vote or "soft"]
            parts += [f"margin-{self.margin:g}"] if self.margin else []
        return "-".join(parts)


@dataclass(kw_only=True)
class DataOptions:
    """A dataset."""

    panel: ClassVar[str] = "Data"

    data_name: Annotated[
        str, typer.Option("--data", help="A dataset name (`smoothcert data list`), an .npz file or an image folder.")
    ]
    split: Annotated[str, typer.Option(help="Which part of the dataset.")] = "test"
    data_root: Annotated[Path | None, typer.Option(help="Folder of the named datasets.")] = None

    def load(self) -> data.Dataset:
        return data.load(self.data_name, split=self.split, root=self.data_root)


@dataclass(kw_only=True)
class InputOptions:
    """Which inputs of the dataset."""

    panel: ClassVar[str] = "Data"

    every: Annotated[int, typer.Option(help="Use every N-th input.")] = 1
    start: Annotated[int, typer.Option(help="First input.")] = 0
    stop: Annotated[int | None, typer.Option(help="End of the inputs, exclusive.")] = None


Seed = Annotated[
    int | None,
    typer.Option(
        help="Seed of the noise; fresh by default. Give one only to repeat a run, never to choose a model by."
    ),
]


def load_members(options: ClassifierOptions, dataset: data.Dataset) -> tuple[list[models.Checkpoint], list[nn.Module]]:
    """The checkpoints named and the members they make: themselves, or one for each denoiser in front of one of them.

    Raises:
        UsageError: If they do not fit each other or the dataset.
        CheckpointError: If one is missing, damaged or of the wrong kind.
    """
    checkpoints = [models.load_checkpoint(path, architecture=options.arch) for path in options.paths]
    classes = {checkpoint.info.num_classes for checkpoint in checkpoints}
    if len(classes) > 1:
        raise UsageError(f"the members of an ensemble must have the same classes, but have {sorted(classes)}.")
    (count,) = classes
    if dataset.num_classes > count or (dataset.name in data.DATASETS and dataset.num_classes != count):
        first = checkpoints[0].path
        raise UsageError(
            f"{first} has {count} classes and {dataset.name} has {dataset.num_classes}; use one that fits."
        )
    if options.denoiser and len(checkpoints) > 1 and len(options.denoiser) > 1:
        raise UsageError("give several models or several denoisers, not both.")
    denoisers = [models.load_denoiser(path) for path in options.denoiser or ()]
    members = [checkpoint.model for checkpoint in checkpoints]
    if denoisers:
        members = [Denoised(member, denoiser) for member in members for denoiser in denoisers]
    device = _device(options.device)
    return checkpoints, [member.to(device) for member in members]


@dataclass(kw_only=True)
class SigmaOptions:
    """How the noise of an input is chosen, if it is."""

    panel: ClassVar[str] = "Noise per input"

    sigma_steps: Annotated[
        int | None,
        typer.Option(help="Choose sigma for every input by this many steps of gradient ascent on its radius."),
    ] = None
    sigma_grid: Annotated[
        str | None, typer.Option(help="Choose sigma for every input among these, as a,b,c; or `usual`.")
    ] = None
    memory: Annotated[
        Path | None,
        typer.Option(help="With a chosen sigma: a file of certified balls; a later ball that meets one is cut."),
    ] = None

    @property
    def chosen(self) -> bool:
        """Whether sigma is chosen for every input."""
        return self.sigma_steps is not None or self.sigma_grid is not None

    def make(self, model: nn.Module, noise: Noise, **options: Any) -> Smoothed:
        """The classifier under one noise for all inputs, or under one for each.

        Raises:
            UsageError: If the options contradict each other.
        """
        if self.sigma_steps is not None and self.sigma_grid is not None:
            raise UsageError("give --sigma-steps or --sigma-grid, not both.")
        if not self.chosen:
            if self.memory is not None:
                raise UsageError("--memory is for a sigma chosen for every input; give --sigma-steps or --sigma-grid.")
            return Smoothed(model, noise, **options)
        solver: SigmaSolver
        if self.sigma_steps is not None:
            solver = OptimizeSigma(steps=self.sigma_steps)
        else:
            assert self.sigma_grid is not None
            solver = GridSigma(grid=() if self.sigma_grid == "usual" else numbers(self.sigma_grid, "--sigma-grid"))
        memory = None if self.memory is None else Memory(self.memory)
        if memory is None:
            typer.echo(
                "Warning: with a sigma chosen for each input alone, a radius tells about that input's own smoothed "
                "classifier (guarantee pointwise): nearby inputs may be given another sigma and another class. "
                "--memory keeps answers consistent.",
                err=True,
            )
        return Smoothed(model, noise, sigma=solver, memory=memory, **options)


def load_smoothed(
    options: ClassifierOptions,
    about: DataOptions,
    noise: Noise | None,
    make: Callable[..., Smoothed] = Smoothed,
    *,
    exact: bool | None = None,
) -> tuple[Smoothed, data.Dataset, dict[str, Any]]:
    """The smoothed classifier and the dataset that the options name, and where the classifier comes from."""
    dataset = about.load()
    smoothed, source = smoothed_for(options, [dataset], noise, make, exact=exact)
    return smoothed, dataset, source


def smoothed_for(
    options: ClassifierOptions,
    datasets: Sequence[data.Dataset],
    noise: Noise | None,
    make: Callable[..., Smoothed] = Smoothed,
    *,
    exact: bool | None = None,
) -> tuple[Smoothed, dict[str, Any]]:
    """The smoothed classifier that the options name, for datasets of the same classes, and where it comes from."""
    if options.threads is not None:
        if options.threads < 1:
            raise UsageError(f"threads must be at least 1, got {options.threads}.")
        torch.set_num_threads(options.threads)
    _check_vote(options)
    checkpoints, members = load_members(options, datasets[0])
    levels = {dataset.levels for dataset in datasets}
    grid = levels.pop() if len(levels) == 1 else None
    running = {"batch_size": options.batch_size, "runtime": options.runtime, "precision": options.precision}
    if options.router is not None:
        smoothed = _routed(options.router, checkpoints, members, noise, grid, exact, running)
    else:
        noise = _noise_to_use(noise, checkpoints, options.denoiser or ())
        smoothed = make(
            _joined(members, options),
            with_arithmetic(noise, grid, exact),
            num_classes=checkpoints[0].info.num_classes,
            **running,
        )
    source: dict[str, Any] = {"checkpoint": str(checkpoints[0].path), "sha256": checkpoints[0].sha256}
    if len(members) > 1 or options.denoiser:
        files = [*(checkpoint.path for checkpoint in checkpoints), *(options.denoiser or ())]
        source |= {"members": [str(file) for file in files], "vote": options.vote, "consensus": options.first}
        source |= {} if options.margin is None else {"margin": options.margin}
        source |= {} if options.router is None else {"router": str(options.router)}
    training = [_training(checkpoint.info) for checkpoint in checkpoints]
    if not options.denoiser and None not in training:  # of a denoiser's training a run is told nothing
        source["training"] = training
    return smoothed, source


def _routed(
    path: Path,
    checkpoints: Sequence[models.Checkpoint],
    members: Sequence[nn.Module],
    noise: Noise | None,
    grid: int | None,
    exact: bool | None,
    running: dict[str, Any],
) -> Smoothed:
    """Each model as an expert under the noise it was trained with, and a selector between them."""
    selector = models.load_checkpoint(path)
    experts = [
        Smoothed(
            member,
            with_arithmetic(trained_noise([checkpoint]), grid, exact),
            num_classes=checkpoint.info.num_classes,
            **running,
        )
        for checkpoint, member in zip(checkpoints, members, strict=True)
    ]
    chosen = with_arithmetic(_noise_to_use(noise, [selector]), grid, exact)
    device = next(members[0].parameters()).device
    return Smoothed(
        selector.model.to(device), chosen, experts=experts, num_classes=selector.info.num_classes, **running
    )


def _noise_to_use(
    noise: Noise | None, checkpoints: Sequence[models.Checkpoint], denoisers: Sequence[Path] = ()
) -> Noise:
    """The noise given, or that of the training; warns where the two differ a lot."""
    if noise is None:
        return trained_noise(checkpoints, denoisers)
    try:
        trained = trained_noise(checkpoints, denoisers)
    except (CheckpointError, UsageError):
        return noise
    if trained.name == noise.name and not 0.5 <= noise.scale / trained.scale <= 2:
        typer.echo(
            f"Warning: {checkpoints[0].path} was trained with {trained}, and {noise} differs from it a lot: expect "
            "many abstentions or small radii.",
            err=True,
        )
    return noise


def _training(info: models.CheckpointInfo) -> dict[str, Any] | None:
    """How a checkpoint was trained, if it says: enough to see which runs differ in nothing but the training's seed."""
    recipe = info.extra.get("recipe")
    if not isinstance(recipe, dict) or not {"name", "method", "seed"} <= recipe.keys():
        return None
    rest = {key: value for key, value in recipe.items() if key not in ("name", "source", "seed")}
    settings = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    return {"recipe": recipe["name"], "method": recipe["method"], "seed": recipe["seed"], "settings": settings}


def _check_vote(options: ClassifierOptions) -> None:
    members = len(options.paths) * max(len(options.denoiser or ()), 1)
    if options.router is not None and (options.denoiser or options.vote or options.weights or options.first):
        raise UsageError(
            "--router chooses one model, so there is no vote; leave out --vote, --weights, --first, --denoiser."
        )
    joining = {"--vote": options.vote, "--weights": options.weights, "--first": options.first}
    if options.margin is not None and options.first is None:
        raise UsageError("--margin is how sure the first members of a consensus must be; give --first too.")
    for option, value in joining.items():
        if value is not None and members == 1:
            raise UsageError(f"{option} is for several members, but one model is named; name others, or leave it out.")
    if options.first is not None and options.vote not in (None, "soft", "weighted"):
        raise UsageError(f"a consensus votes softly, not by {options.vote}; leave out --vote or --first.")


def _joined(members: Sequence[nn.Module], options: ClassifierOptions) -> nn.Module:
    if len(members) == 1:
        return members[0]
    weights = None if options.weights is None else numbers(options.weights, "--weights")
    if options.first is not None:
        if options.vote == "weighted" and weights is None:
            raise UsageError("weighted voting needs --weights; `smoothcert ensemble` finds them.")
        return Consensus(members, options.first, weights, margin=options.margin or 0.0)
    return Ensemble(members, options.vote or ("soft" if weights is None else "weighted"), weights)


def trained_noise(
    checkpoints: Sequence[models.Checkpoint | models.CheckpointSummary], denoisers: Sequence[Path] = ()
) -> Noise:
    """The noise that the checkpoints, or the denoisers in front of them, were trained with.

    Raises:
        UsageError: If they do not say, or not the same.
        CheckpointError: If one names a noise that is not known here.
    """
    infos = {checkpoint.path: checkpoint.info for checkpoint in checkpoints}
    if denoisers:
        infos = {path: models.describe(path).info for path in denoisers}
    noises = {path: _noise(info, path) for path, info in infos.items()}
    if len(set(noises.values())) > 1:
        told = "; ".join(f"{path}: {noise}" for path, noise in noises.items())
        raise UsageError(f"the models were trained with different noise ({told}); say which to use, as --sigma.")
    return next(iter(noises.values()))


def _noise(info: models.CheckpointInfo, path: Path) -> Noise:
    if info.noise is not None:
        try:
            return noise_from_config(info.noise)
        except UsageError as error:
            raise CheckpointError(f"{path} was trained with a noise that cannot be used: {error}") from error
    if info.sigma is None:
        raise UsageError(
            f"{path} does not say which noise it was trained with; give --sigma for Gaussian noise, or another --noise "
            "and its settings."
        )
    return Gaussian(info.sigma)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {name!r} cannot be used here; try cpu.") from error
    return device
