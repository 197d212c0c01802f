"""A classifier under noise: the object that certifies and predicts."""

from __future__ import annotations

import copy
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from smoothcert.certify.base import Procedure, Task
from smoothcert.certify.cohen import Cohen
from smoothcert.certify.inputs import CheckedInput, checked_input
from smoothcert.classifiers.agreement import Reference
from smoothcert.classifiers.copying import takes
from smoothcert.classifiers.identity import identity_digest
from smoothcert.classifiers.sealed import Sealed, Sealing
from smoothcert.data.subset import as_tensor
from smoothcert.noise import Noise
from smoothcert.sampling import BLOCK, Answer, Classifier, Job, Pool, Source, Statistic, Steps
from smoothcert.sampling.audit import Audit
from smoothcert.sampling.copies import input_digest
from smoothcert.sampling.forwards import RUNTIMES
from smoothcert.sampling.runtimes import CLOSE, Runtime, check_copies, check_options, prepare, unprepared
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
        self._declared_classes = num_classes
        self._forget()

    def _forget(self) -> None:
        """Drop everything that was made of the model."""
        self._sealing = Sealing()
        self._prepared: tuple[object, int, Runtime] | None = None
        self._audit: tuple[Sealed, Audit] | None = None
        self._others_sealed: dict[int, tuple[Classifier, Sealing]] = {}
        self._beside: dict[int, Smoothed] = {}

    def sealed(self) -> Sealed:
        """The model as it is now, as the fixed function of one row that is certified.

        Raises:
            UsageError: If it cannot be made one.
        """
        return self._sealing.of(self.model)

    @property
    def device(self) -> torch.device:
        """Where the model's weights are; the CPU for a model without any."""
        return takes(self.model)[0]

    def certify(
        self, x: Any, procedure: Procedure | None = None, *, seed: int | None = None, index: int | None = None
    ) -> Certificate:
        """Prove a radius around one input.

        Args:
            x: One input (no batch dimension): a floating-point tensor, or what ``torch.as_tensor`` takes.
            procedure: How to certify; ``Cohen()`` by default.
            seed: The seed of the noise. By default a fresh one, drawn from the operating system and kept in the
                certificate. A certificate is valid only if model and input were chosen without knowing the noise: give
                a seed to repeat a certificate, not to choose between models by it.
            index: The input's number in its dataset; inputs with other numbers get other noise. By default it follows
                from the input's values.

        Returns:
            The certificate; its label is ``ABSTAIN`` when nothing could be proved.

        Raises:
            UsageError: If the input or the model's output is not as it must be; before any sampling.
        """
        procedure = procedure or Cohen()
        return self._one(x, procedure, procedure.certify, seed, index)

    def predict(
        self, x: Any, procedure: Procedure | None = None, *, seed: int | None = None, index: int | None = None
    ) -> Prediction:
        """The smoothed classifier's class at one input, without a radius and with far fewer samples.

        Args, Raises: As :meth:`certify`; the procedure is ``Cohen(n=1_000)`` by default.

        Returns:
            The prediction; its label is ``ABSTAIN`` when the votes do not decide.
        """
        procedure = procedure or Cohen(n=1_000)
        return self._one(x, procedure, procedure.predict, seed, index)

    def prepare(self, x: Any, *, samples: int | None = None, like: Mapping[str, Any] | None = None) -> Runtime:
        """Choose how to run the model, by measuring as long as the work ahead is worth; kept until the model changes.

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
        sealed = self.sealed()
        return self._runtime(sealed, self._checked(sealed, x), samples, like)

    def _runtime(
        self, sealed: Sealed, x: Tensor, samples: int | None = None, like: Mapping[str, Any] | None = None
    ) -> Runtime:
        if isinstance(self.runtime, Runtime):
            return self.runtime
        like = like if like and like["notes"] and self.runtime == "auto" else None
        worth = samples or 0
        plain = self.runtime == "auto" and self.precision is None and worth < MEASURE_FROM
        key = (sealed, x.shape, x.dtype, x.device, torch.get_num_threads())
        known = self._prepared
        if known is not None and known[0] == key and not like and (worth <= 100 * known[1] or plain):
            return known[2]
        if plain and not like:
            runtime = unprepared(sealed, self.batch_size or default_batch_size(x), self._reference(sealed, x))
        else:
            runtime = prepare(
                sealed,
                x,
                noise=self.noise,
                runtime=self.runtime,
                batch_size=self.batch_size,
                samples=samples,
                precision=self.precision,
                like=like,
            )
        self._prepared = (key, 0 if plain and not like else max(worth, MEASURE_FROM), runtime)
        return runtime

    def _reference(self, sealed: Sealed, x: Tensor) -> Reference:
        """Noisy copies on which the classifier is known to be a fixed function of one row."""
        return sealed.known(x) or sealed.verify(check_copies(x, self.noise))

    def check(self, x: Any, procedure: Procedure | None = None) -> Tensor:
        """The input as a tensor ready to sample around.

        Args:
            x: One input.
            procedure: A procedure whose settings must suit the noise and the input.

        Returns:
            A copy of it on the model's device, in at least single precision.

        Raises:
            UsageError: If it has the wrong dtype, is not finite, lies outside the declared range or the noise's grid,
                or the model cannot classify it.
        """
        sealed = self.sealed()
        tensor = self._checked(sealed, x)
        if procedure is not None:
            procedure = procedure.sealed(self._sealed_beside)
            for other in self._others(procedure):
                other.check(tensor)
            steps = self.begin(procedure, procedure.certify, self._task(0, tensor, self.noise, seed=0))
            next(steps)  # a procedure checks its settings before it asks for votes
            steps.close()
        return tensor

    def _checked(self, sealed: Sealed, x: Any) -> Tensor:
        """The input as a tensor that nobody else can change, once the model is known to be able to classify it."""
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

    def run(
        self,
        inputs: Iterable[tuple[int, Any]],
        procedure: Procedure,
        steps: Callable[[Task], Steps[Answer]],
        *,
        seed: int | None = None,
        count: int | None = None,
    ) -> Iterator[tuple[Job[Answer], Answer]]:
        """Certify or predict many inputs at once, sharing batches.

        Args:
            inputs: Pairs (index, input).
            procedure: How.
            steps: ``procedure.certify`` or ``procedure.predict``.
            seed: The seed of the noise; a fresh one by default.
            count: How many inputs there are, if known; decides how much measuring pays.

        Yields:
            Each job and its answer, in the order decided.

        Raises:
            UsageError: If an input is not as it must be; the answers of those before it come first.
        """

        return self._answers(inputs, procedure, steps, fresh_seed() if seed is None else seed, count)

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
        other._forget()
        other.model = self.sealed().model
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
        self,
        x: Any,
        procedure: Procedure,
        steps: Callable[[Task], Steps[Answer]],
        seed: int | None,
        index: int | None,
    ) -> Answer:
        if index is None:
            index = int(input_digest(as_tensor(x)), 16) >> 65  # 63 bits
        seed = fresh_seed() if seed is None else seed
        ((_, answer),) = self._answers([(index, x)], procedure, steps, seed, named=False)
        return answer

    def _answers(
        self,
        inputs: Iterable[tuple[int, Any]],
        procedure: Procedure,
        steps: Callable[[Task], Steps[Answer]],
        seed: int,
        count: int | None = None,
        named: bool = True,
        note: Callable[[Job[Answer]], None] | None = None,
    ) -> Iterator[tuple[Job[Answer], Answer]]:
        """The answer for each input, all by the classifier as it is when the first one is asked for."""
        sealed, procedure = self.sealed(), procedure.sealed(self._sealed_beside)
        steps = getattr(procedure, steps.__name__)  # of the procedure whose models are sealed

        def jobs() -> Iterator[Job[Answer]]:
            for index, x in inputs:
                try:
                    job = self._job(sealed, index, x, procedure, steps, seed)
                except UsageError as error:
                    if not named:
                        raise
                    raise UsageError(f"input {index}: {error}") from error
                if note is not None:
                    note(job)
                yield job

        waiting = jobs()
        first = next(waiting, None)
        if first is None:
            return
        first.begin()
        asked = self._asked(sealed, first.x, procedure, (count or 1) * procedure.expected_samples)
        pool = Pool(
            [each.source for each in asked],
            seed,
            workers=min(each.runtime.workers for each in asked),
            threads=asked[0].runtime.threads,
        )
        runtime = "+".join(dict.fromkeys(each.runtime.name for each in asked))
        models = [*(each.sealed for each in asked), *procedure.cores]
        identity = dict.fromkeys(each.digest for each in models)
        model = identity_digest(identity) if len(identity) > 1 else sealed.digest
        for job, answer in pool.run(chain([first], waiting)):
            for each in models:
                each.recheck()
            if isinstance(answer, Certificate):
                stamped = replace(answer, runtime=runtime, model=model, input=input_digest(job.x))
                answer = cast(Answer, stamped)
            yield job, self.finish(job, answer)

    def _asked(self, sealed: Sealed, x: Tensor, procedure: Procedure, samples: int) -> list[Asked]:
        """The classifiers that a procedure may ask, made ready to run: this one first."""
        others = zip(self._others(procedure), (counted for _, counted in procedure.others), strict=True)
        return [
            self._ready(sealed, x, procedure.statistics, samples),
            *(other._ready(other.sealed(), x, counted, samples) for other, counted in others),
        ]

    def _ready(self, sealed: Sealed, x: Tensor, statistics: Sequence[Statistic], samples: int) -> Asked:
        classes = self._reference(sealed, x).num_classes
        runtime = self._runtime(sealed, x, samples)
        audit = None
        if runtime.elsewhere is None:
            if self._audit is None or self._audit[0] is not sealed:
                self._audit = (sealed, Audit(sealed, CLOSE[self.precision]))
            audit = self._audit[1]
        how = (runtime.batch_size, runtime.cascade, runtime.elsewhere, audit)
        return Asked(Source(runtime.run, self.noise, classes, statistics, *how), runtime, sealed)

    def _sealed_beside(self, model: Classifier) -> Sealed:
        """Another model that is asked about the same inputs, sealed."""
        _, sealing = self._others_sealed.setdefault(id(model), (model, Sealing()))
        return sealing.of(model)

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
        self,
        sealed: Sealed,
        index: int,
        x: Any,
        procedure: Procedure,
        steps: Callable[[Task], Steps[Answer]],
        seed: int,
    ) -> Job[Answer]:
        for name, value in (("seed", seed), ("index", index)):
            if not 0 <= value < 2**63:
                raise UsageError(f"{name} must be between 0 and 2**63 - 1, got {value}.")
        tensor = self._checked(sealed, x)
        noise = self.noise_for(index, tensor, seed)
        task = self._task(index, tensor, noise, seed)
        return Job(index, tensor, self.begin(procedure, steps, task), None if noise is self.noise else noise)

    def _task(self, index: int, x: Tensor, noise: Noise, seed: int) -> Task:
        assert self.num_classes is not None
        return Task(noise, self.num_classes, x.numel(), seed, index, x)


@dataclass(frozen=True, eq=False)
class Asked:
    """A classifier that is asked for votes: as the pool sees it, how it is run, and what it is."""

    source: Source
    runtime: Runtime
    sealed: Sealed


def fresh_seed() -> int:
    """A seed from the operating system, which no choice made before can depend on."""
    return secrets.randbits(63)


def default_batch_size(like: Tensor) -> int:
    """A batch that fits CPU caches, or keeps a GPU busy: a multiple of the noise block."""
    budget = 2**18 if like.device.type == "cpu" else 2**23
    copies = min(max(budget // max(like.numel(), 1), BLOCK), 4000)
    return copies // BLOCK * BLOCK
