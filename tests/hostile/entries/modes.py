"""Models for which training and evaluation mode differ, left in the wrong one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hostile.entry import EDGE, SHAPE, Expect, entry, first, scores


class Normed(nn.Module):
    """A half-space behind a BatchNorm layer; in training mode every batch is normalised by its own statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)
        with torch.no_grad():
            self.norm.running_mean.copy_(torch.tensor([0.25, 0.4]))
            self.norm.running_var.copy_(torch.tensor([0.25, 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        spread = (0.25 + self.norm.eps) ** 0.5
        return scores(first(self.norm(x)) * spread + 0.25 - EDGE)


class Dropping(nn.Module):
    """A half-space behind dropout; in training mode half of the votes are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(self.drop(x)) - EDGE)


@entry(Expect.RIGHT, training=True)
class BatchNormLeftInTraining(Normed):
    """Somebody certifies right after training and forgets ``model.eval()``."""


@entry(Expect.RIGHT, training=None)
def submodule_left_in_training() -> nn.Module:
    """Somebody calls ``model.eval()`` and then fine-tunes the head, which puts one layer back into training mode."""
    model = nn.Sequential(nn.Identity(), Normed()).eval()
    model[1].norm.train()
    return model


@entry(Expect.RIGHT, training=None)
def evaluation_flag_only_at_the_top() -> nn.Module:
    """Somebody sets ``model.training = False`` instead of calling ``eval()``, which leaves the layers as they were."""
    model = Normed().train()
    model.training = False
    return model


@entry(Expect.RIGHT, training=True)
class DropoutLeftInTraining(Dropping):
    """Somebody certifies right after training a model with dropout."""


@entry(Expect.REFUSE)
class BatchNormWithoutRunningStatistics(nn.Module):
    """Somebody sets ``track_running_stats=False``, as many GAN and meta-learning codes do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(self.norm(x)) + 0.1)


@entry(Expect.REFUSE)
class FunctionalBatchNormInTraining(nn.Module):
    """Somebody writes ``F.batch_norm(…, training=True)`` while debugging and leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("var", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(F.batch_norm(x, self.mean, self.var, training=True)) + 0.1)


@entry(Expect.REFUSE)
class DropoutAlwaysOn(nn.Module):
    """Somebody writes ``F.dropout(x)`` and does not know that its default is ``training=True``."""

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(F.dropout(x, 0.5)) - EDGE)


@entry(Expect.REFUSE)
class MonteCarloDropout(nn.Module):
    """Somebody estimates uncertainty with dropout switched on in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        self.drop.train()
        return scores(first(self.drop(x)) - EDGE)


@entry(training=None)
class TrainIgnoresItsArgument(Normed):
    """Somebody overrides ``train`` to freeze layers and forgets the mode, so that ``eval()`` does nothing."""

    def train(self, mode: bool = True) -> TrainIgnoresItsArgument:
        super().train(True)
        return self


@entry()
class ModeOfItsOwn(nn.Module):
    """Somebody keeps the mode in ``self.is_train``, as ports from other frameworks do; ``eval()`` does not reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_train = True

    def forward(self, x: Tensor) -> Tensor:
        if self.is_train and len(x) > 1:
            x = x - x.mean(dim=0) + 0.9
        return scores(first(x) - EDGE)


@entry(Expect.REFUSE, training=None)
class LazyNotInitialised(nn.Module):
    """Somebody forgets to load the checkpoint: the lazy layer gets random weights at its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


@entry(Expect.RIGHT, training=True)
def lazy_initialised() -> nn.Module:
    """Somebody uses lazy layers as intended: initialised by a first batch, then trained."""
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(2))
    with torch.no_grad():
        model(torch.zeros(2, *SHAPE))
        model[1].weight.zero_()
        model[1].weight[:, 0] = torch.tensor([-1.0, 1.0])
        model[1].bias.copy_(torch.tensor([EDGE, -EDGE]))
    return model


class _Centred(nn.Module):
    """A linear layer without bias on centred inputs, so that scaling its weight changes no vote."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 2, bias=False)
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.weight[:, 0] = torch.tensor([-(0.5**0.5), 0.5**0.5])

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1) - EDGE) * 2**0.5


@entry(Expect.RIGHT, training=True)
def spectral_norm_left_in_training() -> nn.Module:
    """Somebody uses spectral normalisation, whose power iteration changes a buffer in every training-mode pass."""
    model = _Centred()
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        nn.utils.parametrizations.spectral_norm(model.linear)
        for _ in range(30):  # the power iteration has converged, as after training
            model(torch.zeros(1, *SHAPE))
    return model


@entry(training=True)
def weight_norm_by_hooks() -> nn.Module:
    """Somebody uses the old ``weight_norm``, which recomputes the weight in a hook and resists ``deepcopy``."""
    model = _Centred()
    nn.utils.weight_norm(model.linear)
    model(torch.zeros(1, *SHAPE))
    return model
