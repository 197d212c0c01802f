"""Load what a specifier or a composition names, as a base classifier or as a smoothed one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert import models
from smoothcert.certify import Aces, Smoothed
from smoothcert.classifiers import Consensus, Denoised, Ensemble
from smoothcert.classifiers.sealed import Sealed
from smoothcert.compositions.files import (
    AcesOf,
    Composition,
    CompositionFile,
    ConsensusOf,
    DenoisedOf,
    EnsembleOf,
    RoutedOf,
    is_composition,
    may_run_code,
    read_composition,
    with_paths,
)
from smoothcert.models import LoadedModel
from smoothcert.noise import Gaussian, Noise, noise_from_config
from smoothcert.noise.grid import GridNoise
from smoothcert.specifiers import Specifier
from smoothcert.types import CheckpointError, SmoothcertError, StrPath, UsageError

_MOST_FILES = 8  # that include each other
_MOST_PARTS = 1_000


@dataclass(frozen=True, kw_only=True)
class ComposedModel(LoadedModel):
    """A base classifier made of others.

    Attributes:
        parts: The members; or the classifier and the denoiser in front of it.
        under_noise: Those models in it that get noisy copies, whose training noise is that of the whole.
        count: The number of models in it.
    """

    parts: tuple[LoadedModel, ...]
    under_noise: tuple[LoadedModel, ...]
    count: int

    def as_dict(self) -> dict[str, Any]:
        """Return the settings and all parts as JSON values."""
        names = ("model", "denoiser") if self.source["kind"] == "denoised" else map(str, range(1, len(self.parts) + 1))
        return _settings(self.source) | {name: _brief(each) for name, each in zip(names, self.parts, strict=True)}


def _settings(source: Mapping[str, Any]) -> dict[str, Any]:
    names = ("kind", "file", "vote", "weights", "first", "margin", "theta")
    return {name: source[name] for name in names if source.get(name) is not None}


def _brief(loaded: LoadedModel) -> dict[str, Any]:
    if isinstance(loaded, ComposedModel):
        return loaded.as_dict()
    known = {"parameters": loaded.parameters, "num_classes": loaded.num_classes, "noise": loaded.noise}
    return {**loaded.source, **{name: value for name, value in known.items() if value is not None}}


@dataclass(frozen=True)
class Expert:
    """An expert of a router; a core if it has no noise."""

    loaded: LoadedModel
    noise: Noise | None


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What a specifier or a composition names, loaded.

    Attributes:
        base: The model under noise: a base classifier, the selector of a router, or the smoothed classifier of ACES.
        noise: The noise of a router's selector, if its description has one.
        experts: The experts of a router.
        procedure: The procedure that a description of ACES stands for.
        parts: The models of a router or of ACES by their role.
        source: The kind, the settings, and where each part comes from, as JSON values.
    """

    base: LoadedModel
    noise: Noise | None = None
    experts: tuple[Expert, ...] = ()
    procedure: Aces | None = None
    parts: Mapping[str, LoadedModel] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def answering(self) -> LoadedModel:
        """The model whose classes are those of the answers."""
        return self.experts[0].loaded if self.experts else self.base

    def smoothed(
        self, noise: Noise | None = None, drawn: Callable[[Noise], Noise] = lambda noise: noise, **options: Any
    ) -> Smoothed:
        """Return the smoothed classifier.

        Args:
            noise: The noise of :attr:`base`; by default that of the description, or of the training.
            drawn: Changes how each noise is drawn, such as on a grid.
            **options: Options of ``Smoothed``.

        Raises:
            UsageError: No noise is given or recorded, or the options do not suit a router.
        """
        own = ("sigma", "memory", "procedure", "num_classes")  # of the whole, not of its experts
        running = {name: value for name, value in options.items() if name not in own}
        experts = [
            each.loaded.model
            if each.noise is None
            else Smoothed(each.loaded.model, drawn(each.noise), num_classes=each.loaded.num_classes, **running)
            for each in self.experts
        ]
        chosen = noise or self.noise or trained_noise(self.base)
        options = {"num_classes": self.base.num_classes, "procedure": self.procedure, **options}
        return Smoothed(self.base.model, drawn(chosen), experts=experts, **options)

    def as_dict(self) -> dict[str, Any]:
        """Return what is known as JSON values."""
        parts = {role: _brief(each) for role, each in self.parts.items()}
        return _settings(self.source) | (parts or self.base.as_dict())


