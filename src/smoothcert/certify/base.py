"""The contract of a certification procedure.

A procedure is a generator: it yields the votes it wants next (:class:`Draw`), is sent them, and returns its answer.
It never sees a model, so the same procedure runs on one input, in a pool of inputs, or on recorded votes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from smoothcert.noise import Noise
from smoothcert.sampling import Answer, Draw, Statistic, Steps, TopClass
from smoothcert.stats.binomial import MAX_SAMPLES
from smoothcert.types import Certificate, Prediction, UsageError, Votes


@dataclass(frozen=True)
class Task:
    """What a procedure knows of the input it certifies.

    Attributes:
        noise: The noise.
        num_classes: The number of classes.
        dimension: The number of coordinates of the input.
        seed: The seed of the run.
        index: The input's index.
    """

    noise: Noise
    num_classes: int
    dimension: int
    seed: int
    index: int


@dataclass(frozen=True, kw_only=True)
class Procedure(ABC):
    """A way to certify; subclasses write :meth:`certify` and :meth:`predict` as generators.

    Attributes:
        name: The name in the registry, on the command line and in run files.
        statistics: What must be tallied; each draw is answered with one :class:`Votes` per entry.
    """

    name: ClassVar[str]
    statistics: ClassVar[tuple[Statistic, ...]] = (TopClass(),)

    @abstractmethod
    def certify(self, task: Task) -> Steps[Certificate]:
        """The steps to a certificate."""

    @abstractmethod
    def predict(self, task: Task) -> Steps[Prediction]:
        """The steps to the smoothed classifier's class, without a radius."""

    def config(self) -> dict[str, Any]:
        """The procedure as plain values, for run files."""
        return {"name": self.name, **{f.name: getattr(self, f.name) for f in fields(self)}}


def answer(steps: Steps[Answer], draw: Callable[[Draw], tuple[Votes, ...]]) -> Answer:
    """Run a procedure's steps to the end.

    Args:
        steps: What :meth:`Procedure.certify` or :meth:`Procedure.predict` returned.
        draw: Answers a request for votes.

    Returns:
        What the steps return.
    """
    try:
        request = next(steps)
        while True:
            request = steps.send(draw(request))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


@contextmanager
def evaluating(model: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Evaluation mode for every submodule while the context lasts; afterwards each is as it was."""
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    was_training = [m for m in modules if m.training]
    for module in was_training:
        module.training = False
    try:
        yield
    finally:
        for module in was_training:
            module.training = True


def require_count(name: str, value: int) -> None:
    """Refuse a number of samples that is not a whole number in the range the bounds are verified for."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SAMPLES:
        raise UsageError(f"{name} must be a whole number of samples between 1 and {MAX_SAMPLES:,}, got {value!r}.")


def require_probability(name: str, value: float) -> None:
    """Refuse a failure probability outside (0, 1)."""
    if not (isinstance(value, (int, float)) and 0 < value < 1):
        raise UsageError(f"{name} must lie strictly between 0 and 1, got {value!r}.")
