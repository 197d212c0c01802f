"""Sealed classifiers: base classifiers that are verified to be fixed functions of one row.

A certificate is about a fixed function that classifies one noisy copy at a time. A model need not be one: it may be in
training mode, keep state, be random, use the other rows of its batch, or be changed while it is certified.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.classifiers.agreement import Reference, as_logits, compare, first_line, rounding
from smoothcert.classifiers.composite import Composite
from smoothcert.classifiers.copying import Forward, PerThread, depends_on_mode, own_copy, shared_copy, takes, weights_in
from smoothcert.classifiers.identity import identity_digest, leads_outside, model_identity, modules_in, modules_reached
from smoothcert.classifiers.modes import intra_op_threads
from smoothcert.types import SmoothcertError, UsageError

COPIES = 40
"""Noisy copies on which a classifier is verified."""

_PROBES = 8
_REPEAT = 0.01  # part of the tolerance by which the same batch may differ when repeated; usually it does not differ
_SMALL_BATCHES = [1, 2, 3, 5, 8, 21]  # these add up to ``COPIES``
_ONE_AT_A_TIME = threading.RLock()  # for models that are not private: threads may share what they write


class Sealed:
    """A classifier as it is certified: a fixed function of one row.

    A module, or any object that can be copied, is copied in evaluation mode, so later changes to the user's object
    change no answer. A model that cannot be copied, such as a function with its closure, must be in evaluation mode
    already, runs in one thread at a time, and is checked again before each answer; so is a module with the attribute
    ``remote``, which runs elsewhere.

    Args:
        model: A module or any callable from a batch to logits.
        identity: Its identity, if it is known.

    Attributes:
        sealed_identity: The identity of the model (see ``model_identity``).
        digest: The same as one SHA-256.
        model: The copy that runs, or the model itself.
        private: Whether no other code can change it, so that several threads may run copies of it.
        device: The device of its inputs.
        dtype: The type of its inputs: that of its first weight, float32 without any.

    Raises:
        UsageError: If it cannot be called, is not initialised, or uses a module in training mode that cannot be copied.
    """

    def __init__(self, model: Forward, identity: Mapping[str, Any] | None = None) -> None:
        if not callable(model):
            raise UsageError(f"the model must be callable on a batch of inputs, got {type(model).__name__}.")
        if any(nn.parameter.is_lazy(weight) for weight in weights_in(model)):
            raise UsageError(
                "the model has lazy layers without weights; run it once on a batch of its inputs and train it first."
            )
        self.sealed_identity = dict(identity or model_identity(model))
        self.digest = identity_digest(self.sealed_identity)
        copied = own_copy(model)
        self.model: Forward = model if copied is None else copied
        theirs = {id(module) for module in modules_in(model)}
        shared = [module for module in modules_in(self.model) if id(module) in theirs]
        self._copied = copied is not None and not shared
        shared_weights = {id(weight) for weight in weights_in(self.model)} & {id(w) for w in weights_in(model)}
        remote = any(getattr(module, "remote", False) for module in modules_in(self.model))
        self.private = self._copied and not shared_weights and not remote and not leads_outside(self.model)
        for module in [*shared, *modules_reached(self.model)]:
            if module.training and depends_on_mode(module):
                raise UsageError(
                    f"the model uses a {type(module).__name__} in training mode that cannot be copied with it; pass "
                    "the module itself instead of a function around it, or call its eval() first."
                )
        if copied is not None:
            for module in modules_in(copied):
                module.training &= id(module) in theirs
        if self.private:
            for weight in weights_in(copied):
                if weight.is_leaf:
                    weight.requires_grad_(False)
        self.device, self.dtype = takes(self.model)
        types = {weight.dtype for weight in weights_in(self.model) if weight.is_floating_point()}
        self._eps = max(torch.finfo(each).eps for each in types | {self.dtype})
        self._random = False  # whether a forward pass draws from PyTorch's random state
        self._stateful = False  # whether a forward pass leaves something on the model
        self._local = PerThread(self.model)
        self._known: tuple[Reference, Mapping[str, Any]] | None = None

    def __call__(self, batch: Tensor) -> Tensor:
        """Return the logits of each row; leave the batch unchanged."""
        return self.run(batch.clone())

    def run(self, batch: Tensor) -> Tensor:
        """Return the logits of each row; the model may overwrite the batch."""
        if self.private:
            with intra_op_threads(torch.get_num_threads()):
                return self._logits(self._local.model, batch)
        with _exclusive(batch.device, random=self._random):
            return self._logits(self._fresh(), batch)

    def part(self, module: Forward) -> Sealed:
        """Seal a part of the classifier, such as the first members of a consensus."""
        part = Sealed(module, self.sealed_identity)
        part.private &= self.private
        part._random, part._stateful = self._random, self._stateful
        return part

    @property
    def module(self) -> nn.Module | None:
        """The module to build other runtimes from; None where only :meth:`run` is safe."""
        return self.model if self.private and isinstance(self.model, nn.Module) else None

    def known(self, x: Tensor) -> Reference | None:
        """Return the result of :meth:`verify` for inputs of this shape and type, if there is one."""
        known = self._known[0] if self._known is not None else None
        same = known is not None and known.copies.shape[1:] == x.shape and known.copies.dtype == x.dtype
        return known if same else None

    def verify(self, copies: Tensor) -> Reference:
        """Refuse a classifier that is not a fixed function of one row, as far as noisy copies can show.

        The copies are classified one by one, together, again, in another order, and in small batches. The same holds
        for each member of an ensemble and each denoiser, whose faults a vote could hide. A model whose forward pass
        leaves something on itself, such as a feature map or a counter, is run as a fresh copy for each batch.

        Args:
            copies: ``COPIES`` noisy copies of an input.

        Returns:
            The copies and their logits.

        Raises:
            UsageError: If logits depend on anything but the row, or are not logits, or a forward pass changes weights
                or objects outside of the model.
            SmoothcertError: If the model has changed since it was verified for other inputs.
        """
        self.recheck()  # with the copies of before; those given now would be compared with the changed model
        with torch.inference_mode(), _exclusive(copies.device):
            random, kept = torch.get_rng_state(), shared_copy(self.model) if self._copied else None
            before = model_identity(self.model)
            for batch in (copies[:1], copies[:3], copies):
                self._evaluate(batch)
            self._settle(before, kept)
            logits = self._compared(self._logits, copies)
            for number in range(len(_parts(self.model))):
                self._compared(partial(self._part_logits, number), copies)
            self._settle(before, kept)
            parts = _parts(self.model)
            if self._stateful and len({id(part) for part in parts}) < len(parts):
                raise UsageError(
                    "a model that keeps something of its forward pass is used twice in one classifier; give a copy "
                    "for each use."
                )
            self._random = not torch.equal(random, torch.get_rng_state())
            self.private &= not self._random
        self._known = (Reference(copies.clone(), logits), before)
        return self._known[0]

    def recheck(self) -> None:
        """Check that the classifier is still the one that was verified; a private one cannot have changed.

        Raises:
            SmoothcertError: If it is not.
        """
        if self.private or self._known is None:
            return
        reference, identity = self._known
        with torch.inference_mode(), _exclusive(reference.copies.device):
            now = self._evaluate(reference.copies)
            same = not compare(now, reference.logits, _REPEAT * self.tolerance(now)).rows
            same = same and model_identity(self.model) == identity
        if not same:
            raise SmoothcertError(
                "the model changed while it was certified, so no certificate is issued; use a model that keeps no "
                "state, and do not change it meanwhile."
            )

    def count_classes(self, x: Tensor) -> int:
        """Return the number of classes, found on one input by a copy of the model, whose state may change.

        Raises:
            UsageError: If the model cannot classify it.
        """
        model = shared_copy(self.model) if self._copied else self.model
        with torch.inference_mode(), _exclusive(x.device):
            return int(self._evaluate(x[None], lambda _, batch: self._logits(model, batch)).shape[1])

    def tolerance(self, logits: Tensor, images: bool = False) -> Tensor:
        """Bound how far rounding may move logits of this classifier, or images of a part of it."""
        return rounding(logits.double(), self._eps, images)

    def probe(self, shape: Sequence[int]) -> list[list[float]]:
        """Return the top class, its logit, and the mean of all logits for each of some fixed inputs of a shape."""
        generator = torch.Generator().manual_seed(0)
        inputs = torch.rand((_PROBES, *shape), generator=generator).to(self.device)
        with torch.inference_mode(), _exclusive(self.device):
            logits = self._evaluate(inputs)
        top = logits.max(dim=1)
        rows = torch.stack([top.indices.double(), top.values, logits.mean(dim=1)], dim=1).nan_to_num(0.0, 0.0, 0.0)
        return [[float(f"{value:.7g}") for value in row] for row in rows.tolist()]

    def _logits(self, model: Forward, batch: Tensor) -> Tensor:
        count = len(batch)
        logits = as_logits(model(batch.to(self.dtype)), count)
        self._eps = max(self._eps, torch.finfo(logits.dtype).eps)
        return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits

    def _part_logits(self, number: int, model: Forward, batch: Tensor) -> Tensor:
        return _parts(model)[number](batch.to(self.dtype))

    def _fresh(self) -> Forward:
        """Return the model, or a copy of it where a forward pass leaves something on it."""
        return shared_copy(self.model) if self._stateful else self.model

    def _evaluate(self, batch: Tensor, function: Callable[[Forward, Tensor], Tensor] | None = None) -> Tensor:
        """Return the logits of a batch, or another function of the model and the batch, in double precision."""
        try:
            return (function or self._logits)(self._fresh(), batch.clone()).double().clone()
        except SmoothcertError:
            raise
        except Exception as error:  # a model may raise anything
            raise UsageError(
                f"the model cannot classify a batch of shape {tuple(batch.shape)} ({first_line(error)}); give one "
                "input, without a batch dimension, in the shape the model was trained on, and a model that takes "
                "batches of any size."
            ) from error

    def _compared(self, function: Callable[[Forward, Tensor], Tensor], copies: Tensor) -> Tensor:
        """Return a function of all copies in one batch, if it is the same in other batches."""
        images = False

        def evaluate(batch: Tensor) -> Tensor:
            nonlocal images
            rows = self._evaluate(batch, function)
            images = rows.ndim > 2
            if rows.ndim < 2 or len(rows) != len(batch):
                raise UsageError(
                    f"each part of the model must return a row for each input, but one returned {tuple(rows.shape)} "
                    f"for {len(batch)}."
                )
            return rows.flatten(1)

        alone = torch.cat([evaluate(row) for row in torch.split(copies, 1)])
        small = torch.cat([evaluate(part) for part in torch.split(copies, _SMALL_BATCHES)])
        together, again = evaluate(copies), evaluate(copies)
        order = torch.randperm(len(copies), generator=torch.Generator().manual_seed(0)).to(copies.device)
        shuffled = torch.empty_like(together)
        shuffled[order] = evaluate(copies[order])

        def require_equal(given: Tensor, expected: Tensor, times: float, allowed: int, fault: str) -> None:
            found = compare(given, expected, times * self.tolerance(expected, images))
            if found.rows > allowed:
                raise UsageError(
                    f"the model {fault} ({found}), but a certificate needs a fixed function of each row alone; remove "
                    "what makes it random, stateful or dependent on its batch."
                )

        require_equal(again, together, _REPEAT, 0, "returns other logits for the same batch")
        for rows in (small, together, shuffled):
            require_equal(rows, alone, 1, 1, "returns logits that depend on the other rows of the batch")
        return together

    def _settle(self, before: Mapping[str, Any], kept: Any) -> None:
        """Run fresh copies from now on if forward passes changed the model.

        Raises:
            UsageError: If copies do not help.
        """
        after = model_identity(self.model)
        if after == before:
            return
        if kept is None or after["sha256"] != before["sha256"] or leads_outside(kept):
            raise UsageError(
                "a forward pass changes the weights of the model, or objects that a copy of it shares; use a model "
                "that keeps no state, or keeps it in attributes of the module."
            )
        self.model, self._stateful, self.private = kept, True, False


class Sealing:
    """Seals a model on first use, and again whenever it has changed since."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sealed: Sealed | None = None

    def __reduce__(self) -> tuple[type[Sealing], tuple[()]]:
        return Sealing, ()  # another process seals models itself

    def of(self, model: Forward) -> Sealed:
        """Return the model as it is now, sealed.

        Raises:
            UsageError: As :class:`Sealed`.
        """
        if isinstance(model, Sealed):
            return model
        with self._lock:
            known = self._sealed
            same = known is not None and callable(model) and known.sealed_identity == model_identity(model)
            if known is None or not same or known.device != takes(model)[0]:
                self._sealed = known = Sealed(model)
            return known


def _parts(model: Any) -> list[Forward]:
    """Return the parts of a composed classifier, each as a function of a batch, in a fixed order."""
    if not isinstance(model, Composite):
        return []
    return [each for part in model.parts() for each in (part, *_parts(part))]


@contextmanager
def _exclusive(device: torch.device, random: bool = True) -> Iterator[None]:
    """Lock out other models that are not private; restore PyTorch's threads and, if ``random``, its random state."""
    devices = [device] if device.type == "cuda" else []
    with (
        _ONE_AT_A_TIME,
        torch.random.fork_rng(devices=devices, enabled=random),
        intra_op_threads(torch.get_num_threads()),
    ):
        yield
