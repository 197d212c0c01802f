"""Base classifiers made safe to certify: each is one fixed function of one row.

A certificate speaks of a fixed function that classifies one noisy copy at a time. A model is not that by itself: it
may be in training mode, hold state, be random, look at the other rows of its batch, or be changed while it is asked.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.classifiers.identity import (
    identity_digest,
    leads_outside,
    model_identity,
    modules_in,
    modules_reached,
    tensors_in,
)
from smoothcert.types import SmoothcertError, UsageError

Forward = Callable[[Tensor], Tensor]
"""Maps a batch of inputs to logits."""

COPIES = 40
"""Noisy copies on which a classifier is checked."""

COPIED_BYTES = 2**31
"""Weights up to this size are copied; larger ones are shared with the user's model, and checked after each answer."""

_WITH_MODES = (
    nn.modules.batchnorm._NormBase,
    nn.modules.dropout._DropoutNd,
    nn.RReLU,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
    nn.MultiheadAttention,
    nn.RNNBase,
)
_PROBES = 8
_REPEAT = 0.01  # part of the tolerance that the same batch twice may differ by; usually it does not differ at all
_SMALL_BATCHES = (1, 2, 3, 5, 8, 21)
_ONE_AT_A_TIME = threading.RLock()  # for everything that is not ours alone; threads may share what it writes


