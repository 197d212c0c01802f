"""The options that choose a classifier and its inputs, shared by several commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from smoothcert import data, models
from smoothcert.certify import Aces, Memory, Procedure, Smoothed
from smoothcert.classifiers import VOTES
from smoothcert.cli.noises import with_arithmetic
from smoothcert.cli.options import DataRoot, Device, Group, Threads, hardware, numbers
from smoothcert.compositions import (
    AcesOf,
    Composition,
    CompositionFile,
    ConsensusOf,
    DenoisedOf,
    EnsembleOf,
    ExpertOf,
    Opened,
    RoutedOf,
    is_composition,
    open_classifier,
    read_composition,
    trained_noise,
)
from smoothcert.noise import Noise
from smoothcert.sampling.sigma import GridSigma, OptimizeSigma
from smoothcert.types import CheckpointError, UsageError


@dataclass(kw_only=True)
class ClassifierOptions(Group, panel="Classifier"):
    """One model, or several that vote, and how they are run."""

    specifiers: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="A checkpoint or its folder, package.module:factory or file.py:factory, an .onnx, TorchScript or .pt2 "
            "file, hf:NAME, timm:NAME or http://…, with options as MODEL,name=value (weights=FILE, normalize=NAME, "
            "arguments of the factory); or a .yaml file that describes a composed classifier. Several models vote.",
        ),
    ]
    vote: Annotated[str | None, f"How members vote: {', '.join(VOTES)} (soft)."] = None
    weights: Annotated[str | None, "Weights of the members, as a,b,c; see `smoothcert ensemble`."] = None
    first: Annotated[int | None, "K-consensus: run the later members only where the first K disagree."] = None
    margin: Annotated[float | None, "With --first: run them also where the class leads by less than this."] = None
    denoiser: Annotated[
        list[str] | None,
        "A denoiser in front of the model: a checkpoint, a folder of diffusers, or package.module:factory. May be "
        "repeated. A diffusion model has the options steps and seeds, as in DENOISER,steps=3,seeds=5.",
    ] = None
    router: Annotated[str | None, "A selector between the models, to which the noise options then apply."] = None
    arch: Annotated[
        str | None, "Architecture, for a checkpoint that does not name it: one of ours or package.module:factory."
    ] = None
    normalize: Annotated[
        str | None, "How the model normalises inputs: imagenet, cifar10, bytes, symmetric … or MEAN/STD, as 0.5/0.25."
    ] = None
    trust: Annotated[bool, "Let a .yaml file of a classifier name code, model hubs and addresses."] = False
    device: Device = "auto"
    threads: Threads = None
    batch_size: Annotated[int | None, hardware("Noisy copies per forward pass; does not change the noise.")] = None
    runtime: Annotated[str, hardware("auto (the fastest that agrees), eager, compiled or onnx.")] = "auto"
    precision: Annotated[str | None, hardware("bf16 or fp16 autocast, on CUDA only.")] = None

    @property
    def denoisers(self) -> list[str]:
        """The denoisers; one with the option seeds is as many denoisers."""
        return [each for given in self.denoiser or [] for each in models.each_seed(given)]

    @property
    def count(self) -> int:
        """The number of members."""
        return len(self.specifiers) * max(len(self.denoisers), 1)

    @property
    def name(self) -> str:
        """A name for files about the classifier: the first model, the number of members, and how they vote."""
        first = models.short_name(self.specifiers[0])
        parts = [first, *(["denoised"] if self.denoisers else [])]
        if self.router:
            parts.append(f"routed-{self.count}")
        elif self.count > 1:
            parts += [f"{self.count}", f"consensus-{self.first}" if self.first else self.vote or "soft"]
            parts += [f"margin-{self.margin:g}"] if self.margin else []
        return "-".join(parts)

    @cached_property
    def composition(self) -> str | Composition | CompositionFile:
        """The classifier: a specifier, a file, or what the options describe."""
        _check_vote(self)
        specifiers, denoisers = self.specifiers, self.denoisers
        if self.router is not None:
            return RoutedOf(selector=self.router, experts=tuple(ExpertOf(model=each) for each in specifiers))
        if len(specifiers) == 1 and not denoisers:
            return read_composition(specifiers[0]) if is_composition(specifiers[0]) else specifiers[0]
        members: list[str | DenoisedOf] = [*specifiers]
        if denoisers:
            members = [DenoisedOf(model=each, denoiser=denoiser) for each in specifiers for denoiser in denoisers]
        if len(members) == 1:
            return members[0]
        weights = None if self.weights is None else numbers(self.weights, "--weights")
        if self.first is None:
            return EnsembleOf(members=tuple(members), vote=self.vote, weights=weights)
        return ConsensusOf(members=tuple(members), first=self.first, margin=self.margin or 0.0, weights=weights)

    @property
    def aces(self) -> Aces | None:
        """The procedure, without its models, that the file of an ACES composition describes."""
        described = self.composition.composition if isinstance(self.composition, CompositionFile) else None
        return Aces(theta=described.theta, steps=described.steps) if isinstance(described, AcesOf) else None


@dataclass(kw_only=True)
class DataOptions(Group, panel="Data"):
    """A dataset."""

    data_name: Annotated[
        str,
        typer.Option(
            "--data",
            help="A dataset's name, a folder of images, an .npz, .csv or .parquet file, hf:NAME, or "
            "package.module:factory or file.py:factory, with options as DATA,name=value (classes=FILE, size=224, "
            "label=COLUMN).",
        ),
    ]
    split: Annotated[str, "The part of the dataset."] = "test"
    data_root: DataRoot = None

    def load(self) -> data.Dataset:
        return data.load(self.data_name, split=self.split, root=self.data_root)


@dataclass(kw_only=True)
class InputOptions(Group, panel="Data"):
    """Inputs of the dataset."""

    every: Annotated[int, "Use every N-th input."] = 1
    start: Annotated[int, "First input."] = 0
    stop: Annotated[int | None, "End of the inputs, exclusive."] = None


@dataclass(kw_only=True)
class SigmaOptions(Group, panel="Noise per input"):
    """How sigma is chosen for each input, if it is."""

    sigma_steps: Annotated[int | None, "Choose sigma for each input by gradient ascent with this many steps."] = None
    sigma_grid: Annotated[str | None, "Choose sigma for each input among these, as a,b,c; or `usual`."] = None
    memory: Annotated[Path | None, "With a chosen sigma: file of certified balls, which cut later ones."] = None

    @property
    def chosen(self) -> bool:
        return self.sigma_steps is not None or self.sigma_grid is not None

    def build(self) -> dict[str, Any]:
        """Return the options of ``Smoothed`` for a chosen sigma."""
        if self.sigma_steps is not None and self.sigma_grid is not None:
            raise UsageError("give --sigma-steps or --sigma-grid, not both.")
        if self.memory is not None and not self.chosen:
            raise UsageError("--memory is for a sigma chosen for each input; give --sigma-steps or --sigma-grid.")
        if self.sigma_steps is not None:
            options: dict[str, Any] = {"sigma": OptimizeSigma(steps=self.sigma_steps)}
        elif self.sigma_grid is not None:
            grid = () if self.sigma_grid == "usual" else numbers(self.sigma_grid, "--sigma-grid")
            options = {"sigma": GridSigma(grid=grid)}
        else:
            return {}
        if self.memory is None:
            typer.echo(
                "Warning: with a sigma chosen for each input, a radius is about that input's smoothed classifier only "
                "(guarantee pointwise): nearby inputs may get another sigma and another class. --memory keeps answers "
                "consistent.",
                err=True,
            )
        else:
            options["memory"] = Memory(self.memory)
        return options


Seed = Annotated[int | None, "Seed of the noise; random by default. Only to repeat a run, never to select results."]


@dataclass(frozen=True)
class Loaded:
    """A smoothed classifier, and what it was made of."""

    smoothed: Smoothed
    opened: Opened

    @property
    def source(self) -> dict[str, Any]:
        """Where all parts come from."""
        return dict(self.opened.source)

    def completed(self, procedure: Procedure) -> Procedure:
        """Return the procedure with the models of an ACES composition."""
        own = self.opened.procedure
        if own is None or not isinstance(procedure, Aces):
            return procedure
        return replace(procedure, core=own.core, selector=own.selector)


def load_smoothed(
    options: ClassifierOptions,
    datasets: Sequence[data.Dataset],
    noise: Noise | None,
    exact: bool | None = None,
    **per_input: Any,
) -> Loaded:
    """Load the smoothed classifier for datasets of the same classes.

    ``exact`` is as in :func:`with_arithmetic`, and ``per_input`` are the options of a sigma chosen for each input.
    """
    opened = open_models(options, datasets[0], noise)
    levels = {dataset.levels for dataset in datasets}
    grid = levels.pop() if len(levels) == 1 else None
    ranges = {getattr(dataset, "input_range", (0.0, 1.0)) for dataset in datasets}
    input_range = ranges.pop() if len(ranges) == 1 else None
    return smoothed_of(options, opened, noise, exact, grid=grid, input_range=input_range, **per_input)


def smoothed_of(
    options: ClassifierOptions,
    opened: Opened,
    noise: Noise | None,
    exact: bool | None,
    *,
    grid: int | None,
    **more: Any,
) -> Loaded:
    """Return the smoothed classifier of loaded models for data on a grid; ``more`` are options of ``Smoothed``."""
    running: dict[str, Any] = {name: getattr(options, name) for name in ("batch_size", "runtime", "precision")}
    smoothed = opened.smoothed(
        _noise_to_use(noise, opened), lambda each: with_arithmetic(each, grid, exact), **running, **more
    )
    return Loaded(smoothed, opened)


def open_models(options: ClassifierOptions, dataset: data.Dataset, noise: Noise | None = None) -> Opened:
    """Load the models and denoisers of a classifier onto the device; its classes must be those of the dataset."""
    opened = open_given(options, dataset[0][0], noise)
    _check_classes(opened.answering, dataset)
    return opened


def open_given(options: ClassifierOptions, x: torch.Tensor | None, noise: Noise | None = None) -> Opened:
    """Load the models and denoisers of a classifier onto the device; ``x`` is an input, if one is known."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    return open_classifier(
        options.composition,
        noise=noise,
        device=_device(options.device),
        x=x,
        trust=options.trust,
        options={"architecture": options.arch, "normalize": options.normalize},
    )


