"""The settings of a training, and recipes, which add the model, the data and the method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from smoothcert.noise import Gaussian, Noise, noise_from_config
from smoothcert.sampling.sigma import CLAMP, INTERVAL, OptimizeSigma
from smoothcert.training.methods import METHODS, Method
from smoothcert.types import UsageError, unknown_name


class DataDependentSigma(BaseModel):
    """A noise scale for each training input (Alfarra, Bibi, Torr and Ghanem, 2022, Algorithm 2, called DS²).

    Attributes:
        warmup: Epochs with the fixed scale first.
        steps: K, the steps of ``OptimizeSigma`` for each input in each later epoch, which continue those before.
        n: Noisy copies per step.
        step: The factor of the gradient.
        clamp: The range of probabilities inside Φ⁻¹.
        interval: The smallest and largest scale.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    warmup: int = Field(50, ge=0)
    steps: int = Field(1, ge=0)
    n: int = Field(1, ge=1)
    step: float = Field(1e-4, gt=0)
    clamp: tuple[float, float] = CLAMP
    interval: tuple[float, float] = INTERVAL

    @model_validator(mode="after")
    def _solvable(self) -> DataDependentSigma:
        self.solver()
        return self

    def solver(self) -> OptimizeSigma:
        """Return the search of a batch."""
        return OptimizeSigma(**self.model_dump(exclude={"warmup"}))

    def start(self, noise: Noise) -> float:
        """Return the initial scale of every input, or raise a UsageError if the noise does not have one."""
        if not isinstance(noise, Gaussian):
            raise UsageError(
                f"data_dependent_sigma needs Gaussian noise, got {noise.name}: change the noise, or leave it out."
            )
        low, high = self.interval
        if not low <= noise.sigma <= high:
            raise UsageError(
                f"data_dependent_sigma starts with the sigma of the noise, {noise.sigma:g}, which is not in the "
                f"interval from {low:g} to {high:g}; change one of them."
            )
        return noise.sigma


class TrainingSettings(BaseModel):
    """The settings of the loop: the optimiser, its schedule and the evaluation.

    Attributes:
        epochs: Passes over the data.
        batch_size: Noisy copies per step: a method with m copies of each input uses batch_size / m inputs.
        optimizer: ``sgd``, ``adam`` or ``adamw``.
        rate: The largest learning rate; by default 0.05, and 0.001 for Adam and AdamW.
        schedule: ``constant``; ``step`` divides the rate by ten at each milestone; ``cosine`` lowers it to 0 along a
            cosine; ``one-cycle`` raises it from a 25th of ``rate`` over the first ``rise`` of training before.
        milestones: The epochs at which ``step`` lowers the rate.
        rise: The share of training in which ``one-cycle`` rises.
        momentum: Momentum of SGD.
        nesterov: Whether it is Nesterov's.
        weight_decay: ℓ2 penalty on the weights; decoupled in AdamW.
        clip: The largest norm of a gradient, or None.
        ema: Decay of a running mean of the weights, which is then evaluated and saved, or None.
        augment: ``none``, ``cifar`` (flip, shift by up to 4 pixels) or ``imagenet`` (random resized crop, flip).
        precision: ``32-true``, ``bf16-mixed`` or ``16-mixed``.
        holdout: Held-out training inputs, on which every epoch is evaluated; 0 for none.
        votes: Noisy copies of each of them.
        radius: The radius at which they are certified; by default the noise's standard deviation, in ℓ0 one pixel.
        seed: Seed of weights, order and noise.
        data_dependent_sigma: The search for a noise scale of each training input; None for that of the noise.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    epochs: int = Field(20, ge=1)
    batch_size: int = Field(256, ge=1)
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    rate: float = Field(0.05, gt=0)
    schedule: Literal["constant", "step", "cosine", "one-cycle"] = "one-cycle"
    milestones: tuple[int, ...] = ()
    rise: float = Field(0.3, ge=0, lt=1)
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = True
    weight_decay: float = Field(1e-4, ge=0)
    clip: float | None = Field(None, gt=0)
    ema: float | None = Field(None, gt=0, lt=1)
    augment: Literal["none", "cifar", "imagenet"] = "none"
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    holdout: int = Field(500, ge=0)
    votes: int = Field(100, ge=1)
    radius: float | None = Field(None, gt=0)
    seed: int = Field(0, ge=0)
    data_dependent_sigma: DataDependentSigma | None = None

    @model_validator(mode="after")
    def _usual_rate(self) -> TrainingSettings:
        if self.optimizer != "sgd" and "rate" not in self.model_fields_set:
            object.__setattr__(self, "rate", 0.001)  # the fields are frozen
        return self

    @model_validator(mode="after")
    def _milestones_fit(self) -> TrainingSettings:
        if list(self.milestones) != sorted(set(self.milestones)) or any(m < 1 for m in self.milestones):
            raise ValueError(f"milestones must be epochs in increasing order, got {list(self.milestones)}")
        if self.optimizer == "sgd" and self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self

    def build_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimiser of these parameters."""
        common: dict[str, Any] = {"lr": self.rate, "weight_decay": self.weight_decay}
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, momentum=self.momentum, nesterov=self.nesterov, **common)
        kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        return kinds[self.optimizer](parameters, **common)

    def rate_at(self, epoch: float) -> float:
        """Return the learning rate after this many epochs."""
        return self.rate * self.share_at(epoch)

    def share_at(self, epoch: float) -> float:
        """Return the learning rate after this many epochs as a share of the largest."""
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "step":
            return float(0.1 ** sum(epoch >= milestone for milestone in self.milestones))
        at = epoch / self.epochs
        if at < self._rise:
            return _between(1 / 25, 1.0, at / self._rise)
        return _between(1.0, 0.0, (at - self._rise) / (1 - self._rise))

    def rate_dropped(self, epoch: float) -> bool:
        """Whether the rate has been lowered: after the first milestone, or to a tenth on the way down."""
        if self.schedule == "step":
            return bool(self.milestones) and epoch >= self.milestones[0]
        return epoch / self.epochs >= self._rise and self.share_at(epoch) <= 0.1

    @property
    def _rise(self) -> float:
        return self.rise if self.schedule == "one-cycle" else 0.0