class Sealed:
    """A classifier as it is certified: a fixed function of one row.

    A module, or any object that can be copied, is copied in evaluation mode, so that whatever becomes of the user's
    object afterwards changes no answer. What cannot be copied, as a function with its closure, must be in evaluation
    mode already, runs in one thread at a time, and is checked again before each answer.

    Args:
        model: A module or any callable from a batch to logits.
        identity: Its identity, if it is known.

    Attributes:
        sealed_identity: What identifies the model (see ``model_identity``).
        digest: The same as one SHA-256.
        model: What is run.
        private: Whether several threads may run copies of it at once, and nobody else can change it.
        device: Where inputs must be.
        dtype: The type of input it takes: that of its first weight, float32 without any.

    Raises:
        UsageError: If it cannot be called, is not initialised, or uses a module in training mode that cannot be copied.
    """

    def __init__(self, model: Forward, identity: Mapping[str, Any] | None = None) -> None:
        if not callable(model):
            raise UsageError(f"the model must be callable on a batch of inputs, got {type(model).__name__}.")
        _refuse_uninitialised(model)
        self.sealed_identity = dict(identity or model_identity(model))
        self.digest = identity_digest(self.sealed_identity)
        self._given = model
        own = _own_copy(model)
        self.model: Forward = model if own is None else own
        self.private = own is not None and not _shares_weights(own, model) and not leads_outside(own)
        if own is not None:
            for module in modules_in(own):
                module.training = False
        outside = [*modules_reached(self.model), *(modules_in(model) if own is None else ())]
        in_training = next((module for module in outside if module.training and depends_on_mode(module)), None)
        if in_training is not None:
            raise UsageError(
                f"the model uses a {type(in_training).__name__} in training mode that cannot be copied with it; pass "
                "the module itself instead of a function around it, or call its eval() first."
            )
        if self.private:
            for weight in _weights(own):
                weight.requires_grad_(False)
        self.device, self.dtype = takes(self.model)
        types = {weight.dtype for weight in _weights(self.model) if weight.is_floating_point()}
        self._eps = max(torch.finfo(each).eps for each in types | {self.dtype})
        self._local = PerThread(self.model)
        self._known: Reference | None = None

    def __call__(self, batch: Tensor) -> Tensor:
        """The logits of each row; the batch is left as it is."""
        return self.run(batch.clone())

    def run(self, batch: Tensor) -> Tensor:
        """The logits of each row; the batch may be overwritten."""
        with self.in_turn():
            return self._logits(self._local.model if self.private else self.model, batch)

    def part(self, module: Forward) -> Sealed:
        """A part of the classifier as a classifier, such as the first members of a consensus."""
        part = Sealed(module, self.sealed_identity)
        part.private &= self.private
        return part

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """While it runs: nobody else's turn, unless every thread has a copy."""
        if self.private:
            yield
        else:
            with _ONE_AT_A_TIME:
                yield

    @property
    def module(self) -> nn.Module | None:
        """The module to build other runtimes from; None where only :meth:`run` is safe."""
        return self.model if self.private and isinstance(self.model, nn.Module) else None

    def known(self, x: Tensor) -> Reference | None:
        """What :meth:`verify` found for inputs of this shape and type, if it was asked."""
        known = self._known
        same = known is not None and known.copies.shape[1:] == x.shape and known.copies.dtype == x.dtype
        return known if same else None

    def verify(self, copies: Tensor) -> Reference:
        """Refuse a classifier that is not a fixed function of one row, as far as noisy copies can show.

        The copies are classified together, again, in another order, and in batches of one to twenty-one.

        Args:
            copies: Noisy copies of an input, ``COPIES`` of them.

        Returns:
            Their logits.

        Raises:
            UsageError: If logits depend on anything but the row, or are not logits.
        """
        with torch.inference_mode(), _own_randomness(copies.device), _ONE_AT_A_TIME:
            before = model_identity(self.model) if self.private else None
            apart = self._asked_apart(copies)
            together = self._asked(copies)
            again = self._asked(copies)
            order = torch.randperm(len(copies), generator=torch.Generator().manual_seed(0)).to(copies.device)
            shuffled = torch.empty_like(together)
            shuffled[order] = self._asked(copies[order])
            self._refuse(
                compare(again, together, _REPEAT * self.tolerance(together)), 0, "gives other logits for the same batch"
            )
            others = "gives logits that depend on the other rows of the batch"
            for given in (together, shuffled):
                self._refuse(compare(given, apart, self.tolerance(apart)), 1, others)
            if self.private and model_identity(self.model) != before:
                self.private = False  # a forward pass leaves something behind, which threads must not mix up
        self._known = Reference(copies.clone(), apart)
        return self._known

    def recheck(self) -> None:
        """Make sure that the classifier is still the one that was verified; at once for one that is ours alone.

        Raises:
            SmoothcertError: If it is not.
        """
        if self.private or self._known is None:
            return
        with torch.inference_mode(), _own_randomness(self._known.copies.device), _ONE_AT_A_TIME:
            now = self._asked_apart(self._known.copies)
        same = not compare(now, self._known.logits, _REPEAT * self.tolerance(now)).rows
        if self.model is self._given:  # else it is our copy that changes as it runs, and the given one does not matter
            same = same and model_identity(self._given) == self.sealed_identity
        if not same:
            raise SmoothcertError(
                "the model changed while it was certified, so no certificate is issued; use a model that keeps no "
                "state, and do not change it meanwhile."
            )

    def tolerance(self, logits: Tensor) -> float:
        """How far rounding may move logits: a part of their spread, and some units in the last place of their size."""
        finite = logits[logits.isfinite().all(dim=1)].double()
        if not len(finite):
            return 0.0
        spread = float((finite - finite.mean(dim=1, keepdim=True)).abs().max())
        return float(0.3 * self._eps**0.5 * spread + 100 * self._eps * float(finite.abs().max()))

    def probe(self, shape: Sequence[int]) -> list[list[float]]:
        """What it says of fixed inputs of a shape: the top class of each, its logit, and the mean of all logits."""
        generator = torch.Generator().manual_seed(0)
        inputs = torch.rand((_PROBES, *shape), generator=generator).to(self.device)
        with torch.inference_mode(), _own_randomness(self.device), _ONE_AT_A_TIME:
            logits = self._asked(inputs)
        top = logits.max(dim=1)
        rows = torch.stack([top.indices.double(), top.values, logits.mean(dim=1)], dim=1).nan_to_num(0.0, 0.0, 0.0)
        return [[float(f"{value:.7g}") for value in row] for row in rows.tolist()]

    def _logits(self, model: Forward, batch: Tensor) -> Tensor:
        count = len(batch)
        return as_logits(model(batch.to(self.dtype)), count)

    def _asked(self, batch: Tensor) -> Tensor:
        """The logits of a batch in double precision, from the model itself and not from a thread's copy."""
        try:
            return self._logits(self.model, batch.clone()).double().clone()
        except SmoothcertError:
            raise
        except Exception as error:  # whatever a model raises
            raise UsageError(
                f"the model cannot classify a batch of shape {tuple(batch.shape)} ({first_line(error)}); give one "
                "input, without a batch dimension, in the shape the model was trained on, and a model that takes "
                "batches of any size."
            ) from error

    def _asked_apart(self, copies: Tensor) -> Tensor:
        return torch.cat([self._asked(part) for part in torch.split(copies, list(_sizes(len(copies))))])

    def _refuse(self, found: Disagreement, allowed: int, what: str) -> None:
        if found.rows > allowed:
            raise UsageError(
                f"the model {what} ({found}), but a certificate needs a fixed function of each row alone; remove what "
                "makes it random, stateful or dependent on its batch."
            )