def _check_classes(loaded: models.LoadedModel, dataset: data.Dataset) -> None:
    """Refuse a dataset whose labels cannot be those of the model; one with sorted class names gets its numbers."""
    advice = data.mismatch(dataset, loaded.num_classes or 0, loaded.class_names)
    if advice is None:
        return
    theirs, ours = (
        f" ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})" if names else ""
        for names in (loaded.class_names, dataset.class_names)
    )
    raise UsageError(
        f"{loaded.name} has {loaded.num_classes} classes{theirs} and {dataset.name} has {dataset.num_classes}{ours}; "
        f"{advice}."
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device {name!r} cannot be used here; try cpu.") from error
    return device


def _check_vote(options: ClassifierOptions) -> None:
    joining = {"--vote": options.vote, "--weights": options.weights, "--first": options.first}
    if options.router is not None and (options.denoisers or any(joining.values())):
        raise UsageError(
            "--router chooses one model, so there is no vote; leave out --vote, --weights, --first, --denoiser."
        )
    if options.margin is not None and options.first is None:
        raise UsageError("--margin is the lead that the first members of a consensus need; give --first too.")
    for option, value in joining.items():
        if value is not None and options.count == 1:
            raise UsageError(f"{option} is for several members, but one model is named; name others, or leave it out.")
    if options.first is not None and options.vote not in (None, "soft", "weighted"):
        raise UsageError(f"a consensus votes softly, not by {options.vote}; leave out --vote or --first.")
    if options.first is not None and options.vote == "weighted" and options.weights is None:
        raise UsageError("weighted voting needs --weights; `smoothcert ensemble` finds them.")
    if len(options.specifiers) > 1 and len(options.denoisers) > 1:
        raise UsageError("give several models or several denoisers, not both.")


def _noise_to_use(noise: Noise | None, opened: Opened) -> Noise:
    """The given noise, or that of the file or of the training; warns where it differs a lot from the training."""
    noise = noise or opened.noise
    if noise is None:
        return trained_noise(opened.base)
    try:
        trained = trained_noise(opened.base)
    except (CheckpointError, UsageError):
        return noise
    if trained.name == noise.name and not 0.5 <= noise.scale / trained.scale <= 2:
        typer.echo(
            f"Warning: {opened.base.name} was trained with {trained}, and {noise} differs from it a lot: expect many "
            "abstentions or small radii.",
            err=True,
        )
    return noise
