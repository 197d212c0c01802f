"""A base classifier under noise, made ready to run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from smoothcert.certify.inputs import CheckedInput, checked_input
from smoothcert.classifiers.agreement import Reference
from smoothcert.classifiers.copying import takes
from smoothcert.classifiers.sealed import Sealed, Sealing
from smoothcert.noise import Noise
from smoothcert.sampling import BLOCK, Classifier, Source, Statistic
from smoothcert.sampling.audit import Audit
from smoothcert.sampling.forwards import RUNTIMES
from smoothcert.sampling.runtimes import (
    CLOSE,
    Runtime,
    check_copies,
    check_options,
    not_worth_measuring,
    prepare,
    unprepared,
)
from smoothcert.sampling.tuning import TOO_FEW
from smoothcert.types import UsageError, unknown_name

_SAME_RUNTIME = 2_000_000  # samples for which a benchmarked runtime is used again, and a hundred times its samples
_SHAPES = 32  # shapes of inputs for which runtimes are kept


@dataclass
class _Known:
    """A runtime for inputs of one shape.

    Attributes:
        most: The number of samples of a call up to which it is used.
        unmeasured: The number of samples of all calls up to which it is used.
        drawn: The number of samples of all calls so far.
    """

    runtime: Runtime
    most: float
    unmeasured: float
    drawn: int = 0


@dataclass(frozen=True, eq=False)
class Ready:
    """A classifier as the sampling pool uses it."""

    source: Source
    runtime: Runtime
    sealed: Sealed


class Runner:
    """A model and a noise: seals the model, checks inputs and chooses the runtime; see :class:`Smoothed`."""

    def __init__(
        self,
        model: Classifier,
        noise: Noise,
        *,
        num_classes: int | None = None,
        runtime: str | Runtime = "auto",
        input_range: tuple[float, float] | None = (0.0, 1.0),
        batch_size: int | None = None,
        precision: str | None = None,
    ) -> None:
        if not callable(model):
            raise UsageError(f"the model must be callable on a batch of inputs, got {type(model).__name__}.")
        if not isinstance(noise, Noise):
            raise UsageError(f"noise must be a noise such as Gaussian(0.5), got {noise!r}.")
        if num_classes is not None and num_classes < 2:
            raise UsageError(f"num_classes must be at least 2, got {num_classes}.")
        if batch_size is not None and batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, got {batch_size}.")
        if isinstance(runtime, str) and runtime not in ("auto", *RUNTIMES):
            raise unknown_name("runtime", runtime, ["auto", *RUNTIMES])
        if input_range is not None and not input_range[0] < input_range[1]:
            raise UsageError(f"input_range must be (low, high) with low < high, got {input_range}.")
        self.model = model
        self._noise = noise
        self.num_classes = num_classes
        self.input_range = input_range
        self.batch_size = batch_size
        self.runtime = runtime
        self.precision = precision
        self._declared_classes = num_classes
        self._forget()

    def _forget(self) -> None:
        """Drop everything derived from the model."""
        self._sealing = Sealing()
        self._known: tuple[Sealed | None, dict[object, _Known]] = (None, {})  # by shape, for the model as sealed last
        self._audit: tuple[Sealed, Audit] | None = None

    def sealed(self) -> Sealed:
        """Return the model as it is now, as a fixed function of one row.

        Raises:
            UsageError: If it cannot be made one.
        """
        return self._sealing.of(self.model)

    @property
    def noise(self) -> Noise:
        """The noise; fixed, since a radius must be computed for the noise that was sampled."""
        return self._noise

    @property
    def device(self) -> torch.device:
        """The device of the model's weights; the CPU for a model without weights."""
        return takes(self.model)[0]

    def prepare(self, x: Any, *, samples: int | None = None, like: Mapping[str, Any] | None = None) -> Runtime:
        """Choose the runtime, and keep it until the model changes.

        Args:
            x: One input.
            samples: The number of noisy copies to come, to which the time for benchmarking runtimes is proportional.
            like: ``Runtime.settings()`` of an earlier session to use again, where ``runtime`` is ``"auto"``.

        Raises:
            UsageError: For a runtime that is not installed, a precision without CUDA, or a model with a fixed batch.
            SmoothcertError: If the runtime cannot run the model, or disagrees with plain PyTorch.
        """
        sealed = self.sealed()
        return self._runtime(sealed, self.checked(sealed, x), samples, like)

    def checked(self, sealed: Sealed, x: Any) -> Tensor:
        """Return a private copy of an input that the model can classify; see :meth:`Smoothed.check`."""
        if isinstance(x, CheckedInput):
            if x.sealed is sealed:
                return x.tensor
            x = x.tensor
        tensor = checked_input(x, self.input_range, sealed.device)
        if isinstance(self.runtime, str):
            check_options(self.runtime, self.precision, self.batch_size, sealed.device)
        self.noise.check(tensor)
        classes = self._reference(sealed, tensor).num_classes
        if self._declared_classes is not None and classes != self._declared_classes:
            raise UsageError(f"the model gives {classes} classes, not num_classes={self._declared_classes}.")
        self.num_classes = classes
        return tensor

    def ready(self, sealed: Sealed, x: Tensor, statistics: Sequence[Statistic], samples: int) -> Ready:
        """Prepare the sealed model for the sampling pool."""
        classes = self._reference(sealed, x).num_classes
        runtime = self._runtime(sealed, x, samples, drawn=True)
        audit = None
        if runtime.elsewhere is None:
            if self._audit is None or self._audit[0] is not sealed:
                self._audit = (sealed, Audit(sealed, CLOSE[self.precision]))
            audit = self._audit[1]
        how = (runtime.batch_size, runtime.cascade, runtime.elsewhere, audit, runtime.least)
        return Ready(Source(runtime.run, self.noise, classes, statistics, *how), runtime, sealed)

    def _runtime(
        self,
        sealed: Sealed,
        x: Tensor,
        samples: int | None = None,
        like: Mapping[str, Any] | None = None,
        drawn: bool = False,
    ) -> Runtime:
        """Return the runtime for a number of samples, which count as ``drawn`` for later calls if they will be."""
        if isinstance(self.runtime, Runtime):
            return self.runtime
        known = self._choose(sealed, x, samples, like)
        known.drawn += (samples or 0) * drawn
        return known.runtime

    def _choose(self, sealed: Sealed, x: Tensor, samples: int | None, like: Mapping[str, Any] | None) -> _Known:
        assert isinstance(self.runtime, str)
        like = like if like and like["notes"] and self.runtime == "auto" else None
        worth = samples or 0
        key = (x.shape, x.dtype, x.device, torch.get_num_threads())
        if self._known[0] is not sealed:
            self._known = (sealed, {})
        kept = self._known[1]
        known, drawn = kept.get(key), 0
        if known is not None:
            drawn = known.drawn
            if not like and worth <= known.most and drawn + worth <= known.unmeasured:
                return known
        most = unmeasured = -1.0  # samples that run without a benchmark
        if self.runtime == "auto" and self.precision is None and not like:
            few = drawn + worth <= TOO_FEW
            unmeasured = TOO_FEW if few else not_worth_measuring(sealed, self._reference(sealed, x).copies)
        if drawn + worth <= unmeasured:
            most = unmeasured
            runtime = unprepared(sealed, self.batch_size or default_batch_size(x), self._reference(sealed, x))
        else:
            most, unmeasured = max(100 * worth, _SAME_RUNTIME), math.inf
            runtime = prepare(
                sealed,
                x,
                noise=self.noise,
                runtime=self.runtime,
                batch_size=self.batch_size,
                samples=None if samples is None else drawn + samples,
                precision=self.precision,
                like=like,
            )
        while len(kept) >= _SHAPES and key not in kept:
            del kept[next(iter(kept))]
        kept[key] = _Known(runtime, most, unmeasured, drawn)
        return kept[key]

    def _reference(self, sealed: Sealed, x: Tensor) -> Reference:
        """Return noisy copies and logits on which the model was verified to be a fixed function of one row."""
        return sealed.known(x) or sealed.verify(check_copies(x, self.noise))