def load_model(specifier: StrPath, *, trust: bool = False, **options: Any) -> nn.Module:
    """Load a model, or a composition that is one, in evaluation mode, on the CPU.

    It maps a batch of inputs in [0, 1] to logits.

    Args:
        specifier: A model as in :func:`smoothcert.models.open_model`, or the YAML file of an ensemble, a consensus or a
            denoised classifier.
        trust: Whether a YAML file may name code, model hubs and addresses; what you name yourself is always used.
        **options: Options of the model.

    Raises:
        UsageError: The specifier or an option is invalid, or a package is missing.
        CheckpointError: A file is missing, damaged or unsafe, or does not match the network.

    Example:
        >>> load_model("torch.nn:Linear,in_features=4,out_features=2")
        Linear(in_features=4, out_features=2, bias=True)
    """
    opened = open_classifier(specifier, trust=trust, options=options)
    if opened.parts:
        raise UsageError(
            f"{specifier} is a {opened.source['kind']} classifier, not one model; use smoothcert.load_smoothed."
        )
    return opened.base.model


def load_smoothed(
    specifier: StrPath,
    noise: Noise | None = None,
    *,
    grid: int | None = None,
    trust: bool = False,
    **options: Any,
) -> Smoothed:
    """Load a smoothed classifier, on the CPU.

    Args:
        specifier: A model as in :func:`load_model`, or the YAML file of any composition. That of a router gives
            ``experts``, and that of ACES gives ``procedure``, which ``certify`` and ``predict`` use by default.
        noise: The noise; by default that of the training. For a router, it is the noise of the selector.
        grid: The grid of the data, such as 255 for 8-bit images, on which all noise is drawn exactly; in floating point
            by default.
        trust: Whether a YAML file may name code, model hubs and addresses; what you name yourself is always used.
        **options: Options of :class:`Smoothed`.

    Raises:
        UsageError: As in :func:`load_model`; or no noise is given and the models do not record the same one.
        CheckpointError: A file is missing, damaged or unsafe, or does not match the network.

    Example:
        >>> load_smoothed("torch.nn:Linear,in_features=4,out_features=2", Gaussian(0.5)).noise
        Gaussian(sigma=0.5)
    """

    def drawn(noise: Noise) -> Noise:
        exact = grid is not None and isinstance(noise, GridNoise)
        return noise_from_config({**noise.config(), "grid": grid}) if exact else noise

    return open_classifier(specifier, noise=noise, trust=trust).smoothed(noise, drawn, **options)


