"""The training loop, for one or several devices."""

from __future__ import annotations

import copy
import csv
import hashlib
import math
import struct
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from smoothcert.certify import Smoothed
from smoothcert.classifiers.identity import code_origins
from smoothcert.evaluate import count_votes
from smoothcert.files import replacing
from smoothcert.models import CheckpointInfo, save_checkpoint
from smoothcert.noise import Noise
from smoothcert.progress import Bar
from smoothcert.sampling.runtimes import unprepared
from smoothcert.stats.binomial import lower_bound
from smoothcert.training.attacks import frozen
from smoothcert.training.methods import Method, State
from smoothcert.training.resume import Progress, Trained, load_progress, packed, save_progress
from smoothcert.training.settings import TrainingSettings, changed_settings, method_from_config
from smoothcert.training.sigma import SIGMAS, InputSigmas, save_sigmas
from smoothcert.training.sources import Batch, Source, TrainingData, flip_and_shift
from smoothcert.types import SmoothcertError, StrPath, UsageError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

BEST, LAST, HISTORY = "best.safetensors", "last.safetensors", "history.csv"
_ALPHA = 0.001  # of the certified accuracy on held-out inputs
_BATCH = {"cpu": 200, "cuda": 2000}
_CHECKED = 10  # inputs that are checked before training

OptimizerSpec: TypeAlias = str | Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer]
"""A name in the settings, an optimiser of the model's parameters, or a function that makes one of parameters."""

SchedulerSpec: TypeAlias = LRScheduler | Callable[[Optimizer], LRScheduler]
"""A scheduler of the optimiser, or a function that makes one of it; the loop steps it after each epoch."""


def train(
    model: nn.Module,
    dataset: TrainingData,
    *,
    noise: Noise,
    method: Method | str = "gaussian",
    settings: TrainingSettings | None = None,
    optimizer: OptimizerSpec | None = None,
    scheduler: SchedulerSpec | None = None,
    folder: StrPath | None = None,
    info: CheckpointInfo | None = None,
    soft_labels: Tensor | None = None,
    fabric: Fabric | None = None,
    progress: bool = True,
    tensorboard: bool = False,
    **changes: Any,
) -> list[dict[str, float]]:
    """Train a model in place, and return the measurements of each epoch; in a folder, continue its training.

    Order, noise and crops of an epoch depend only on the seed and the number of the epoch, not on interruptions or on
    the number of processes.

    Args:
        model: The classifier, any module from a batch of inputs to logits; in evaluation mode afterwards.
        dataset: The training data: a dataset with a length and (input, label) pairs by index, where inputs are tensors
            or arrays of floats, or PIL images; or a pair of all inputs and all labels.
        noise: The noise of the later certification.
        method: The training method, or its name in ``METHODS`` for its default settings.
        settings: The settings of the loop; all of them can be passed as keywords, as ``epochs=5``.
        optimizer: A name in the settings, an optimiser of the model's parameters, or a function that makes one of
            parameters. The schedule multiplies its learning rates.
        scheduler: A scheduler of PyTorch for the optimiser, or a function that makes one of it, in place of the
            schedule. It is stepped after each epoch, ``ReduceLROnPlateau`` with the mean loss.
        folder: The folder of checkpoints and logs; by default nothing is written.
        info: The metadata of the checkpoints; by default they record the model's class.
        soft_labels: A distribution over classes for each training input, for a method that needs it.
        fabric: Devices and processes, launched; one device by default.
        progress: Whether to show a progress bar on stderr.
        tensorboard: Whether to write TensorBoard logs as well.
        **changes: Settings by name, as in :class:`TrainingSettings`.

    Raises:
        UsageError: If there are no inputs to train on, an argument is invalid, or the folder holds another training.
        SmoothcertError: If the loss is not finite.

    Example:
        >>> from smoothcert import Gaussian, data, models
        >>> digits, model = data.load("digits", split="train"), models.build("digits-cnn")
        >>> history = train(model, digits, noise=Gaussian(0.25), epochs=1, holdout=0, progress=False)
        >>> history[0]["loss"] < 2.4
        True
    """
    dtype = _check_arguments(model, noise, method)
    if isinstance(method, str):
        method = method_from_config({"name": method})
    if isinstance(optimizer, str):
        changes["optimizer"], optimizer = optimizer, None
    _check_unused(changes, optimizer, scheduler)
    settings = changed_settings(settings or TrainingSettings(), changes)
    fabric = fabric or make_fabric(settings.precision)
    source = Source(dataset, fabric.device, crop=settings.augment == "imagenet", dtype=dtype)
    classes, shape = _checked(model, source, noise, settings, getattr(dataset, "num_classes", None), fabric)
    if folder is not None and info is None:
        training = {
            "method": {"name": method.name, **asdict(method)},
            "settings": settings.model_dump(mode="json", include=set(TrainingSettings.model_fields)),
        }
        info = CheckpointInfo.of_module(
            model, num_classes=classes, input_shape=shape, noise=noise.config(), extra={"training": training}
        )
    return run_training(
        model,
        source,
        noise,
        method,
        settings,
        optimizer=optimizer,
        scheduler=scheduler,
        folder=folder,
        info=info,
        soft_labels=soft_labels,
        fabric=fabric,
        progress=progress,
        tensorboard=tensorboard,
    )


