"""Compare the logits of two ways to run a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from smoothcert.types import UsageError


@dataclass(frozen=True, eq=False)
class Reference:
    """Noisy copies and their logits in double precision, computed by plain PyTorch in small batches."""

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


def compare(given: Tensor, expected: Tensor, tolerance: Tensor | float) -> Disagreement:
    """Count the rows whose logits differ by more than the tolerance, or are finite in only one of the two.

    Raises:
        UsageError: If the numbers of classes differ.
    """
    if given.shape != expected.shape:
        raise UsageError(
            f"the model returns {given.shape[1]} logits in one batch and {expected.shape[1]} in another; it must "
            "always return one for each class."
        )
    given, expected = given.double(), expected.double()
    valid = expected.isfinite().all(dim=1)
    apart = torch.where(valid[:, None], (given - expected).abs(), 0.0).nan_to_num(nan=torch.inf)
    wrong = (apart > tolerance).any(dim=1) | (given.isfinite().all(dim=1) != valid)
    return Disagreement(int(wrong.sum()), len(given), float(apart[wrong].max()) if bool(wrong.any()) else 0.0)


def rounding(logits: Tensor, eps: float, images: bool = False) -> Tensor:
    """Bound how far rounding may move logits: some units in the last place, and a part of the usual margin.

    The margin is the median difference of the two largest logits. It does not depend on the other logits, because a
    model may mask a class with a huge negative number, which must not make everything look close. For images, whose two
    largest values are often both white, it is the median of their standard deviations.

    Args:
        logits: Logits in double precision, or images with their values in a row.
        eps: The relative precision in which they were computed.
        images: Whether they are images.
    """
    finite = logits[logits.isfinite().all(dim=1)]
    if not len(finite) or logits.shape[1] < 2:
        return torch.zeros_like(logits)
    top = finite.topk(2, dim=1).values
    margin = (finite.std(dim=1) if images else top[:, 0] - top[:, 1]).median()
    size = top.abs().median()
    allowed: Tensor = 0.3 * eps**0.5 * margin + 100 * eps * (size + logits.abs().nan_to_num(0.0, 0.0, 0.0))
    return allowed


def as_logits(output: Any, rows: int) -> Tensor:
    """Check that a model returned one row of real logits per input, and convert integers to double precision.

    The logits may be in an object or dict with ``logits``, as the models of ``transformers`` return.

    Raises:
        UsageError: If it did not.
    """
    if isinstance(output, Mapping):
        output = output.get("logits", output)
    elif not isinstance(output, Tensor):
        output = getattr(output, "logits", output)
    if not isinstance(output, Tensor) or output.ndim != 2 or len(output) != rows or output.shape[1] < 2:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UsageError(
            f"the model must map a batch of {rows} inputs to logits of shape ({rows}, classes) with at least 2 "
            f"classes, but returned {shape}."
        )
    if output.is_complex():
        raise UsageError("the model returned complex numbers; logits must be real.")
    return output if output.is_floating_point() else output.double()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without its full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__