def changed_settings(settings: TrainingSettings, changes: Mapping[str, Any]) -> TrainingSettings:
    """Return the settings with some changed.

    Raises:
        UsageError: A setting is unknown or invalid.
    """
    if not changes:
        return settings
    known = TrainingSettings.model_fields
    for name in changes:
        if name not in known:
            raise unknown_name("setting", name, known)
    before = {name: getattr(settings, name) for name in settings.model_fields_set}
    try:
        return type(settings)(**{**before, **changes})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{where and where + ': '}{first['msg'].removeprefix('Value error, ')}.") from error


def _between(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2


class SoftLabels(BaseModel):
    """The soft labels of CAT-RS: vote shares of another model.

    Attributes:
        recipe: The recipe of that model, which is trained if it is missing.
        sigma: The Gaussian noise of the votes.
        n: Votes for each input.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    recipe: str
    sigma: float = Field(0.25, gt=0)
    n: int = Field(10_000, ge=1)


class Recipe(TrainingSettings):
    """A complete training: the model, the data, the noise, the method and the settings of the loop.

    Attributes:
        source: The origin of the settings, such as a paper.
        dataset: A name in ``smoothcert.data.DATASETS``, a path, or another specifier of ``smoothcert.data.load``.
        model: A name in ``smoothcert.models.MODELS``, or ``package.module:factory`` or ``file.py:factory`` with
            arguments as ``,name=value``; such code is imported when the training starts.
        normalize: The name of a normalisation preset, or None.
        noise: The name of the noise and its settings.
        method: The name of the method and its settings.
        soft_labels: The soft labels, for a method that needs them.
        start: The recipe of the model with the initial weights, which is trained if it is missing; None for new ones.
    """

    name: str = Field(min_length=1)
    source: str = ""
    dataset: str
    model: str
    normalize: str | None = None
    noise: dict[str, Any]
    method: dict[str, Any]
    soft_labels: SoftLabels | None = None
    start: str | None = Field(None, min_length=1)

    @field_validator("method", "noise")
    @classmethod
    def _can_be_built(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        (method_from_config if info.field_name == "method" else noise_from_config)(value)
        return value

    @model_validator(mode="after")
    def _parts_match(self) -> Recipe:
        if self.build_method().needs_soft_labels and self.soft_labels is None:
            raise ValueError(f"the method {self.method['name']} needs soft_labels: name the recipe of their model")
        if self.data_dependent_sigma is not None:
            self.data_dependent_sigma.start(self.build_noise())
        return self

    def build_method(self) -> Method:
        """Return the method."""
        return method_from_config(self.method)

    def build_noise(self) -> Noise:
        """Return the noise."""
        return noise_from_config(self.noise)


def method_from_config(config: Mapping[str, Any]) -> Method:
    """Return the method with this name and these settings."""
    values = dict(config)
    name = str(values.pop("name", ""))
    if name not in METHODS:
        raise METHODS.unknown(name)
    try:
        return METHODS[name](**values)
    except TypeError as error:
        raise UsageError(f"a setting of {name} is invalid: {error}.") from error
