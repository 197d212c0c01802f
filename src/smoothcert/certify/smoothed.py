"""A classifier under noise: the object that certifies and predicts."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor

from smoothcert.certify.base import Procedure, Task
from smoothcert.certify.cohen import Cohen
from smoothcert.classifiers.modes import evaluating
from smoothcert.noise import Noise
from smoothcert.sampling import BLOCK, Answer, Classifier, Job, Pool, Source, Statistic, Steps
from smoothcert.sampling.forwards import RUNTIMES
from smoothcert.sampling.runtimes import Runtime, prepare, unprepared
from smoothcert.types import Certificate, Prediction, UsageError, unknown_name

Key = TypeVar("Key")

MEASURE_FROM = 20_000
"""Fewer samples than these are not worth measuring how to run them best."""


class Smoothed:
    """The smoothed classifier: the class a base classifier gives most often under noise.

    Args:
        model: A ``torch.nn.Module`` or any callable that maps a batch of inputs to logits (batch, classes).
        noise: The noise, added to inputs as given: normalisation must be a layer of the model.
        num_classes: The number of classes; found by a forward pass when not given, checked when given.
        runtime: How the model is run: a name in ``sampling.forwards.RUNTIMES``, a prepared ``Runtime``, or ``"auto"``
            for the fastest that agrees with plain PyTorch, as far as the work ahead is worth measuring.
        input_range: Values an input may have; ``None`` skips the check.
        batch_size: Noisy copies per forward pass; chosen when not given.
        precision: ``"bf16"`` or ``"fp16"`` autocast, on CUDA only.

    Example:
        >>> from smoothcert import Gaussian
        >>> linear = torch.nn.Linear(4, 2)
        >>> smoothed = Smoothed(linear, Gaussian(0.5))
        >>> smoothed.certify(torch.full((4,), 0.5), Cohen(n=1000)).n
        1000
    """

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
        self.noise = noise
        self.num_classes = num_classes
        self.input_range = input_range
        self.batch_size = batch_size
        self.runtime = runtime
        self.precision = precision
        self._probed: tuple[torch.Size, torch.dtype] | None = None
        self._prepared: tuple[object, int, Runtime] | None = None
        self._beside: dict[int, Smoothed] = {}

    @property
    def device(self) -> torch.device:
        """Where the model's weights are; the CPU for a model without any."""
        return self._weight().device

    def certify(self, x: Any, procedure: Procedure | None = None, *, seed: int = 0, index: int = 0) -> Certificate:
        """Prove a radius around one input.

        Args:
            x: One input (no batch dimension): a floating-point tensor, or what ``torch.as_tensor`` takes.
            procedure: How to certify; ``Cohen()`` by default.
            seed: The seed of the noise.
            index: The input's number in its dataset; inputs with other numbers get other noise.

        Returns:
            The certificate; its label is ``ABSTAIN`` when nothing could be proved.

        Raises:
            UsageError: If the input or the model's output is not as it must be; before any sampling.
        """
        procedure = procedure or Cohen()
        return self._one(x, procedure, procedure.certify, seed, index)

    def predict(self, x: Any, procedure: Procedure | None = None, *, seed: int = 0, index: int = 0) -> Prediction:
        """The smoothed classifier's class at one input, without a radius and with far fewer samples.

        Args, Raises: As :meth:`certify`; the procedure is ``Cohen(n=1_000)`` by default.

        Returns:
            The prediction; its label is ``ABSTAIN`` when the votes do not decide.
        """
        procedure = procedure or Cohen(n=1_000)
        return self._one(x, procedure, procedure.predict, seed, index)

    def prepare(self, x: Any, *, samples: int | None = None, like: Mapping[str, Any] | None = None) -> Runtime:
        """Choose how to run the model, by measuring as long as the work ahead is worth; kept until its weights change.

        Args:
            x: One input.
            samples: How many noisy copies are to come.
            like: ``Runtime.settings()`` of an earlier session to be used again, where ``runtime`` is ``"auto"``.

        Returns:
            The runtime.

        Raises:
            UsageError: For a runtime that is not installed, a precision without CUDA, or a model with a fixed batch.
            SmoothcertError: If the runtime asked for cannot run the model, or disagrees with plain PyTorch.
        """
        if isinstance(self.runtime, Runtime):
            return self.runtime
        tensor = self.check(x)
        like = like if like and like["notes"] and self.runtime == "auto" else None
        plain = self.runtime == "auto" and self.precision is None and (samples or 0) < MEASURE_FROM
        if plain and not like and self._prepared is None:
            return unprepared(self.model, self.batch_size or default_batch_size(tensor))
        key = (tensor.shape, tensor.dtype, tensor.device, torch.get_num_threads(), self._weights_version())
        worth = samples or 0
        if self._prepared is None or self._prepared[0] != key or worth > 100 * self._prepared[1] or like:
            with evaluating(self.model):
                runtime = prepare(
                    self.model,
                    tensor,
                    runtime=self.runtime,
                    batch_size=self.batch_size,
                    samples=samples,
                    precision=self.precision,
                    like=like,
                )
            self._prepared = (key, max(worth, MEASURE_FROM), runtime)
        return self._prepared[2]

    def _weights_version(self) -> tuple[tuple[int, int], ...]:
        """Changes whenever a weight does, so that no prepared copy outlives the weights it was made of."""
        if not isinstance(self.model, torch.nn.Module):
            return ()
        tensors = chain(self.model.parameters(), self.model.buffers())
        return tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors)

    def check(self, x: Any, procedure: Procedure | None = None) -> Tensor:
        """The input as a tensor ready to sample around.

        Args:
            x: One input.
            procedure: A procedure whose settings must suit the noise and the input.

        Returns:
            The tensor, on the model's device and in its dtype.

        Raises:
            UsageError: If it has the wrong dtype, is not finite, lies outside the declared range or the noise's grid,
                or the model cannot classify it.
        """
        tensor = torch.as_tensor(x)
        if not tensor.is_floating_point():
            raise UsageError(
                f"the input has dtype {str(tensor.dtype).removeprefix('torch.')}; convert it to floating point "
                "in the model's range (for 8-bit images: x.float() / 255)."
            )
        if tensor.numel() == 0:
            raise UsageError("the input is empty.")
        low, high = float(tensor.min()), float(tensor.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise UsageError("the input contains NaN or infinite values.")
        if self.input_range is not None and (low < self.input_range[0] - 1e-6 or high > self.input_range[1] + 1e-6):
            raise UsageError(
                f"the input spans [{low:.6g}, {high:.6g}], outside the declared range {list(self.input_range)}; "
                "rescale it, or declare another input_range."
            )
        weight = self._weight()
        tensor = tensor.to(device=weight.device, dtype=weight.dtype).contiguous()
        self.noise.check(tensor)
        if self.num_classes is None or self._probed != (tensor.shape, tensor.dtype):
            with evaluating(self.model), torch.inference_mode():
                self.num_classes = self._probe(tensor)
            self._probed = (tensor.shape, tensor.dtype)
        if procedure is not None:
            for other in self._others(procedure):
                other.check(tensor)
            steps = self.begin(procedure, procedure.certify, self._task(0, tensor, self.noise, seed=0))
            next(steps)  # a procedure checks its settings before it asks for votes
            steps.close()
        return tensor

    def run(
        self,
        inputs: Iterable[tuple[int, Any]],
        procedure: Procedure,
        steps: Callable[[Task], Steps[Answer]],
        *,
        seed: int = 0,
        count: int | None = None,
    ) -> Iterator[tuple[Job[Answer], Answer]]:
        """Certify or predict many inputs at once, sharing batches.

        Args:
            inputs: Pairs (index, input).
            procedure: How.
            steps: ``procedure.certify`` or ``procedure.predict``.
            seed: The seed of the noise.
            count: How many inputs there are, if known; decides how much measuring pays.

        Yields:
            Each job and its answer, in the order decided.

        Raises:
            UsageError: If an input is not as it must be; the answers of those before it come first.
        """

        def jobs() -> Iterator[Job[Answer]]:
            for index, x in inputs:
                try:
                    yield self._job(index, x, procedure, steps, seed)
                except UsageError as error:
                    raise UsageError(f"input {index}: {error}") from error

        return self._answers(jobs(), procedure, seed, count)

    def extra_config(self) -> dict[str, Any]:
        """What decides the answers of a subclass besides model, noise and procedure, as plain values for run files."""
        return {}

    def resume(self, answered: int) -> None:
        """Prepare to go on after this many answers of earlier sessions, abstentions aside; subclasses may refuse."""

    @property
    def in_order(self) -> bool:
        """Whether an answer depends on those before it, so that all must be given in order, and in one place."""
        return False

    def for_workers(self) -> Smoothed:
        """This classifier as it is sent to other processes: without what was prepared for this one."""
        other = copy.copy(self)
        other._probed, other._prepared, other._beside = None, None, {}
        return other

    def run_by(self, runtime: Runtime) -> Smoothed:
        """This classifier, run in a way that was prepared."""
        other = copy.copy(self)
        other.runtime = runtime
        return other

    def settled(
        self, decided: Iterator[tuple[Key, Answer]], order: deque[tuple[Key, Tensor]]
    ) -> Iterator[tuple[Key, Answer]]:
        """Answers as they are given out, once those of workers have come together; subclasses may change them.

        Args:
            decided: Answers by whatever tells inputs apart, in the order decided.
            order: The same inputs in their own order; may grow meanwhile.
        """
        return decided

    def noise_for(self, index: int, x: Tensor, seed: int) -> Noise:
        """The noise of one input; the same for all unless a subclass chooses."""
        return self.noise

    def begin(self, procedure: Procedure, steps: Callable[[Task], Steps[Answer]], task: Task) -> Steps[Answer]:
        """Set a procedure to work on one input; subclasses may put something around it."""
        return steps(task)

    def finish(self, job: Job[Answer], answer: Answer) -> Answer:
        """The answer as it is given out; subclasses may change it."""
        return answer

    def _one(
        self, x: Any, procedure: Procedure, steps: Callable[[Task], Steps[Answer]], seed: int, index: int
    ) -> Answer:
        ((_, answer),) = self._answers(iter([self._job(index, x, procedure, steps, seed)]), procedure, seed)
        return answer

    def _answers(
        self, jobs: Iterator[Job[Answer]], procedure: Procedure, seed: int, count: int | None = None
    ) -> Iterator[tuple[Job[Answer], Answer]]:
        first = next(jobs, None)
        if first is None:
            return
        first.begin()
        sources = self._sources(first.x, procedure, (count or 1) * procedure.expected_samples)
        pool = Pool(
            [source for source, _ in sources],
            seed,
            workers=min(runtime.workers for _, runtime in sources),
            threads=sources[0][1].threads,
        )
        with evaluating(self.model, *(other.model for other in self._others(procedure))):
            for job, answer in pool.run(chain([first], jobs)):
                yield job, self.finish(job, answer)

    def _sources(self, x: Tensor, procedure: Procedure, samples: int) -> list[tuple[Source, Runtime]]:
        """The classifiers that a procedure may ask, made ready to run: this one first."""
        statistics = [procedure.statistics, *(counted for _, counted in procedure.others)]
        return [
            asked._source(x, counted, samples)
            for asked, counted in zip([self, *self._others(procedure)], statistics, strict=True)
        ]

    def _source(self, x: Tensor, statistics: Sequence[Statistic], samples: int) -> tuple[Source, Runtime]:
        self.check(x)
        assert self.num_classes is not None
        runtime = self.prepare(x, samples=samples)
        how = (runtime.batch_size, runtime.cascade, runtime.elsewhere)
        return Source(runtime.run, self.noise, self.num_classes, statistics, *how), runtime

    def _others(self, procedure: Procedure) -> list[Smoothed]:
        """The classifiers that a procedure asks besides this one, under the same noise."""
        runtime = "auto" if isinstance(self.runtime, Runtime) else self.runtime
        for model, _ in procedure.others:
            if id(model) not in self._beside:
                self._beside[id(model)] = Smoothed(
                    model, self.noise, runtime=runtime, input_range=self.input_range, batch_size=self.batch_size
                )
        return [self._beside[id(model)] for model, _ in procedure.others]

    def _job(
        self, index: int, x: Any, procedure: Procedure, steps: Callable[[Task], Steps[Answer]], seed: int
    ) -> Job[Answer]:
        for name, value in (("seed", seed), ("index", index)):
            if not 0 <= value < 2**63:
                raise UsageError(f"{name} must be between 0 and 2**63 - 1, got {value}.")
        tensor = self.check(x)
        noise = self.noise_for(index, tensor, seed)
        task = self._task(index, tensor, noise, seed)
        return Job(index, tensor, self.begin(procedure, steps, task), None if noise is self.noise else noise)

    def _task(self, index: int, x: Tensor, noise: Noise, seed: int) -> Task:
        assert self.num_classes is not None
        return Task(noise, self.num_classes, x.numel(), seed, index, x)

    def _probe(self, x: Tensor) -> int:
        """The number of classes the model really gives, from forward passes over two and three clean copies."""
        for size in (2, 3):
            batch = torch.stack([x] * size)
            try:
                logits = self.model(batch)
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                advice = "give one input, without a batch dimension, in the shape the model was trained on"
                if size > 2:
                    advice = "a model must take batches of any size"
                raise UsageError(
                    f"the model cannot classify a batch of shape {tuple(batch.shape)} ({reason}); {advice}."
                ) from error
            if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != size or logits.shape[1] < 2:
                shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
                raise UsageError(
                    f"the model must map a batch of {size} inputs to logits of shape ({size}, classes) with at least 2 "
                    f"classes, but gave {shape}."
                )
        if self.num_classes is not None and logits.shape[1] != self.num_classes:
            raise UsageError(f"the model gives {logits.shape[1]} classes, not num_classes={self.num_classes}.")
        return int(logits.shape[1])

    def _weight(self) -> Tensor:
        if isinstance(self.model, torch.nn.Module):
            for weight in self.model.parameters():
                if weight.is_floating_point():
                    return weight
        return torch.empty(0)


def default_batch_size(like: Tensor) -> int:
    """A batch that fits CPU caches, or keeps a GPU busy: a multiple of the noise block."""
    budget = 2**18 if like.device.type == "cpu" else 2**23
    copies = min(max(budget // max(like.numel(), 1), BLOCK), 4000)
    return copies // BLOCK * BLOCK