def run_training(
    model: nn.Module,
    source: Source,
    noise: Noise,
    method: Method,
    settings: TrainingSettings,
    *,
    fabric: Fabric,
    optimizer: Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
    scheduler: SchedulerSpec | None = None,
    folder: StrPath | None = None,
    info: CheckpointInfo | None = None,
    soft_labels: Tensor | None = None,
    progress: bool = True,
    tensorboard: bool = False,
) -> list[dict[str, float]]:
    """Run the loop for any module that the method can train; arguments and errors are those of :func:`train`."""
    method.check(noise)
    if folder is not None and info is None:
        raise UsageError("training in a folder needs info=CheckpointInfo.of(…), the metadata of the checkpoints.")
    if len(source) <= settings.holdout:
        raise UsageError(
            f"there are {len(source)} training inputs, and holdout={settings.holdout} leaves none; set holdout to a "
            "smaller number, or 0."
        )
    if method.needs_soft_labels and (soft_labels is None or len(soft_labels) != len(source)):
        raise UsageError(f"{method.name} needs a soft label for each of the {len(source)} training inputs.")
    training = _Training(model, source, noise, method, settings, fabric, soft_labels, optimizer, scheduler)
    keeper = None if folder is None or info is None else _Keeper(training, Path(folder), info)
    return training.run(keeper, _Display(settings.epochs, shown=progress and fabric.is_global_zero), tensorboard)


