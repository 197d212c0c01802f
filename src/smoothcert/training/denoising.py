"""Training a denoiser for a classifier that stays as it is (Salman, Sun, Yang, Kapoor and Kolter, 2020)."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.classifiers.denoised import denoise
from smoothcert.data import ArrayDataset, Dataset
from smoothcert.models import DENOISERS, CheckpointInfo
from smoothcert.noise import Noise
from smoothcert.training.attacks import frozen
from smoothcert.training.decisions import clean_decisions
from smoothcert.training.loop import make_fabric, train
from smoothcert.training.methods.base import Method, Passes, State, require
from smoothcert.training.settings import TrainingSettings
from smoothcert.training.sources import Source, source_of
from smoothcert.types import unknown_name

if TYPE_CHECKING:
    from lightning_fabric import Fabric

OBJECTIVES = ("mse", "stability", "mse-then-stability")
"""What a denoiser can be trained for: a small error in the image, the classifier's decision, or one after the other."""


def train_denoiser(
    denoiser: nn.Module,
    dataset: Dataset | tuple[Tensor, Tensor],
    noise: Noise,
    *,
    classifier: Callable[[Tensor], Tensor] | None = None,
    surrogates: Sequence[nn.Module] = (),
    objective: str = "mse",
    mse_epochs: int | None = None,
    settings: TrainingSettings | None = None,
    folder: str | os.PathLike[str] | None = None,
    info: CheckpointInfo | None = None,
    fabric: Fabric | None = None,
    progress: bool = True,
    tensorboard: bool = False,
) -> list[dict[str, float]]:
    """Train a denoiser in place with the one training loop; in a folder, continue what is there.

    With surrogates, or where the classifier is no module, the classifier is only asked: once about each training input
    without noise, and never by the loop. Its gradients are then those of the surrogates (Salman et al., 2020, §3.2).
    Every epoch is judged through the classifier, or the first surrogate where the classifier is only asked; without
    either no inputs are kept out. No weight of classifier or surrogates changes.

    Args:
        denoiser: The denoiser, from fresh or trained weights; left in evaluation mode.
        dataset: The training data, or a pair of all inputs and all labels.
        noise: The noise the classifier will be certified with.
        classifier: The classifier: a module, or any callable from a batch to logits or votes.
        surrogates: Modules with the same classes, for a classifier that can only be asked.
        objective: A name in ``OBJECTIVES``.
        mse_epochs: The epochs that ``mse-then-stability`` spends on the first; half of them by default.
        settings: How to train.
        folder: Where checkpoints, logs and the answers of the classifier go; nothing is written when not given.
        info: What the checkpoints say about the denoiser; needed with a folder.
        fabric: Devices and processes, launched; one device by default.
        progress: Whether to show a progress bar on stderr.
        tensorboard: Whether to write TensorBoard logs too.

    Returns:
        What was measured in each epoch. The loss is the mean squared error in units of the noise's variance (1 for a
        denoiser that does nothing), then the cross-entropy.

    Raises:
        UsageError: If the objective is unknown or lacks a classifier or surrogates, something does not fit, or the
            folder holds another training.
        SmoothcertError: If the loss is no longer a number, or the classifier's answers are none.

    Example:
        >>> from smoothcert import Gaussian, models
        >>> denoiser = models.build_denoiser("dncnn-small")
        >>> x, y = torch.rand(64, 1, 1, 1).expand(64, 1, 8, 8), torch.zeros(64, dtype=torch.long)
        >>> settings = TrainingSettings(epochs=3, batch_size=16, rate=0.01)
        >>> history = train_denoiser(denoiser, (x, y), Gaussian(0.5), settings=settings, progress=False)
        >>> history[-1]["loss"] < 1
        True
    """
    settings = settings or TrainingSettings()
    asked = bool(surrogates) or not isinstance(classifier, nn.Module)
    first = _mse_epochs(objective, mse_epochs, settings.epochs)
    for surrogate in surrogates:
        kind = type(surrogate).__name__
        require(isinstance(surrogate, nn.Module), f"a surrogate must be a torch.nn.Module with gradients, got {kind}.")
    if first < settings.epochs:
        require(classifier is not None, f"the objective {objective} needs a classifier; give one, or use mse.")
        require(
            bool(surrogates) or not asked,
            f"the objective {objective} needs gradients, and a classifier that can only be asked has none; give "
            "surrogates, or the classifier as a torch.nn.Module.",
        )
    if folder is not None:
        require(info is not None, "training in a folder needs info=CheckpointInfo.of(…), which the checkpoints carry.")
        assert info is not None
        name, known = info.architecture, ", ".join(DENOISERS)
        require(name in DENOISERS, f"info says {name}, which is no denoiser; use one of {known}.")
    fabric = fabric or make_fabric(settings.precision)
    dataset = dataset.arrays() if isinstance(dataset, ArrayDataset) else dataset
    source = source_of(dataset, fabric.device)
    teachers = [*surrogates] or ([classifier] if isinstance(classifier, nn.Module) else [])
    if not teachers:
        settings = settings.model_copy(update={"holdout": 0})
    with ExitStack() as stack:
        for module in [*teachers, classifier, denoiser]:
            if isinstance(module, nn.Module):
                fabric.to_device(module)
        for module in [*teachers, classifier]:
            if isinstance(module, nn.Module):
                stack.enter_context(frozen(module))
        classes = _checked(denoiser, teachers, source, dataset, judged=settings.holdout > 0)
        decisions = None
        if asked and first < settings.epochs and fabric.is_global_zero:
            place, size = None if folder is None else Path(folder), settings.batch_size
            assert classifier is not None
            decisions = clean_decisions(classifier, source, num_classes=classes, batch_size=size, folder=place)
        decisions = fabric.broadcast(decisions)
        method = Denoising(mse_epochs=first, asked=decisions is not None, taught_by=_digest(teachers, decisions))
        return train(
            Pupil(denoiser, teachers),
            dataset,
            noise,
            method,
            settings,
            folder=folder,
            info=None if info is None else _about(info, source, classes, objective),
            soft_labels=decisions,
            fabric=fabric,
            progress=progress,
            tensorboard=tensorboard,
        )