class Sealing:
    """Seals a model when it is first asked for, and again whenever it has changed since."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sealed: Sealed | None = None

    def __reduce__(self) -> tuple[type[Sealing], tuple[()]]:
        return Sealing, ()  # in another process, models are sealed there

    def of(self, model: Forward) -> Sealed:
        """The model as it is now, sealed.

        Raises:
            UsageError: As :class:`Sealed`.
        """
        if isinstance(model, Sealed):
            return model
        with self._lock:
            known = self._sealed
            if known is not None and callable(model):
                identity = model_identity(model)
                if known.sealed_identity == identity and known.device == takes(model)[0]:
                    return known
            self._sealed = Sealed(model)
            return self._sealed


@dataclass(frozen=True, eq=False)
class Reference:
    """Noisy copies and their logits, from small batches in plain PyTorch, in double precision."""

    copies: Tensor
    logits: Tensor

    @property
    def num_classes(self) -> int:
        return int(self.logits.shape[1])


@dataclass(frozen=True)
class Disagreement:
    """How many rows of logits differ beyond rounding, of how many, and by how much at most."""

    rows: int
    of: int
    apart: float

    def __str__(self) -> str:
        return f"{self.rows} of {self.of} noisy copies differ, logits by up to {self.apart:.2g}"


def compare(given: Tensor, expected: Tensor, tolerance: float) -> Disagreement:
    """Compare logits of the same rows; a row in which only one of the two is finite differs.

    Raises:
        UsageError: If they have other shapes.
    """
    if given.shape != expected.shape:
        raise UsageError(
            f"the model gives {given.shape[1]} logits in one batch and {expected.shape[1]} in another; it must always "
            "give one for each class."
        )
    given, expected = given.double(), expected.double()
    valid = expected.isfinite().all(dim=1)
    apart = torch.where(valid[:, None], (given - expected).abs(), 0.0).nan_to_num(nan=torch.inf).amax(dim=1)
    wrong = (apart > tolerance) | (given.isfinite().all(dim=1) != valid)
    return Disagreement(int(wrong.sum()), len(given), float(apart.max()))


def takes(model: Forward) -> tuple[torch.device, torch.dtype]:
    """Where a model takes its inputs, and in which type: those of its first weight."""
    weights = _weights(model) or _weights(modules_reached(model))
    weight = next((weight for weight in weights if weight.is_floating_point()), torch.empty(0))
    return weight.device, weight.dtype


def depends_on_mode(module: nn.Module) -> bool:
    """Whether a module may work differently in training mode: a layer of PyTorch that does, or code that asks."""
    if isinstance(module, _WITH_MODES):
        return True
    code = getattr(type(module).forward, "__code__", None)
    return "training" in getattr(code, "co_names", ()) and not type(module).__module__.startswith("torch.")


def as_logits(output: Any, rows: int) -> Tensor:
    """What a model gave, if it is a row of logits for each input.

    Raises:
        UsageError: If it is not.
    """
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != rows or output.shape[1] < 2:
        raise UsageError(
            f"the model must map a batch of {rows} inputs to logits of shape ({rows}, classes) with at least 2 "
            f"classes, but gave {shape}."
        )
    if output.is_complex():
        raise UsageError("the model gave complex numbers; logits must be real.")
    return output if output.is_floating_point() else output.double()


def shared_copy(module: Any) -> Any:
    """A copy with the same weights, or None where something in the module cannot be copied."""
    return _copied(module, [*module.parameters(), *module.buffers()] if isinstance(module, nn.Module) else [])


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without its full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__


class PerThread(threading.local):
    """A copy of a module for each thread that asks for it, all with the same weights; anything else is shared."""

    def __init__(self, model: Forward) -> None:
        self.model: Forward = (shared_copy(model) if isinstance(model, nn.Module) else None) or model


def _own_copy(model: Forward) -> Any:
    """A copy that shares nothing with the model but large weights; None where it cannot be copied, as a function."""
    shared = _weights(model) if sum(map(_size, _weights(model))) > COPIED_BYTES else []
    copied = _copied(model, shared)
    return None if copied is model else copied


def _copied(model: Any, shared: Sequence[Tensor]) -> Any:
    memo: dict[int, Any] = {id(tensor): tensor for tensor in shared}
    for tensor in tensors_in(model):
        if not tensor.is_leaf:  # as a feature map that was kept in training; it cannot be copied with its graph
            memo[id(tensor)] = tensor.detach().clone()
    try:
        return copy.deepcopy(model, memo)
    except Exception:  # whatever the objects in it raise
        return None


def _shares_weights(own: Any, model: Any) -> bool:
    return bool({id(t) for t in _weights(own)} & {id(t) for t in _weights(model)})


def _weights(model: Any) -> list[Tensor]:
    return [
        tensor
        for module in modules_in(model)
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None
    ]


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _refuse_uninitialised(model: Any) -> None:
    if any(nn.parameter.is_lazy(tensor) for tensor in _weights(model)):
        raise UsageError(
            "the model has lazy layers without weights; run it once on a batch of its inputs and train it first."
        )


def _sizes(rows: int) -> Iterator[int]:
    """Small batches that make up all rows."""
    for size in _SMALL_BATCHES:
        if rows <= 0:
            return
        yield min(size, rows)
        rows -= size
    while rows > 0:
        yield min(_SMALL_BATCHES[-1], rows)
        rows -= _SMALL_BATCHES[-1]


@contextmanager
def _own_randomness(device: torch.device) -> Iterator[None]:
    """PyTorch's random state is as before when the block ends."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