def _check_arguments(model: Any, noise: Any, method: Any) -> torch.dtype:
    """Refuse what cannot be trained, and return the type of the weights."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"only a torch.nn.Module can be trained, not a {type(model).__name__}.")
    weights = list(model.parameters())
    if not any(weight.requires_grad for weight in weights):
        raise UsageError("no weight of the model can be trained; call model.requires_grad_(True) first.")
    kinds = {weight.dtype for weight in weights if weight.is_floating_point()}
    if kinds not in ({torch.float32}, {torch.float64}):
        listed = ", ".join(sorted(map(str, kinds)))
        raise UsageError(
            f"the weights of the model have the type {listed or 'unknown'}; convert it by model.float(), and set "
            "precision=bf16-mixed for faster training."
        )
    if not isinstance(noise, Noise):
        raise UsageError(f"noise must be a noise such as Gaussian(0.25), got {noise!r:.60}.")
    if isinstance(method, type) and issubclass(method, Method):
        raise UsageError(f"method is the class {method.__name__}; make a method of it, as {method.__name__}().")
    if not isinstance(method, Method | str):
        raise UsageError(f"method must be a training method or its name, such as 'consistency', got {method!r:.60}.")
    return next(iter(kinds))


def _check_unused(changes: Mapping[str, Any], optimizer: object, scheduler: object) -> None:
    """Refuse settings that an optimiser or a scheduler replaces."""
    given = {
        "optimizer": (optimizer, ("rate", "momentum", "nesterov", "weight_decay")),
        "scheduler": (scheduler, ("schedule", "milestones", "rise")),
    }
    for what, (found, replaced) in given.items():
        unused = [name for name in replaced if name in changes]
        if found is not None and unused:
            raise UsageError(f"{', '.join(unused)} is not used with your own {what}; set it there, or leave it out.")


def _checked(
    model: nn.Module,
    source: Source,
    noise: Noise,
    settings: TrainingSettings,
    num_classes: int | None,
    fabric: Fabric,
) -> tuple[int, tuple[int, ...]]:
    """Run some inputs, and return the number of classes and the shape of an input."""
    if len(source) == 0:
        raise UsageError("there are no inputs to train on.")
    x, _ = next(iter(source.batches([torch.arange(min(_CHECKED, len(source)))], seed=0)))
    for one in x:
        noise.check(one)
    shape = tuple(x.shape[1:])
    if settings.augment != "none" and len(shape) != 3:
        raise UsageError(
            f"augment={settings.augment} is for images (channels, height, width), but inputs have the shape {shape}; "
            "set augment=none."
        )
    if settings.augment == "imagenet" and not source.is_folder:
        raise UsageError("augment=imagenet is for image folders; use cifar or none, or transform the inputs yourself.")
    fabric.to_device(model)
    try:
        with frozen(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            logits: Any = model(x.clone())
    except Exception as error:  # the user's code may raise anything
        raise UsageError(
            f"the model cannot classify inputs of shape {shape}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(x) or logits.shape[1] < 2:
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise UsageError(f"the model must return logits of shape ({len(x)}, classes) for {len(x)} inputs, not {found}.")
    classes = logits.shape[1]
    if num_classes is not None and num_classes != classes:
        raise UsageError(
            f"the model has {classes} classes and the dataset {num_classes}; change the number of outputs of the model."
        )
    source.check_labels(classes)
    if bool((logits >= 0).all()) and bool(((logits.sum(dim=1) - 1).abs() < 1e-4).all()):
        warnings.warn("the model returns probabilities, but training needs logits; remove its softmax.", stacklevel=3)
    return classes, shape


def make_fabric(precision: str = "32-true", device: str = "auto", processes: int = 1, nodes: int = 1) -> Fabric:
    """Return the devices (``cpu``, ``cuda`` or ``auto``) to train on; with several processes, launch it before use.

    Each of the processes of a node uses one device.
    """
    try:
        from lightning_fabric import Fabric  # slow to import
    except ImportError as error:
        raise UsageError('training needs lightning-fabric; pip install "smoothcert[train]".') from error

    if precision == "16-mixed" and (device == "cpu" or not torch.cuda.is_available()):
        raise UsageError("precision 16-mixed needs a CUDA device; use bf16-mixed or 32-true.")
    options: dict[str, Any] = {"precision": precision, "strategy": "ddp" if processes * nodes > 1 else "auto"}
    try:
        return Fabric(accelerator=device, devices=processes, num_nodes=nodes, **options)
    except (ValueError, RuntimeError) as error:
        raise UsageError(f"cannot train on {processes} device(s) of kind {device!r}: {error}") from error


@contextmanager
def _no_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero: MACER, whose saturated softmax has such gradients, trains twice as fast."""
    before = bool(torch.tensor([1e-40]).mul(0.5))
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(not before)