@dataclass(frozen=True, kw_only=True)
class Denoising(Method):
    """The squared error of a denoised copy of each input, then the cross-entropy to its clean decision.

    Salman et al. (2020), §3.1: L_MSE = E‖D(x+δ) − x‖², here divided by E‖δ‖² = d·scale², a constant, so that one
    learning rate serves all sizes of image and noise; L_Stab = E CE(F(D(x+δ)), argmax F(x)). With several surrogates
    one is drawn for each step. Not in ``METHODS``, because what it trains is no classifier.

    Args:
        mse_epochs: The epochs with the first loss.
        asked: Whether the clean decisions come as ``State.soft_labels``, or else from the teacher itself.
        taught_by: A hash of the teachers and decisions, which a training that is continued must share.
    """

    mse_epochs: int
    asked: bool = False
    taught_by: str = ""

    name: ClassVar[str] = "denoising"

    def loss(self, model: nn.Module, x: Tensor, y: Tensor, noise: Noise, state: State) -> Tensor:
        assert isinstance(model, Pupil)
        denoised = denoise(model.denoiser, state.noisy(noise, x)[0])
        if state.epoch < self.mse_epochs:
            return F.mse_loss(denoised, x) / noise.scale**2
        teacher = model.teachers[0]
        if len(model.teachers) > 1:
            drawn = torch.rand((), generator=state.generator, device=state.generator.device)
            teacher = model.teachers[int(drawn * len(model.teachers))]
        decisions = state.soft_labels
        if decisions is None:
            with torch.no_grad():
                decisions = teacher(x).argmax(dim=1)
        return F.cross_entropy(teacher(denoised), decisions)

    @property
    def needs_soft_labels(self) -> bool:
        return self.asked

    @property
    def passes(self) -> Passes:
        return Passes(train=1)


class Pupil(nn.Module):
    """A denoiser in training: its weights are the denoiser's alone, and its answers those of the first teacher.

    Args:
        denoiser: The denoiser.
        teachers: The classifiers that gradients go through; the first one judges.
    """

    def __init__(self, denoiser: nn.Module, teachers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.teachers = tuple(teachers)  # in a tuple they are no submodules: nothing saves, averages or optimises them

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.teachers[0](denoise(self.denoiser, x))
        return logits

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.denoiser.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.denoiser.load_state_dict(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Pupil:
        return Pupil(copy.deepcopy(self.denoiser, memo), self.teachers)


def _mse_epochs(objective: str, mse_epochs: int | None, epochs: int) -> int:
    """How many of the epochs are for the squared error."""
    if objective not in OBJECTIVES:
        raise unknown_name("objective", objective, OBJECTIVES)
    if objective != "mse-then-stability":
        require(mse_epochs is None, f"mse_epochs is for mse-then-stability, not for {objective}; leave it out.")
        return epochs if objective == "mse" else 0
    first = epochs // 2 if mse_epochs is None else mse_epochs
    require(0 < first < epochs, f"mse_epochs must leave epochs for both objectives, got {first} of {epochs}.")
    return first


def _checked(
    denoiser: nn.Module,
    teachers: Sequence[nn.Module],
    source: Source,
    dataset: Dataset | tuple[Tensor, Tensor],
    *,
    judged: bool,
) -> int:
    """The number of classes of all teachers (of the data without any), after a run of two inputs.

    Raises:
        UsageError: If the denoiser changes the shape, or the teachers' classes do not fit each other or the data.
    """
    require(len(source) > 0, "there are no inputs to train on.")
    needed = int(dataset[1].max()) + 1 if isinstance(dataset, tuple) else dataset.num_classes
    x, _ = next(iter(source.batches([torch.arange(min(2, len(source)))], seed=0)))
    with frozen(denoiser), torch.no_grad():
        denoised = denoise(denoiser, x)
        given = [tuple(teacher(denoised).shape) for teacher in teachers]
    for shape in given:
        require(
            len(shape) == 2 and shape[0] == len(x),
            f"a classifier must give a row of logits for each of {len(x)} inputs, but gave shape {shape}.",
        )
    counts: list[int] = list(dict.fromkeys(shape[1] for shape in given)) or [max(needed, 2)]
    require(
        len(counts) == 1,
        f"the surrogates have {' and '.join(map(str, counts))} classes; use those with the classifier's.",
    )
    require(
        not judged or counts[0] >= needed,
        f"the classifier has {counts[0]} classes, but the labels {needed}; set holdout=0 not to judge by them.",
    )
    return counts[0]


def _about(info: CheckpointInfo, source: Source, classes: int, objective: str) -> CheckpointInfo:
    """The metadata of the checkpoints: the size of images and the classes are those of the data."""
    x, _ = next(iter(source.batches([torch.zeros(1, dtype=torch.long)], seed=0)))
    _, channels, height, width = x.shape
    extra = {**info.extra, "kind": "denoiser", "objective": objective}
    return replace(info, input_shape=(channels, height, width), num_classes=classes, extra=extra)


def _digest(teachers: Sequence[nn.Module], decisions: Tensor | None) -> str:
    digest = hashlib.sha256()
    tensors = [tensor for teacher in teachers for tensor in teacher.state_dict().values()]
    for tensor in tensors if decisions is None else [*tensors, decisions]:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16] if tensors else ""
