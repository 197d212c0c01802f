"""Train a denoiser for a fixed classifier (Salman et al., 2020), or a classifier for a fixed denoiser."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smoothcert.classifiers.denoised import Denoised, denoise
from smoothcert.classifiers.identity import identity_digest, model_identity
from smoothcert.data import ArrayDataset, Dataset
from smoothcert.evaluate import clean_decisions
from smoothcert.models import DENOISERS, CheckpointInfo
from smoothcert.noise import Noise
from smoothcert.training.attacks import frozen
from smoothcert.training.loop import make_fabric, run_training, train
from smoothcert.training.methods.base import Method, State, require
from smoothcert.training.settings import TrainingSettings
from smoothcert.training.sources import Source
from smoothcert.types import StrPath, unknown_name

if TYPE_CHECKING:
    from lightning_fabric import Fabric

OBJECTIVES = ("mse", "stability", "mse-then-stability")
"""Training objectives: the error of the image, the decision of the classifier, or one after the other."""


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
    folder: StrPath | None = None,
    info: CheckpointInfo | None = None,
    fabric: Fabric | None = None,
    progress: bool = True,
    tensorboard: bool = False,
) -> list[dict[str, float]]:
    """Train a denoiser in place; continue the training in the folder if there is one.

    With surrogates, or if the classifier is not a module, the classifier is a black box: it is called once for each
    training input without noise, and gradients come from the surrogates (Salman et al., 2020, §3.2). Every epoch is
    evaluated on held-out inputs through the classifier, or the first surrogate of a black box; without either, no
    inputs are held out. The weights of classifier and surrogates do not change.

    Args:
        classifier: The classifier: a module, or any callable from a batch to logits or votes.
        surrogates: Modules with the same classes, for a black-box classifier.
        objective: A name in ``OBJECTIVES``.
        mse_epochs: The epochs of ``mse-then-stability`` with the first objective; half of them by default.
        folder: The folder of checkpoints, logs and the classifier's decisions; by default nothing is written.

    Returns:
        The measurements of each epoch. The loss is the mean squared error divided by the noise's variance (1 for the
        identity), then the cross-entropy. All other arguments are those of :func:`smoothcert.training.train`.

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
    teachers = [*surrogates] or ([classifier] if isinstance(classifier, nn.Module) else [])
    first = _mse_epochs(objective, mse_epochs, settings.epochs)
    for surrogate in surrogates:
        kind = type(surrogate).__name__
        require(isinstance(surrogate, nn.Module), f"a surrogate must be a torch.nn.Module with gradients, got {kind}.")
    if first < settings.epochs:
        require(classifier is not None, f"the objective {objective} needs a classifier; pass one, or use mse.")
        require(
            bool(teachers),
            f"the objective {objective} needs gradients, and a black-box classifier has none; pass surrogates, or the "
            "classifier as a torch.nn.Module.",
        )
    if folder is not None:
        name, known = None if info is None else info.architecture, ", ".join(DENOISERS)
        require(name in DENOISERS, f"training in a folder needs info of a denoiser ({known}), got {name}.")
    fabric = fabric or make_fabric(settings.precision)
    dataset = dataset.arrays() if isinstance(dataset, ArrayDataset) else dataset
    source = Source(dataset, fabric.device)
    if not teachers:
        settings = settings.model_copy(update={"holdout": 0})
    with ExitStack() as stack:
        fabric.to_device(denoiser)
        for module in [*teachers, classifier]:
            if isinstance(module, nn.Module):
                stack.enter_context(frozen(fabric.to_device(module)))
        classes, shape = _checked(
            denoiser, teachers, source, dataset, evaluated=settings.holdout > 0, gradients=first < settings.epochs
        )
        decisions = None
        if surrogates and first < settings.epochs and fabric.is_global_zero:
            assert classifier is not None
            decisions = _decisions(classifier, dataset, classes, settings.batch_size, fabric.device, folder)
        decisions = fabric.broadcast(decisions)
        if info is not None:
            extra = {**info.extra, "kind": "denoiser", "objective": objective}
            info = replace(info, input_shape=shape, num_classes=classes, extra=extra)
        return run_training(
            Pupil(denoiser, teachers),
            source,
            noise,
            Denoising(mse_epochs=first, asked=decisions is not None, taught_by=_digest(teachers, decisions)),
            settings,
            folder=folder,
            info=info,
            soft_labels=decisions,
            fabric=fabric,
            progress=progress,
            tensorboard=tensorboard,
        )


def finetune(
    classifier: nn.Module,
    denoiser: nn.Module,
    dataset: Dataset | tuple[Tensor, Tensor],
    noise: Noise,
    *,
    method: Method | str = "gaussian",
    settings: TrainingSettings | None = None,
    folder: StrPath | None = None,
    info: CheckpointInfo | None = None,
    fabric: Fabric | None = None,
    progress: bool = True,
    tensorboard: bool = False,
) -> list[dict[str, float]]:
    """Train a classifier in place on denoised noisy copies; continue the training in the folder if there is one.

    The loss is that of the method for ``Denoised(classifier, denoiser)``, and held-out inputs are evaluated through it.
    The denoiser stays in evaluation mode and does not change. Checkpoints hold the classifier alone.

    Returns, raises and the other arguments are those of :func:`smoothcert.training.train`.

    Example:
        >>> from smoothcert import Gaussian, data, models
        >>> digits, model, blur = data.load("digits", split="train"), models.build("digits-cnn"), nn.AvgPool2d(3, 1, 1)
        >>> settings = TrainingSettings(epochs=1, holdout=0)
        >>> history = finetune(model, blur, digits, Gaussian(0.25), settings=settings, progress=False)
        >>> len(history)
        1
    """
    settings = settings or TrainingSettings()
    fabric = fabric or make_fabric(settings.precision)
    # A folder continues only a training with the same initial weights and the same denoiser.
    start = identity_digest(model_identity(Denoised(classifier, denoiser, frozen=False)))
    with frozen(fabric.to_device(denoiser)):
        hook = classifier.register_forward_pre_hook(_DenoiseFirst(denoiser))
        try:
            return train(
                classifier,
                dataset,
                noise=noise,
                method=method,
                settings=settings.model_copy(update={"start": start}),
                folder=folder,
                info=info,
                fabric=fabric,
                progress=progress,
                tensorboard=tensorboard,
            )
        finally:
            hook.remove()