@dataclass
class _Training:
    model: nn.Module
    source: Source
    noise: Noise
    method: Method
    settings: TrainingSettings
    fabric: Fabric
    soft_labels: Tensor | None
    given_optimizer: Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer] | None = None
    given_scheduler: SchedulerSpec | None = None

    def __post_init__(self) -> None:
        settings = self.settings
        self.fabric.to_device(self.model)
        if any(weight.ndim == 4 for weight in self.model.parameters()):
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.soft_labels is not None:
            self.soft_labels = self.soft_labels.to(self.fabric.device)
        self.bare_optimizer = self._optimizer()
        self.scheduler = self._scheduler()
        self._rates = [group["lr"] for group in self.bare_optimizer.param_groups]
        self.optimizer: Any = self.fabric.setup_optimizers(self.bare_optimizer)
        self.ema = copy.deepcopy(self.model).requires_grad_(False) if settings.ema is not None else None
        kept_out = torch.arange(settings.holdout) * len(self.source) // max(settings.holdout, 1)
        self.held = next(self.source.batches([kept_out], settings.seed)) if settings.holdout else None
        mask = torch.ones(len(self.source), dtype=torch.bool)
        mask[kept_out] = False
        self.used = mask.nonzero()[:, 0]
        self.sigmas = None
        if settings.data_dependent_sigma is not None:
            place = (len(self.source), settings.seed, self.fabric.device)
            self.sigmas = InputSigmas(settings.data_dependent_sigma, self.noise, *place)

    def _optimizer(self) -> Optimizer:
        given = self.given_optimizer
        if given is None:
            return self.settings.build_optimizer(self.model.parameters())
        made = given if isinstance(given, Optimizer) else given(self.model.parameters())
        if not isinstance(made, Optimizer):
            raise UsageError(f"optimizer must be or make a torch.optim.Optimizer, got a {type(made).__name__}.")
        own = {id(weight) for weight in self.model.parameters()}
        if any(id(weight) not in own for group in made.param_groups for weight in group["params"]):
            raise UsageError("the optimizer has parameters of another model; make it of model.parameters().")
        return made

    def _scheduler(self) -> LRScheduler | None:
        given = self.given_scheduler
        if given is None:
            return None
        made = given if isinstance(given, LRScheduler) else given(self.bare_optimizer)
        if not isinstance(made, LRScheduler) or getattr(made, "optimizer", None) is not self.bare_optimizer:
            raise UsageError(
                "scheduler must be a scheduler of torch.optim of the optimizer that is passed too, or a function that "
                "makes one of an optimizer."
            )
        return made

    def run(self, keeper: _Keeper | None, shown: _Display, tensorboard: bool) -> list[dict[str, float]]:
        progress = keeper.resume(tensorboard) if keeper else Progress()
        for row in progress.history[-1:]:
            shown.show(progress.epoch, row.get("loss", math.nan), row)
        with shown, _no_denormals():
            for epoch in range(progress.epoch, self.settings.epochs):
                begin = time.perf_counter()
                rate = self._set_rates(epoch)
                rates = [row["rate"] for row in progress.history]
                self._dropped = self.scheduler is not None and bool(rates) and rate <= 0.1 * max(rates)
                loss = self._epoch(epoch, shown, keeper)
                if isinstance(self.scheduler, ReduceLROnPlateau):
                    self.scheduler.step(loss)
                elif self.scheduler is not None:
                    self.scheduler.step()
                row = {"epoch": epoch + 1, "loss": loss, "rate": rate, **self._judge(epoch)}
                if self.sigmas is not None:
                    row["sigma"] = float(self.sigmas.values[self.used].mean())
                row["seconds"] = time.perf_counter() - begin
                progress.history.append(row)
                progress.epoch = epoch + 1
                if keeper and self.fabric.is_global_zero:
                    keeper.keep(progress)
                self.fabric.barrier()
                shown.show(epoch + 1, loss, row)
        if self.scheduler is None:
            for group, rate in zip(self.bare_optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate  # an optimiser of the caller can train again
        if self.ema is not None:
            self.model.load_state_dict(self.ema.state_dict())
        self.model.eval()
        return progress.history

    def _set_rates(self, epoch: float) -> float:
        """Apply the schedule, if there is no scheduler, and return the first learning rate."""
        groups = self.bare_optimizer.param_groups
        if self.scheduler is None:
            for group, rate in zip(groups, self._rates, strict=True):
                group["lr"] = rate * self.settings.share_at(epoch)
        return float(groups[0]["lr"])

    def _epoch(self, epoch: int, shown: _Display, keeper: _Keeper | None) -> float:
        """Make one pass over the data and return the mean loss."""
        seed = _mixed(self.settings.seed, epoch)
        order = self.used[torch.randperm(len(self.used), generator=torch.Generator().manual_seed(seed))]
        chunks = [
            chunk
            for batch in torch.split(order, self.settings.batch_size)
            for chunk in torch.chunk(batch, min(self.method.copies, len(batch)))
        ]
        if len(chunks) > 1 and len(chunks[-1]) == self.method.copies == 1:  # batch normalisation needs two
            chunks[-2:] = [torch.cat(chunks[-2:])]
        shares = [self._share(chunk) for chunk in chunks]
        parts = [part for part, _, _ in shares]
        generator = torch.Generator(device=self.fabric.device).manual_seed(seed)
        self.model.train()
        total = torch.zeros((), dtype=torch.float64, device=self.fabric.device)
        devices = [self.fabric.device] if self.fabric.device.type == "cuda" else []
        batches = zip(self.source.batches(parts, seed), chunks, shares, strict=True)
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)  # for models that draw random numbers, such as dropout
            for step, (batch, chunk, (part, first, weight)) in enumerate(batches):
                at = epoch + step / len(chunks)
                state = State(
                    generator=generator,
                    epoch=at,
                    rate_dropped=self._dropped if self.scheduler is not None else self.settings.rate_dropped(at),
                    soft_labels=None if self.soft_labels is None else self.soft_labels[part.to(self.fabric.device)],
                    place=(first, len(chunk)),
                )
                loss = self._step(batch, state, weight, part)
                if not math.isfinite(loss):
                    kept = f"the checkpoint of epoch {epoch} is kept in '{keeper.folder}'" if keeper and epoch else None
                    raise SmoothcertError(
                        f"the loss became {loss} in epoch {epoch + 1}, step {step + 1} of {len(chunks)}, at rate "
                        f"{self._set_rates(at):.3g}; {kept or 'nothing is kept'}. Lower the rate or set clip."
                    )
                total += loss * len(chunk)
                shown.show(epoch + (step + 1) / len(chunks), loss)
        if self.sigmas is not None:
            self.sigmas.exchange(self.fabric, parts)
        return float(total) / len(order)

    def _share(self, chunk: Tensor) -> tuple[Tensor, int, float]:
        """Return the part of a batch for this process, the position of its first row, and the weight of its loss."""
        world, rank = self.fabric.world_size, self.fabric.global_rank
        if len(chunk) < world:  # every process uses the whole batch
            return chunk, 0, 1.0
        parts = torch.tensor_split(chunk, world)
        return parts[rank], sum(map(len, parts[:rank])), len(parts[rank]) * world / len(chunk)

    def _step(self, batch: Batch, state: State, weight: float, rows: Tensor) -> float:
        x, y = batch
        self._set_rates(state.epoch)
        if self.settings.augment == "cifar":
            x = flip_and_shift(x, state.uniform(x, 3))
        self.optimizer.zero_grad(set_to_none=True)
        with self.fabric.autocast():
            if self.sigmas is not None:
                state = replace(state, sigma=self.sigmas.update(self.model, x, rows, int(state.epoch)))
            try:
                loss = weight * self.method(self.model, x, y, self.noise, state)
            except ValueError as error:
                if "more than 1 value per channel" in str(error):
                    raise UsageError("batch normalisation needs several inputs; set a larger batch_size.") from error
                raise
        self.fabric.backward(loss)
        value = self._average(loss.detach())
        if (clip := self.settings.clip) is not None:
            self.fabric.clip_gradients(self.model, self.optimizer, max_norm=clip, error_if_nonfinite=False)
        if math.isfinite(value):
            self.optimizer.step()
            self._update_ema()
        return value

    def _average(self, loss: Tensor) -> float:
        """Average the gradients and the loss over all processes in one message."""
        if self.fabric.world_size == 1:
            return float(loss)
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        flat = torch.cat([loss.reshape(1), *(gradient.reshape(-1) for gradient in gradients)])
        sizes = [1, *(gradient.numel() for gradient in gradients)]
        mean, *parts = torch.split(self._mean_over_processes(flat), sizes)
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.reshape(gradient.shape))
        return float(mean)

    def _mean_over_processes(self, values: Tensor) -> Tensor:
        mean = self.fabric.all_reduce(values, reduce_op="mean")
        assert isinstance(mean, Tensor)
        return mean

    @torch.no_grad()
    def _update_ema(self) -> None:
        if self.ema is None or self.settings.ema is None:
            return
        for mean, now in zip(self.ema.state_dict().values(), self.model.state_dict().values(), strict=True):
            if mean.is_floating_point():
                mean.lerp_(now, 1 - self.settings.ema)
            else:
                mean.copy_(now)

    def _judge(self, epoch: int) -> dict[str, float]:
        """Estimate accuracy and certified accuracy on held-out inputs from few votes, the latter usually too low."""
        for buffer in self.model.buffers() if self.fabric.world_size > 1 else ():
            if buffer.is_floating_point():
                buffer.copy_(self._mean_over_processes(buffer))
        if self.held is None:
            return {}
        x, y, votes = self.held[0], self.held[1].tolist(), self.settings.votes
        runtime = unprepared(self.kept_model, _BATCH.get(x.device.type, 200))
        smoothed = Smoothed(self.kept_model, self.noise, input_range=None, runtime=runtime)
        seed = _mixed(self.settings.seed, epoch)
        counts = count_votes(smoothed, list(zip(x, y, strict=True)), votes, seed=seed, progress=False)
        radius = self.settings.radius or self.noise.usual_radius
        threshold = float(self.noise.threshold(radius, dimension=x[0].numel()))
        proved = lower_bound(counts[np.arange(len(y)), y], votes, _ALPHA) > threshold
        return {"accuracy": float(np.mean(counts.argmax(axis=1) == y)), "certified": float(np.mean(proved))}

    @property
    def kept_model(self) -> nn.Module:
        """The model as it is evaluated and saved."""
        return self.model if self.ema is None else self.ema

    def identity(self, info: CheckpointInfo) -> dict[str, Any]:
        """Return the settings that must not change when the training of a folder is continued."""
        settings = self.settings.model_dump(mode="json", include=set(TrainingSettings.model_fields))
        if self.sigmas is None:  # folders of earlier versions do not have this setting
            del settings["data_dependent_sigma"]
        if start := getattr(self.settings, "start", None):
            settings["start"] = start
        groups = [
            {name: value for name, value in group.items() if name != "params"}
            for group in self.bare_optimizer.param_groups
        ]
        if self.given_optimizer is not None:
            settings["optimizer"] = [type(self.bare_optimizer).__name__, packed(groups, "optimizer", {})]
        if self.scheduler is not None:
            state = packed(self.scheduler.state_dict(), "scheduler", {})
            settings["schedule"] = [type(self.scheduler).__name__, state]
        plugins = code_origins(self.method, self.noise)
        return {
            **settings,
            "method": {"name": self.method.name, **asdict(self.method)},
            "noise": self.noise.config(),
            "architecture": info.architecture,
            "inputs": len(self.source),
            "dataset": self.source.name,
            **({"plugins": plugins} if plugins else {}),
        }