class Companions:
    """Models that procedures use next to a smoothed classifier, sealed and prepared once.

    Args:
        once: Whether a model stays as it was when it was first sealed.
    """

    def __init__(self, once: bool = False) -> None:
        self._once = once
        self._sealed: dict[int, tuple[Classifier, Sealed]] = {}
        self._sealings: dict[int, tuple[Classifier, Sealing]] = {}
        self._runners: dict[int, Runner] = {}

    def seal(self, model: Classifier) -> Sealed:
        """Return a model as it is now, sealed."""
        if id(model) in self._sealed:
            return self._sealed[id(model)][1]
        _, sealing = self._sealings.setdefault(id(model), (model, Sealing()))
        sealed = sealing.of(model)
        if self._once:
            self._sealed.setdefault(id(model), (model, sealed))
        return sealed

    def runner(self, model: Classifier | Runner, like: Runner) -> Runner:
        """Return the runner of a model under the noise of another runner; a runner keeps its noise."""
        if isinstance(model, Runner):
            return model
        if id(model) not in self._runners:
            runtime = "auto" if isinstance(like.runtime, Runtime) else like.runtime
            self._runners[id(model)] = Runner(
                model, like.noise, runtime=runtime, input_range=like.input_range, batch_size=like.batch_size
            )
        return self._runners[id(model)]


def default_batch_size(like: Tensor) -> int:
    """Return a batch size that fits CPU caches, or keeps a GPU busy: a multiple of the noise block."""
    budget = 2**18 if like.device.type == "cpu" else 2**23
    copies = min(max(budget // max(like.numel(), 1), BLOCK), 4000)
    return copies // BLOCK * BLOCK
