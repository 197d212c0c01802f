"""Base classifiers made safe to certify: each is one fixed function of one row.

A certificate speaks of a fixed function that classifies one noisy copy at a time. A model is not that by itself: it
may be in training mode, hold state, be random, look at the other rows of its batch, or be changed while it is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.classifiers.agreement import Disagreement, Reference, as_logits, compare, first_line, rounding
from smoothcert.classifiers.consensus import Consensus
from smoothcert.classifiers.copying import (
    Forward,
    PerThread,
    depends_on_mode,
    own_copy,
    refuse_uninitialised,
    shared_copy,
    shares_weights,
    takes,
    weights_in,
)
from smoothcert.classifiers.denoised import Denoised
from smoothcert.classifiers.ensemble import Ensemble
from smoothcert.classifiers.identity import (
    identity_digest,
    leads_outside,
    model_identity,
    modules_in,
    modules_reached,
)
from smoothcert.types import SmoothcertError, UsageError

Ask = Callable[[Forward, Tensor], Tensor]
"""What is asked of a model about a batch."""

COPIES = 40
"""Noisy copies on which a classifier is checked."""

_PROBES = 8
_REPEAT = 0.01  # part of the tolerance that the same batch twice may differ by; usually it does not differ at all
_SMALL_BATCHES = [1, 2, 3, 5, 8, 21]  # together ``COPIES``
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
        refuse_uninitialised(model)
        self.sealed_identity = dict(identity or model_identity(model))
        self.digest = identity_digest(self.sealed_identity)
        own = own_copy(model)
        theirs = {id(module) for module in modules_in(model)}
        foreign = [module for module in modules_in(model if own is None else own) if id(module) in theirs]
        self.model: Forward = model if own is None else own
        self._copied = own is not None and not foreign
        self.private = self._copied and not shares_weights(own, model) and not leads_outside(own)
        foreign += modules_reached(self.model)
        in_training = next((module for module in foreign if module.training and depends_on_mode(module)), None)
        if in_training is not None:
            raise UsageError(
                f"the model uses a {type(in_training).__name__} in training mode that cannot be copied with it; pass "
                "the module itself instead of a function around it, or call its eval() first."
            )
        if own is not None:
            for module in modules_in(own):
                module.training &= id(module) in theirs
        if self.private:
            for weight in weights_in(own):
                if weight.is_leaf:
                    weight.requires_grad_(False)
        self.device, self.dtype = takes(self.model)
        types = {weight.dtype for weight in weights_in(self.model) if weight.is_floating_point()}
        self._eps = max(torch.finfo(each).eps for each in types | {self.dtype})
        self._draws = self._fresh = False
        self._local = PerThread(self.model)
        self._known: tuple[Reference, Mapping[str, Any]] | None = None

    def __call__(self, batch: Tensor) -> Tensor:
        """The logits of each row; the batch is left as it is."""
        return self.run(batch.clone())

    def run(self, batch: Tensor) -> Tensor:
        """The logits of each row; the batch may be overwritten."""
        if self.private:
            threads = torch.get_num_threads()
            logits = self._logits(self._local.model, batch)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            return logits
        with _ONE_AT_A_TIME, _own_settings(batch.device, random=self._draws):
            return self._logits(self._alone(), batch)

    def part(self, module: Forward) -> Sealed:
        """A part of the classifier as a classifier, such as the first members of a consensus."""
        part = Sealed(module, self.sealed_identity)
        part.private &= self.private
        part._draws, part._fresh = self._draws, self._fresh
        return part

    @property
    def module(self) -> nn.Module | None:
        """The module to build other runtimes from; None where only :meth:`run` is safe."""
        return self.model if self.private and isinstance(self.model, nn.Module) else None

    def known(self, x: Tensor) -> Reference | None:
        """What :meth:`verify` found for inputs of this shape and type, if it was asked."""
        known = self._known[0] if self._known is not None else None
        same = known is not None and known.copies.shape[1:] == x.shape and known.copies.dtype == x.dtype
        return known if same else None

    def verify(self, copies: Tensor) -> Reference:
        """Refuse a classifier that is not a fixed function of one row, as far as noisy copies can show.

        The copies are classified one by one, together, again, in another order, and in small batches; and so by each
        member of an ensemble and each denoiser, whose faults a vote could hide. A model whose forward pass leaves
        something on itself, such as a feature map or a counter, is run as a fresh copy for each batch.

        Args:
            copies: Noisy copies of an input, ``COPIES`` of them.

        Returns:
            Their logits.

        Raises:
            UsageError: If logits depend on anything but the row, or are not logits, or a forward pass changes weights
                or objects outside of the model.
        """
        with torch.inference_mode(), _own_settings(copies.device), _ONE_AT_A_TIME:
            random, kept = torch.get_rng_state(), shared_copy(self.model) if self._copied else None
            before = model_identity(self.model)
            for batch in (copies[:1], copies[:3], copies):
                self._asked(batch)
            self._settle(before, kept)
            logits = self._compared(self._logits, copies)
            for number in range(len(_parts(self.model))):
                self._compared(partial(self._of_part, number), copies)
            self._settle(before, kept)
            parts = _parts(self.model)
            if self._fresh and len({id(part) for part in parts}) < len(parts):
                raise UsageError(
                    "a model that keeps something of its forward pass is used twice in one classifier; give a copy "
                    "for each use."
                )
            self._draws = not torch.equal(random, torch.get_rng_state())
            self.private &= not self._draws
        self._known = (Reference(copies.clone(), logits), before)
        return self._known[0]

    def recheck(self) -> None:
        """Make sure that the classifier is still the one that was verified; at once for one that is ours alone.

        Raises:
            SmoothcertError: If it is not.
        """
        if self.private or self._known is None:
            return
        reference, identity = self._known
        with torch.inference_mode(), _own_settings(reference.copies.device), _ONE_AT_A_TIME:
            now = self._asked(reference.copies)
            same = not compare(now, reference.logits, _REPEAT * self.tolerance(now)).rows
            same = same and model_identity(self.model) == identity
        if not same:
            raise SmoothcertError(
                "the model changed while it was certified, so no certificate is issued; use a model that keeps no "
                "state, and do not change it meanwhile."
            )

    def tolerance(self, logits: Tensor) -> Tensor:
        """How far rounding may move logits of this classifier."""
        return rounding(logits.double(), self._eps)

    def probe(self, shape: Sequence[int]) -> list[list[float]]:
        """What it says of fixed inputs of a shape: the top class of each, its logit, and the mean of all logits."""
        generator = torch.Generator().manual_seed(0)
        inputs = torch.rand((_PROBES, *shape), generator=generator).to(self.device)
        with torch.inference_mode(), _own_settings(self.device), _ONE_AT_A_TIME:
            logits = self._asked(inputs)
        top = logits.max(dim=1)
        rows = torch.stack([top.indices.double(), top.values, logits.mean(dim=1)], dim=1).nan_to_num(0.0, 0.0, 0.0)
        return [[float(f"{value:.7g}") for value in row] for row in rows.tolist()]

    def _logits(self, model: Forward, batch: Tensor) -> Tensor:
        count = len(batch)
        logits = as_logits(model(batch.to(self.dtype)), count)
        self._eps = max(self._eps, torch.finfo(logits.dtype).eps)
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def _of_part(self, number: int, model: Forward, batch: Tensor) -> Tensor:
        return _parts(model)[number](batch.to(self.dtype))

    def _alone(self) -> Forward:
        """The model itself, or a copy of it where a forward pass leaves something behind."""
        return shared_copy(self.model) if self._fresh else self.model

    def _asked(self, batch: Tensor, ask: Ask | None = None) -> Tensor:
        """The logits of a batch in double precision, or what ``ask`` finds of it, from the model itself."""
        try:
            given = (ask or self._logits)(self._alone(), batch.clone())
            return given.double().clone()
        except SmoothcertError:
            raise
        except Exception as error:  # whatever a model raises
            raise UsageError(
                f"the model cannot classify a batch of shape {tuple(batch.shape)} ({first_line(error)}); give one "
                "input, without a batch dimension, in the shape the model was trained on, and a model that takes "
                "batches of any size."
            ) from error

    def _compared(self, ask: Ask, copies: Tensor) -> Tensor:
        """What ``ask`` finds of the copies together, once it finds the same in other batches."""

        def asked(batch: Tensor) -> Tensor:
            given = self._asked(batch, ask)
            if given.ndim < 2 or len(given) != len(batch):
                raise UsageError(
                    f"each part of the model must give a row for each input, but one gave {tuple(given.shape)} for "
                    f"{len(batch)}."
                )
            return given.flatten(1)

        alone = torch.cat([asked(row) for row in torch.split(copies, 1)])
        small = torch.cat([asked(part) for part in torch.split(copies, _SMALL_BATCHES)])
        together, again = asked(copies), asked(copies)
        order = torch.randperm(len(copies), generator=torch.Generator().manual_seed(0)).to(copies.device)
        shuffled = torch.empty_like(together)
        shuffled[order] = asked(copies[order])
        _refuse(
            compare(again, together, _REPEAT * self.tolerance(together)), 0, "gives other logits for the same batch"
        )
        for given in (small, together, shuffled):
            found = compare(given, alone, self.tolerance(alone))
            _refuse(found, 1, "gives logits that depend on the other rows of the batch")
        return together

    def _settle(self, before: Mapping[str, Any], kept: Any) -> None:
        """Find out whether forward passes changed the model; if so, take copies from now on.

        Raises:
            UsageError: If copies do not help.
        """
        after = model_identity(self.model)
        if after == before:
            return
        if kept is None or after["sha256"] != before["sha256"] or leads_outside(kept):
            raise UsageError(
                "asking the model changes its weights, or objects that a copy of it shares; use a model that keeps no "
                "state, or keeps it in attributes of the module."
            )
        self.model, self._fresh, self.private = kept, True, False


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


def _refuse(found: Disagreement, allowed: int, what: str) -> None:
    if found.rows > allowed:
        raise UsageError(
            f"the model {what} ({found}), but a certificate needs a fixed function of each row alone; remove what "
            "makes it random, stateful or dependent on its batch."
        )


def _parts(model: Any) -> list[Forward]:
    """Parts of a classifier made of others, each as a function of a batch, in a fixed order."""
    parts: list[Forward] = []
    own = getattr(model, "parts", None) if isinstance(model, (Ensemble, Consensus, Denoised)) else None
    for part in own() if own is not None else ():
        parts += [part, *_parts(part)]
    return parts


@contextmanager
def _own_settings(device: torch.device, random: bool = True) -> Iterator[None]:
    """PyTorch's number of threads, and its random state if asked for, are as before when the block ends."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else [], enabled=random):
        try:
            yield
        finally:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
