"""The options that choose a classifier and its inputs, shared by several commands."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from smoothcert import data, models
from smoothcert.certify import Memory, Smoothed
from smoothcert.classifiers import VOTES, Consensus, Denoised, Ensemble
from smoothcert.cli.options import DataRoot, Device, Group, Threads, hardware, numbers
from smoothcert.cli.procedures import with_arithmetic
from smoothcert.noise import Gaussian, Noise, noise_from_config
from smoothcert.sampling.sigma import GridSigma, OptimizeSigma
from smoothcert.types import CheckpointError, UsageError


@dataclass(kw_only=True)
class ClassifierOptions(Group, panel="Classifier"):
    """One model, or several that vote, and how they are run."""

    paths: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL", help="A checkpoint (.safetensors, .pth.tar) or its folder, or several."),
    ]
    vote: Annotated[str | None, f"How members vote: {', '.join(VOTES)} (soft)."] = None
    weights: Annotated[str | None, "Weights of the members, as a,b,c; see `smoothcert ensemble`."] = None
    first: Annotated[int | None, "K-consensus: run the later members only where the first K disagree."] = None
    margin: Annotated[float | None, "With --first: run them also where the class leads by less than this."] = None
    denoiser: Annotated[list[Path] | None, "A denoiser in front of the model. May be repeated."] = None
    router: Annotated[Path | None, "A selector between the models, to which the noise options then apply."] = None
    arch: Annotated[str | None, "Architecture, for a checkpoint that does not name it."] = None
    device: Device = "auto"
    threads: Threads = None
    batch_size: Annotated[int | None, hardware("Noisy copies per forward pass; does not change the noise.")] = None
    runtime: Annotated[str, hardware("auto (the fastest that agrees), eager, compiled or onnx.")] = "auto"
    precision: Annotated[str | None, hardware("bf16 or fp16 autocast, on CUDA only.")] = None

    @property
    def denoisers(self) -> list[Path]:
        return self.denoiser or []

    @property
    def count(self) -> int:
        """The number of members."""
        return len(self.paths) * max(len(self.denoisers), 1)

    @property
    def name(self) -> str:
        """A name for files about the classifier: the first model, the number of members, and how they vote."""
        first = self.paths[0].resolve().name
        for suffix in (".safetensors", ".tar", ".pth", ".pt"):
            first = first.removesuffix(suffix)
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
    checkpoints, members = load_members(options, datasets[0])
    levels = {dataset.levels for dataset in datasets}
    grid = levels.pop() if len(levels) == 1 else None
    running: dict[str, Any] = {name: getattr(options, name) for name in ("batch_size", "runtime", "precision")}
    running["num_classes"] = checkpoints[0].info.num_classes
    if options.router is not None:
        # Each model is an expert under the noise of its training, and a selector chooses between them.
        selector = models.load_checkpoint(options.router)
        experts = [
            Smoothed(member, with_arithmetic(trained_noise([checkpoint]), grid, exact), **running)
            for checkpoint, member in zip(checkpoints, members, strict=True)
        ]
        chosen = with_arithmetic(_noise_to_use(noise, [selector]), grid, exact)
        running["num_classes"] = selector.info.num_classes
        device = next(members[0].parameters()).device
        smoothed = Smoothed(selector.model.to(device), chosen, experts=experts, **running, **per_input)
    else:
        chosen = with_arithmetic(_noise_to_use(noise, checkpoints, options.denoisers), grid, exact)
        smoothed = Smoothed(_joined(members, options), chosen, **running, **per_input)
    source: dict[str, Any] = {"checkpoint": str(checkpoints[0].path), "sha256": checkpoints[0].sha256}
    if len(members) > 1 or options.denoisers:
        files = [*(checkpoint.path for checkpoint in checkpoints), *options.denoisers]
        source |= {"members": [str(file) for file in files], "vote": options.vote, "consensus": options.first}
        source |= {} if options.margin is None else {"margin": options.margin}
        source |= {} if options.router is None else {"router": str(options.router)}
    training = [_training(checkpoint.info) for checkpoint in checkpoints]
    if not options.denoisers and None not in training:  # the training of a denoiser is not recorded
        source["training"] = training
    return smoothed, source


def load_members(options: ClassifierOptions, dataset: data.Dataset) -> tuple[list[models.Checkpoint], list[nn.Module]]:
    """Load the checkpoints and the members they make: themselves, or one for each denoiser in front of one of them."""
    checkpoints = [models.load_checkpoint(path, architecture=options.arch) for path in options.paths]
    classes = {checkpoint.info.num_classes for checkpoint in checkpoints}
    if len(classes) > 1:
        raise UsageError(f"the members of an ensemble must have the same classes, but have {sorted(classes)}.")
    (count,) = classes
    if dataset.num_classes > count or (dataset.name in data.DATASETS and dataset.num_classes != count):
        counts = f"{checkpoints[0].path} has {count} classes and {dataset.name} has {dataset.num_classes}"
        raise UsageError(f"{counts}; use one that fits.")
    if len(checkpoints) > 1 and len(options.denoisers) > 1:
        raise UsageError("give several models or several denoisers, not both.")
    denoisers = [models.load_denoiser(path) for path in options.denoisers]
    members = [checkpoint.model for checkpoint in checkpoints]
    if denoisers:
        members = [Denoised(member, denoiser) for member in members for denoiser in denoisers]
    device = _device(options.device)
    return checkpoints, [member.to(device) for member in members]


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


def _noise_to_use(
    noise: Noise | None, checkpoints: Sequence[models.Checkpoint], denoisers: Sequence[Path] = ()
) -> Noise:
    """The given noise, or that of the training; warns where the two differ a lot."""
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


def trained_noise(
    checkpoints: Sequence[models.Checkpoint | models.CheckpointSummary], denoisers: Sequence[Path] = ()
) -> Noise:
    """Return the noise that the checkpoints, or the denoisers in front of them, were trained with.

    Raises:
        UsageError: If one does not record it, or they differ.
        CheckpointError: If one names an unknown noise.
    """
    infos = {checkpoint.path: checkpoint.info for checkpoint in checkpoints}
    if denoisers:
        infos = {path: models.describe(path).info for path in denoisers}
    noises: dict[Path, Noise] = {}
    for path, info in infos.items():
        if info.noise is None and info.sigma is None:
            raise UsageError(
                f"{path} does not record the noise of its training; give --sigma for Gaussian noise, or another "
                "--noise and its settings."
            )
        try:
            noises[path] = noise_from_config(info.noise or {"name": Gaussian.name, "sigma": info.sigma})
        except UsageError as error:
            raise CheckpointError(f"{path} was trained with a noise that cannot be used: {error}") from error
    if len(set(noises.values())) > 1:
        listed = "; ".join(f"{path}: {noise}" for path, noise in noises.items())
        raise UsageError(f"the models were trained with different noise ({listed}); choose one, as --sigma.")
    return next(iter(noises.values()))


def _training(info: models.CheckpointInfo) -> dict[str, Any] | None:
    """The training of a checkpoint, if recorded: enough to find runs that differ only in its seed."""
    recipe = info.extra.get("recipe")
    if not isinstance(recipe, dict) or not {"name", "method", "seed"} <= recipe.keys():
        return None
    rest = {key: value for key, value in recipe.items() if key not in ("name", "source", "seed")}
    settings = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    return {"recipe": recipe["name"], "method": recipe["method"], "seed": recipe["seed"], "settings": settings}
