"""Answer inputs with a smoothed classifier: from inputs to jobs of the sampling pool, and from votes to answers."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from smoothcert.certify.base import Procedure, Task
from smoothcert.certify.batches import input_indices, split_batch
from smoothcert.certify.inputs import CheckedInput
from smoothcert.certify.per_input import chosen_noise, remembered
from smoothcert.certify.runner import Ready
from smoothcert.classifiers.identity import identity_digest
from smoothcert.classifiers.sealed import Sealed
from smoothcert.noise import Gaussian
from smoothcert.sampling import Answer, Job, Pool, Source, Steps
from smoothcert.sampling.copies import input_digest
from smoothcert.sampling.seeds import fresh_seed
from smoothcert.types import Certificate, Guarantee, Prediction, UsageError, invalid_text

if TYPE_CHECKING:
    from smoothcert.certify.smoothed import Smoothed


def answer_inputs(
    smoothed: Smoothed,
    x: Any,
    procedure: Procedure,
    steps: Callable[[Task], Steps[Answer]],
    seed: int | None,
    index: int | Sequence[int] | None,
    batch: bool | None,
) -> Answer | list[Answer]:
    """Answer one input, or a batch with a list; the arguments are those of :meth:`Smoothed.certify`."""
    began = time.monotonic()
    if smoothed.memory is not None:
        smoothed.sealed_procedure(procedure)  # refuses a procedure before the model runs
    sealed, seed = smoothed.sealed(), fresh_seed() if seed is None else seed
    inputs = split_batch(sealed, x, batch, smoothed.input_range)
    indices = input_indices([x] if inputs is None else inputs, index, inputs is None)
    if inputs is None:
        one = [(indices[0], x)]
        ((_, answer),) = answers(smoothed, one, procedure, steps, seed, named=False, sealed=sealed, began=began)
        return answer
    checked = []
    for place, each in enumerate(inputs):  # all before the first is sampled
        try:
            checked.append(CheckedInput(smoothed.checked(sealed, each), sealed))
        except UsageError as error:
            raise UsageError(f"input {place} of the batch: {error}") from error
    pairs = zip(indices, checked, strict=True)
    found = answers(smoothed, pairs, procedure, steps, seed, len(checked), named=False, sealed=sealed)
    by_place = {job.place: answer for job, answer in found}
    return [by_place[place] for place in range(len(checked))]


def answers(
    smoothed: Smoothed,
    inputs: Iterable[tuple[int, Any]],
    procedure: Procedure,
    steps: Callable[[Task], Steps[Answer]],
    seed: int,
    count: int | None = None,
    named: bool = True,
    sealed: Sealed | None = None,
    began: float | None = None,
) -> Iterator[tuple[Job[Answer], Answer]]:
    """Answer inputs with the classifier as it is when the first answer is requested; see :meth:`Smoothed.run`.

    Args:
        smoothed: The smoothed classifier.
        inputs: Pairs (index, input).
        procedure: The procedure.
        steps: ``procedure.certify`` or ``procedure.predict``.
        seed: The seed of the noise.
        count: The number of inputs, if known.
        named: Whether errors name the input; for a single input they do not, and invalid logits are warned about.
        sealed: The sealed model, if it is known.
        began: When the answers were requested; by default each input counts from when it is taken from ``inputs``.
    """
    sealed, procedure = sealed or smoothed.sealed(), smoothed.sealed_procedure(procedure)
    steps = getattr(procedure, steps.__name__)  # of the procedure whose models are sealed
    order: deque[tuple[Job[Answer], Tensor]] = deque()
    sources: list[Source] = []  # of all jobs; prepared for the first

    def jobs() -> Iterator[Job[Answer]]:
        for place, (index, x) in enumerate(inputs):
            try:
                job = make_job(smoothed, sealed, index, x, steps, seed, time.monotonic() if began is None else began)
                job.place, job.sources = place, sources
            except UsageError as error:
                if not named:
                    raise
                raise UsageError(f"input {index}: {error}") from error
            if smoothed.memory is not None:
                order.append((job, job.x))
            yield job

    waiting = jobs()
    first = next(waiting, None)
    if first is None:
        return
    first.begin()
    samples = (count or 1) * procedure.expected_samples
    (own, counted), *others = smoothed.sampled(procedure)
    ready = [own.ready(sealed, first.x, counted, samples)]
    ready += [other.ready(other.sealed(), first.x, counted, samples) for other, counted in others]
    sampled = Sampled(ready, procedure.cores)
    sources += sampled.sources
    pool = Pool(sampled.workers, sampled.threads, sampled.layouts)

    def decided() -> Iterator[tuple[Job[Answer], Answer]]:
        for job, answer in pool.run(chain([first], waiting)):
            answer = sampled.stamped(smoothed, job, answer)
            if not named and isinstance(answer, Certificate | Prediction) and answer.invalid:
                warnings.warn(invalid_text(answer.invalid, answer.samples), stacklevel=2)
            yield job, answer

    yield from decided() if smoothed.memory is None else remembered(smoothed.memory, decided(), order)


class Sampled:
    """The classifiers that a procedure samples and calls, as every certificate of it names them."""

    def __init__(self, asked: Sequence[Ready], cores: Sequence[Sealed]) -> None:
        self._models = [*(each.sealed for each in asked), *cores]
        self._runtime = "+".join(dict.fromkeys(each.runtime.name for each in asked))
        digests = dict.fromkeys(each.digest for each in self._models)
        self._model = identity_digest(digests) if len(digests) > 1 else self._models[0].digest
        self.sources = [each.source for each in asked]
        self.workers = min(each.runtime.workers for each in asked)
        self.threads = asked[0].runtime.threads
        self.layouts = asked[0].runtime.layouts if all(each.runtime.layouts for each in asked) else None

    def stamped(self, smoothed: Smoothed, job: Job[Answer], answer: Answer) -> Answer:
        """Check that the models are still those that were sealed, and add them to a certificate.

        Raises:
            SmoothcertError: If a model has changed.
        """
        for each in self._models:
            each.recheck()
        if not isinstance(answer, Certificate):
            return answer
        guarantee = answer.guarantee if smoothed.sigma is None else Guarantee.POINTWISE
        digest = input_digest(job.x)
        stamped = replace(answer, guarantee=guarantee, runtime=self._runtime, model=self._model, input=digest)
        return cast(Answer, stamped)


def make_job(
    smoothed: Smoothed,
    sealed: Sealed,
    index: int,
    x: Any,
    steps: Callable[[Task], Steps[Answer]],
    seed: int,
    began: float,
) -> Job[Answer]:
    """Check an input, and return a job without sources for it; ``began`` is when its answer was requested."""
    for name, value in (("seed", seed), ("index", index)):
        if not 0 <= value < 2**63:
            raise UsageError(f"{name} must be between 0 and 2**63 - 1, got {value}.")
    tensor = smoothed.checked(sealed, x)
    usual = Job(index, tensor, steps(smoothed.task(index, tensor, smoothed.noise, seed, began)), (), seed)
    if smoothed.sigma is None:
        return usual
    begin = time.perf_counter()
    noise = chosen_noise(smoothed.sigma, sealed, cast(Gaussian, smoothed.noise), tensor, seed, index)
    job = Job(index, tensor, steps(smoothed.task(index, tensor, noise, seed, began)), (), seed, noise)
    try:
        job.begin()
    except UsageError:  # such as a target radius that this σ cannot reach
        job = replace(usual, noise=smoothed.noise)
        job.begin()
    job.seconds += time.perf_counter() - begin
    return job