class _Display(Bar):
    """One bar over all epochs on stderr, with the latest measurements."""

    def __init__(self, epochs: int, *, shown: bool) -> None:
        super().__init__(
            TextColumn("train"),
            BarColumn(bar_width=12),
            TextColumn("{task.fields[epoch]}/{task.total:.0f}: {task.fields[text]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            shown=shown,
        )
        self._training = self.add_task("train", total=epochs, epoch=0, text="")
        self._measured = ""

    def show(self, epochs: float, loss: float, row: Mapping[str, float] | None = None) -> None:
        """Show the loss after this many epochs, and the measurements of a completed epoch."""
        if row is not None and "accuracy" in row:
            self._measured = f", accuracy {row['accuracy']:.1%}, certified {row['certified']:.1%}"
        if not self.disable:
            text = f"loss {loss:.3f}{self._measured}"
            self.update(self._training, completed=epochs, epoch=math.ceil(epochs), text=text)


class _Keeper:
    """Writes checkpoints and logs of a training to its folder."""

    def __init__(self, training: _Training, folder: Path, info: CheckpointInfo) -> None:
        self.folder, self._training, self._info = folder, training, info
        self._identity = training.identity(info)
        self._sigmas = None if training.sigmas is None else training.sigmas.values
        self._trained = Trained(training.model, training.bare_optimizer, training.ema, self._sigmas, training.scheduler)
        self._writer: Any = None

    def resume(self, tensorboard: bool) -> Progress:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SmoothcertError(f"the folder {self.folder} cannot be created ({error.strerror}).") from error
        progress = load_progress(self.folder, self._identity, self._trained)
        if progress.scaler:
            self._training.fabric.strategy.precision.load_state_dict(progress.scaler)
        if tensorboard and self._training.fabric.is_global_zero:
            try:
                from tensorboardX import SummaryWriter
            except ImportError as error:
                raise UsageError(
                    'TensorBoard logs are not installed; pip install "smoothcert[tensorboard]".'
                ) from error
            self._writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=progress.epoch + 1)
        return progress

    def keep(self, progress: Progress) -> None:
        training, row = self._training, progress.history[-1]
        measured: dict[str, Any] = {key: row[key] for key in ("accuracy", "certified") if key in row}
        score = measured.get("certified", 0.0) + 1e-3 * measured.get("accuracy", 0.0)
        seconds = round(sum(row["seconds"] for row in progress.history), 1)
        info = replace(self._info, extra={**self._info.extra, "epoch": progress.epoch, "seconds": seconds, **measured})
        save_checkpoint(self.folder / LAST, training.kept_model, info)
        if training.held is None or score > progress.best:
            progress.best = score
            save_checkpoint(self.folder / BEST, training.kept_model, info)
        if self._sigmas is not None:
            save_sigmas(self.folder / SIGMAS, self._sigmas)
        with replacing(self.folder / HISTORY) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(progress.history[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(progress.history)
        if self._writer is not None:
            for key in row.keys() - {"epoch"}:
                self._writer.add_scalar(key, row[key], progress.epoch)
            self._writer.flush()
        progress.scaler = dict(training.fabric.strategy.precision.state_dict())
        save_progress(self.folder, self._identity, progress, self._trained)


def _mixed(seed: int, epoch: int) -> int:
    return int.from_bytes(hashlib.blake2b(struct.pack("<QQ", seed, epoch), digest_size=4).digest(), "little")
