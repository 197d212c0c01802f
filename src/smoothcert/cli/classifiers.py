"""The options that choose a classifier and its inputs, shared by several commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from smoothcert import data, models
from smoothcert.certify import Memory, Smoothed
from smoothcert.classifiers import VOTES, Consensus, Denoised, Ensemble
from smoothcert.classifiers.sealed import Sealed
from smoothcert.cli.options import DataRoot, Device, Group, Threads, hardware, numbers
from smoothcert.cli.procedures import with_arithmetic
from smoothcert.noise import Gaussian, Noise, noise_from_config
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
            "arguments of the factory). Several models vote.",
        ),
    ]
    vote: Annotated[str | None, f"How members vote: {', '.join(VOTES)} (soft)."] = None
    weights: Annotated[str | None, "Weights of the members, as a,b,c; see `smoothcert ensemble`."] = None
    first: Annotated[int | None, "K-consensus: run the later members only where the first K disagree."] = None
    margin: Annotated[float | None, "With --first: run them also where the class leads by less than this."] = None
    denoiser: Annotated[
        list[str] | None,
        "A denoiser in front of the model: a checkpoint, a folder of diffusers, or package.module:factory. May be "
        "repeated.",
    ] = None
    router: Annotated[str | None, "A selector between the models, to which the noise options then apply."] = None
    arch: Annotated[
        str | None, "Architecture, for a checkpoint that does not name it: one of ours or package.module:factory."
    ] = None
    normalize: Annotated[
        str | None, "How the model normalises inputs: imagenet, cifar10, bytes, symmetric … or MEAN/STD, as 0.5/0.25."
    ] = None
    device: Device = "auto"
    threads: Threads = None
    batch_size: Annotated[int | None, hardware("Noisy copies per forward pass; does not change the noise.")] = None
    runtime: Annotated[str, hardware("auto (the fastest that agrees), eager, compiled or onnx.")] = "auto"
    precision: Annotated[str | None, hardware("bf16 or fp16 autocast, on CUDA only.")] = None

    @property
    def denoisers(self) -> list[str]:
        return self.denoiser or []

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


@dataclass(kw_only=True)
class DataOptions(Group, panel="Data"):
    """A dataset."""

    data_name: Annotated[str, typer.Option("--data", help="A dataset's name, an .npz file or an image folder.")]
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


def load_smoothed(
    options: ClassifierOptions,
    datasets: Sequence[data.Dataset],
    noise: Noise | None,
    exact: bool | None = None,
    **per_input: Any,
) -> tuple[Smoothed, dict[str, Any]]:
    """Load the smoothed classifier for datasets of the same classes, and describe where it comes from.

    ``exact`` is as in :func:`with_arithmetic`, and ``per_input`` are the options of a sigma chosen for each input.
    """
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    _check_vote(options)
    loaded = load_models(options, datasets[0])
    levels = {dataset.levels for dataset in datasets}
    grid = levels.pop() if len(levels) == 1 else None
    running: dict[str, Any] = {name: getattr(options, name) for name in ("batch_size", "runtime", "precision")}
    running["num_classes"] = loaded[0].num_classes
    if options.router is not None:
        # Each model is an expert under the noise of its training, and a selector chooses between them.
        (selector,) = open_models([options.router], options)
        experts = [
            Smoothed(each.model, with_arithmetic(trained_noise([each]), grid, exact), **running) for each in loaded
        ]
        chosen = with_arithmetic(_noise_to_use(noise, [selector]), grid, exact)
        running["num_classes"] = selector.num_classes
        smoothed = Smoothed(selector.model, chosen, experts=experts, **running, **per_input)
        denoisers: list[models.LoadedModel] = []
    else:
        denoisers = load_denoisers(options, noise)
        chosen = with_arithmetic(_noise_to_use(noise, denoisers or loaded), grid, exact)
        smoothed = Smoothed(_joined(_members(loaded, denoisers), options), chosen, **running, **per_input)
    source: dict[str, Any] = dict(loaded[0].source)
    if options.count > 1 or denoisers:
        parts = [each.source for each in (*loaded, *denoisers)]
        source |= {"members": parts, "vote": options.vote, "consensus": options.first}
        source |= {} if options.margin is None else {"margin": options.margin}
        source |= {} if options.router is None else {"router": options.router}
    training = [each.training for each in loaded]
    if not denoisers and None not in training:  # the training of a denoiser is not recorded
        source["training"] = training
    return smoothed, source


def load_members(
    options: ClassifierOptions, dataset: data.Dataset, noise: Noise | None = None
) -> tuple[list[models.LoadedModel], list[nn.Module]]:
    """Load the members of an ensemble, and the models or denoisers in which they differ."""
    loaded, denoisers = load_models(options, dataset), load_denoisers(options, noise)
    return denoisers or loaded, _members(loaded, denoisers)


def load_models(options: ClassifierOptions, dataset: data.Dataset) -> list[models.LoadedModel]:
    """Load the named models, which must have the same classes, those of the dataset."""
    loaded = open_models(options.specifiers, options, dataset)
    classes = sorted({each.num_classes or 0 for each in loaded})
    if len(classes) > 1:
        raise UsageError(f"the members of an ensemble must have the same classes, but have {classes}.")
    _check_classes(loaded[0], dataset)
    if len(loaded) > 1 and len(options.denoisers) > 1:
        raise UsageError("give several models or several denoisers, not both.")
    return loaded


def _check_classes(loaded: models.LoadedModel, dataset: data.Dataset) -> None:
    """Refuse a dataset whose labels cannot be those of the model; one that is not named may lack some classes."""
    count = loaded.num_classes
    if dataset.num_classes == count or (dataset.num_classes < (count or 0) and dataset.name not in data.DATASETS):
        return
    theirs, ours = (
        f" ({', '.join(names[:5])}{', …' if len(names) > 5 else ''})" if names else ""
        for names in (loaded.class_names, dataset.class_names)
    )
    raise UsageError(
        f"{loaded.name} has {count} classes{theirs} and {dataset.name} has {dataset.num_classes}{ours}; use a dataset "
        "with the classes of the model."
    )


def open_models(
    specifiers: Sequence[str], options: ClassifierOptions, dataset: data.Dataset | None = None
) -> list[models.LoadedModel]:
    """Load models onto the device; the number of classes of a model that does not tell it is found on an input."""
    device = _device(options.device)
    loaded = []
    for each in specifiers:
        one = models.open_model(each, architecture=options.arch, normalize=options.normalize)
        one.model.to(device)
        if one.num_classes is None and dataset is not None:
            one = replace(one, num_classes=Sealed(one.model).count_classes(dataset[0][0].to(device)))
        loaded.append(one)
    return loaded


def load_denoisers(options: ClassifierOptions, noise: Noise | None) -> list[models.LoadedModel]:
    """Load the denoisers onto the device; one that is told the noise level is told that of the noise."""
    level = noise.sigma if isinstance(noise, Gaussian) else None
    loaded = [models.open_denoiser(each, level=level) for each in options.denoisers]
    for each in loaded:
        each.model.to(_device(options.device))
    return loaded


def _members(loaded: Sequence[models.LoadedModel], denoisers: Sequence[models.LoadedModel]) -> list[nn.Module]:
    if not denoisers:
        return [each.model for each in loaded]
    return [Denoised(each.model, denoiser.model) for each in loaded for denoiser in denoisers]


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


def _joined(members: Sequence[nn.Module], options: ClassifierOptions) -> nn.Module:
    if len(members) == 1:
        return members[0]
    weights = None if options.weights is None else numbers(options.weights, "--weights")
    if options.first is not None:
        if options.vote == "weighted" and weights is None:
            raise UsageError("weighted voting needs --weights; `smoothcert ensemble` finds them.")
        return Consensus(members, options.first, weights, margin=options.margin or 0.0)
    return Ensemble(members, options.vote or ("soft" if weights is None else "weighted"), weights)


def _noise_to_use(noise: Noise | None, loaded: Sequence[models.LoadedModel]) -> Noise:
    """The given noise, or that of the training; warns where the two differ a lot."""
    if noise is None:
        return trained_noise(loaded)
    try:
        trained = trained_noise(loaded)
    except (CheckpointError, UsageError):
        return noise
    if trained.name == noise.name and not 0.5 <= noise.scale / trained.scale <= 2:
        typer.echo(
            f"Warning: {loaded[0].name} was trained with {trained}, and {noise} differs from it a lot: expect many "
            "abstentions or small radii.",
            err=True,
        )
    return noise


def trained_noise(loaded: Sequence[models.LoadedModel]) -> Noise:
    """Return the noise that the models, or the denoisers in front of them, were trained with.

    Raises:
        UsageError: If one does not record it, or they differ.
        CheckpointError: If one names an unknown noise.
    """
    noises: dict[str, Noise] = {}
    for each in loaded:
        if each.noise is None:
            raise UsageError(
                f"{each.name} does not record the noise of its training; give --sigma for Gaussian noise, or another "
                "--noise and its settings."
            )
        try:
            noises[each.name] = noise_from_config(each.noise)
        except UsageError as error:
            raise CheckpointError(f"{each.name} was trained with a noise that cannot be used: {error}") from error
    if len(set(noises.values())) > 1:
        listed = "; ".join(f"{name}: {noise}" for name, noise in noises.items())
        raise UsageError(f"the models were trained with different noise ({listed}); choose one, as --sigma.")
    return next(iter(noises.values()))