@dataclass
class _DenoiseFirst:
    """A hook that denoises the inputs of a classifier; the denoiser is not a part of the classifier."""

    denoiser: nn.Module

    def __call__(self, classifier: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (denoise(self.denoiser, inputs[0]),)


@dataclass(frozen=True, kw_only=True)
class Denoising(Method):
    """The squared error of a denoised copy of each input, then the cross-entropy to its clean decision.

    Salman et al. (2020), §3.1: L_MSE = E‖D(x+δ) − x‖², here divided by the constant E‖δ‖² = d·scale², so that the same
    learning rate suits all sizes of image and noise; L_Stab = E CE(F(D(x+δ)), argmax F(x)). With several surrogates,
    each step draws one. It is not in ``METHODS``, because it does not train a classifier.

    Args:
        mse_epochs: The epochs with the first loss.
        asked: Whether the clean decisions are in ``State.soft_labels``; otherwise the teacher makes them.
        taught_by: A hash of the teachers and decisions, which must not change when a training is continued.
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


class Pupil(nn.Module):
    """A denoiser in training: only its weights change. Teachers return gradients, and the first one evaluates it."""

    def __init__(self, denoiser: nn.Module, teachers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.teachers = tuple(teachers)  # not submodules: nothing saves, averages or optimises them

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.teachers[0](denoise(self.denoiser, x))
        return logits

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.denoiser.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.denoiser.load_state_dict(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Pupil:
        return Pupil(copy.deepcopy(self.denoiser, memo), self.teachers)


def _decisions(
    classifier: Callable[[Tensor], Tensor],
    dataset: Dataset | tuple[Tensor, Tensor],
    classes: int,
    batch_size: int,
    device: torch.device,
    folder: StrPath | None,
) -> Tensor:
    """Return the decisions of a black-box classifier on the training inputs, and store them in the folder."""
    inputs = list(zip(*dataset, strict=True)) if isinstance(dataset, tuple) else dataset
    options: dict[str, Any] = {"num_classes": classes, "batch_size": batch_size, "device": device}
    if folder is None:
        return torch.from_numpy(clean_decisions(classifier, inputs, **options))
    folder = Path(folder)
    earlier, created = folder / "decisions.safetensors", not folder.exists()
    require(not earlier.exists(), f"'{earlier}' was written by an earlier version; delete it to classify again.")
    try:
        return torch.from_numpy(clean_decisions(classifier, inputs, folder=folder / "decisions", **options))
    finally:
        if created and not any(folder.iterdir()):
            folder.rmdir()  # there are no decisions


def _mse_epochs(objective: str, mse_epochs: int | None, epochs: int) -> int:
    """Return the number of epochs with the squared error."""
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
    evaluated: bool,
    gradients: bool,
) -> tuple[int, tuple[int, ...]]:
    """Run two inputs, and return the number of classes of the teachers (or of the data) and the shape of an input."""
    require(len(source) > 0, "there are no inputs to train on.")
    needed = int(dataset[1].max()) + 1 if isinstance(dataset, tuple) else dataset.num_classes
    x, _ = next(iter(source.batches([torch.arange(min(2, len(source)))], seed=0)))
    with frozen(denoiser), torch.no_grad():
        denoised = denoise(denoiser, x)
        shapes = [tuple(teacher(denoised).shape) for teacher in teachers]
    for shape in shapes:
        require(
            len(shape) == 2 and shape[0] == len(x),
            f"a classifier must return a row of logits for each of {len(x)} inputs, but returned shape {shape}.",
        )
    for teacher in teachers if gradients else ():
        require(
            teacher(denoised.clone().requires_grad_()).requires_grad,
            f"{type(teacher).__name__} returns logits without gradients; pass surrogates that have them.",
        )
    classes, *others = dict.fromkeys(shape[1] for shape in shapes) or [max(needed, 2)]
    listed = " and ".join(map(str, [classes, *others]))
    require(not others, f"the surrogates have {listed} classes; use those with the classifier's.")
    require(
        not evaluated or classes >= needed,
        f"the classifier has {classes} classes, but the labels {needed}; set holdout=0 to train without evaluation.",
    )
    return classes, tuple(x.shape[1:])


def _digest(teachers: Sequence[nn.Module], decisions: Tensor | None) -> str:
    digest = hashlib.sha256()
    tensors = [tensor for teacher in teachers for tensor in teacher.state_dict().values()]
    for tensor in tensors if decisions is None else [*tensors, decisions]:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16] if tensors else ""