def open_classifier(
    given: StrPath | Composition | CompositionFile,
    *,
    noise: Noise | None = None,
    device: torch.device | str = "cpu",
    x: Tensor | None = None,
    trust: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Opened:
    """Load all parts of a model or composition, each file once.

    Args:
        given: A specifier, or the description of a composition.
        noise: The noise that will be used, for denoisers that are told its level.
        device: Where the models will be.
        x: An input, to count the classes of models that do not record them.
        trust: Whether a file may name code, model hubs and addresses.
        options: Options of the models that ``given`` names, but not of those that files name.

    Raises:
        UsageError: A description is invalid, includes itself, or names what only the user may name.
        CheckpointError: A file is missing, damaged or unsafe, or does not match the network.
    """
    used = {name: value for name, value in (options or {}).items() if value is not None}
    parts = _Parts(torch.device(device), x, trust, _level(noise), used)
    if not isinstance(given, Composition):
        if not isinstance(given, CompositionFile) and not is_composition(given):
            return _opened(parts.model(str(given)))
        file = given if isinstance(given, CompositionFile) else read_composition(given)
        with parts.inside(file) as inner:
            opened = inner.classifier(file.composition)
        return replace(opened, source={**_of_file(file), **opened.source})
    return parts.classifier(given)


def trained_noise(loaded: LoadedModel) -> Noise:
    """Return the noise that a model, its members, or the denoisers in front of them were trained with.

    Raises:
        UsageError: If one does not record it, or they differ.
        CheckpointError: If one names an unknown noise.
    """
    noises: dict[str, Noise] = {}
    for each in _under_noise(loaded):
        if each.noise is None:
            raise UsageError(
                f"{each.name} does not record the noise of its training; give --sigma for Gaussian noise, or another "
                "--noise and its settings (in Python, noise=…)."
            )
        try:
            noises[each.name] = noise_from_config(each.noise)
        except UsageError as error:
            raise CheckpointError(f"{each.name} was trained with a noise that cannot be used: {error}") from error
    if len(set(noises.values())) > 1:
        listed = "; ".join(f"{name}: {noise}" for name, noise in noises.items())
        raise UsageError(f"the models were trained with different noise ({listed}); choose one, as --sigma.")
    return next(iter(noises.values()))


@dataclass(frozen=True, eq=False)
class _Parts:
    """Loads the parts of a composition, each once, so that parts which are the same share their weights."""

    device: torch.device
    x: Tensor | None
    trust: bool
    level: float | None  # of the noise, for denoisers
    options: Mapping[str, Any]  # of models that the user names
    files: tuple[Path, ...] = ()  # that include each other, the innermost last; empty where the user names the parts
    loaded: dict[tuple[Any, ...], LoadedModel] = field(default_factory=dict)

    def classifier(self, given: Composition) -> Opened:
        if isinstance(given, RoutedOf):
            return self._routed(given)
        if not isinstance(given, AcesOf):
            return _opened(self.model(given))
        base = self.model(given.model)
        others = {name: getattr(given, name) for name in ("core", "selector") if getattr(given, name) is not None}
        loaded = {name: self.model(each) for name, each in others.items()}
        _same_classes([base, *(each for name, each in loaded.items() if name == "core")])
        settings: dict[str, Any] = {"theta": given.theta, "steps": given.steps}
        networks: dict[str, Any] = {name: each.model for name, each in loaded.items()}
        procedure = Aces(**networks, **settings)
        sources = {"model": dict(base.source), **{name: dict(each.source) for name, each in loaded.items()}}
        source = {"kind": "aces", **sources, **settings, **_trainings([base])}
        return Opened(base=base, procedure=procedure, parts={"model": base, **loaded}, source=source)

    def _routed(self, given: RoutedOf) -> Opened:
        noise = None if given.noise is None else noise_from_config(given.noise)
        selector = (self if self.level is not None else replace(self, level=_level(noise))).model(given.selector)
        experts = []
        for each in given.experts:
            own = None if each.noise is None else noise_from_config(each.noise)
            inner = replace(self, level=_level(own))
            if each.core is not None:
                experts.append(Expert(inner.model(each.core), None))
            elif each.model is not None:
                loaded = inner.model(each.model)
                experts.append(Expert(loaded, own or trained_noise(loaded)))
        _same_classes([each.loaded for each in experts])
        described = [
            {"noise": None if each.noise is None else each.noise.config(), "model": dict(each.loaded.source)}
            for each in experts
        ]
        source = {"kind": "routed", "selector": dict(selector.source), "experts": described}
        source |= _trainings([each.loaded for each in experts])
        roles = [f"expert {place}, {each.noise or 'a core'}" for place, each in enumerate(experts, 1)]
        parts = {"selector": selector, **{role: each.loaded for role, each in zip(roles, experts, strict=True)}}
        return Opened(base=selector, noise=noise, experts=tuple(experts), parts=parts, source=source)

    def model(self, given: str | Composition) -> LoadedModel:
        """Load a base classifier."""
        if isinstance(given, DenoisedOf):
            model, denoiser = self.model(given.model), self._denoiser(given.denoiser)
            _counted([model, denoiser])
            source = {"kind": "denoised", "model": dict(model.source), "denoiser": dict(denoiser.source)}
            return _composed(Denoised(model.model, denoiser.model), [model, denoiser], [denoiser], source)
        if isinstance(given, EnsembleOf | ConsensusOf):
            return self._joined(given)
        if isinstance(given, Composition):
            raise UsageError(f"a {given.kind} classifier cannot be a part of another; name a base classifier.")
        if not is_composition(given):
            return self._kept(given, lambda found: models.open_model(found, **self._options), counted=True)
        found = self._located(given)
        key = (str(found), "file", self.level)
        if key not in self.loaded:
            file = read_composition(found)
            with self.inside(file) as inner:
                one = inner.model(file.composition)
            self.loaded[key] = replace(one, name=file.path.stem, source={**_of_file(file), **one.source})
        return self.loaded[key]

    def _joined(self, given: EnsembleOf | ConsensusOf) -> LoadedModel:
        members = [self.model(each) for each in given.members]
        _counted(members)
        _same_classes(members)
        networks = [each.model for each in members]
        joined: nn.Module
        if isinstance(given, ConsensusOf):
            joined = Consensus(networks, given.first, given.weights, margin=given.margin)
        else:
            joined = Ensemble(networks, given.vote or ("weighted" if given.weights else "soft"), given.weights)
        source = {**given.model_dump(mode="json"), "members": [dict(each.source) for each in members]}
        return _composed(joined, members, members, source)

    def _denoiser(self, text: str) -> LoadedModel:
        return self._kept(text, lambda found: models.open_denoiser(found, level=self.level), counted=False)

    def _kept(self, text: str, load: Callable[[Specifier], LoadedModel], *, counted: bool) -> LoadedModel:
        """Load what a specifier names, unless it is loaded."""
        found = self._located(text)
        key = (str(found), counted, self.level)
        if key not in self.loaded:
            try:
                one = load(found)
            except OSError as error:  # such as a name that is too long
                raise CheckpointError(f"'{text:.80}' cannot be read ({error.strerror or error}).") from error
            one.model.to(self.device)
            if counted and one.num_classes is None and self.x is not None:
                one = replace(one, num_classes=Sealed(one.model).count_classes(self.x.to(self.device)))
            self.loaded[key] = one
        return self.loaded[key]

    def _located(self, text: str) -> Specifier:
        """Return a specifier whose paths are relative to the innermost file; refuse code that only the file names."""
        given = Specifier.parse(text)
        if not self.files:
            return given
        if may_run_code(given) and not self.trust:
            raise UsageError(
                f"'{text}' may run code or use the network; if you trust the file, allow it by --trust (trust=True in "
                "Python)."
            )
        return with_paths(given, lambda path: self.files[-1].parent / path)

    @property
    def _options(self) -> Mapping[str, Any]:
        return {} if self.files else self.options

    @contextmanager
    def inside(self, file: CompositionFile) -> Iterator[_Parts]:
        """Load parts that a file names; errors name the file."""
        if self._options:
            listed = " and ".join(self._options)
            raise UsageError(f"{file.path} is a composition, which has no option {listed}; write it in the file.")
        path = file.path.absolute()  # a link stands for its target, but the paths in it are relative to the link
        try:
            if path.resolve() in [each.resolve() for each in self.files]:
                raise UsageError("the file includes itself; name other models.")
            if len(self.files) == _MOST_FILES:
                raise UsageError(f"more than {_MOST_FILES} files include each other; write inner ones into outer ones.")
            yield replace(self, files=(*self.files, path))
        except SmoothcertError as error:
            named = type(error)(f"{file.path}: {error}")
            named.exit_code = error.exit_code
            raise named from error


def _opened(base: LoadedModel) -> Opened:
    return Opened(base=base, source={**base.source, **_trainings([base])})


def _of_file(file: CompositionFile) -> dict[str, Any]:
    return {"file": str(file.path), "file_sha256": file.sha256}


def _under_noise(loaded: LoadedModel) -> tuple[LoadedModel, ...]:
    return loaded.under_noise if isinstance(loaded, ComposedModel) else (loaded,)


def _trainings(loaded: Sequence[LoadedModel]) -> dict[str, Any]:
    """Return the record of all trainings, if they are known; that of a denoiser is not recorded."""
    trainings = [each.training for one in loaded for each in _under_noise(one)]
    return {} if None in trainings else {"training": trainings}


def _composed(
    model: nn.Module, parts: Sequence[LoadedModel], noisy: Sequence[LoadedModel], source: Mapping[str, Any]
) -> ComposedModel:
    first = parts[0]
    checkpoint = {name: first.source[name] for name in ("checkpoint", "sha256") if name in first.source}
    return ComposedModel(
        model=model.eval(),
        name=first.name,
        source={**checkpoint, **source},  # figures read the recipe of the first one
        num_classes=first.num_classes,
        input_shape=first.input_shape,
        class_names=first.class_names,
        parts=tuple(parts),
        under_noise=tuple(each for one in noisy for each in _under_noise(one)),
        count=_counted(parts),
    )


def _counted(parts: Sequence[LoadedModel]) -> int:
    """Count the models in parts; files that include others many times could name any number."""
    count = sum(each.count if isinstance(each, ComposedModel) else 1 for each in parts)
    if count > _MOST_PARTS:
        raise UsageError(f"the classifier has {count} parts; at most {_MOST_PARTS} can be loaded.")
    return count


def _same_classes(loaded: Sequence[LoadedModel]) -> None:
    classes = sorted({each.num_classes for each in loaded if each.num_classes is not None})
    if len(classes) > 1:
        raise UsageError(f"the members of an ensemble must have the same classes, but have {classes}.")


def _level(noise: Noise | None) -> float | None:
    return noise.sigma if isinstance(noise, Gaussian) else None
