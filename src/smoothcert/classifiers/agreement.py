"""Whether two ways to run a classifier agree on noisy copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from smoothcert.types import UsageError


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


def compare(given: Tensor, expected: Tensor, tolerance: Tensor | float) -> Disagreement:
    """Compare logits of the same rows; a row in which only one of the two is finite differs.

    Args:
        given: Logits.
        expected: What they must be.
        tolerance: How far each may be off (see :func:`rounding`).

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
    apart = torch.where(valid[:, None], (given - expected).abs(), 0.0).nan_to_num(nan=torch.inf)
    wrong = (apart > tolerance).any(dim=1) | (given.isfinite().all(dim=1) != valid)
    return Disagreement(int(wrong.sum()), len(given), float(apart[wrong].max()) if bool(wrong.any()) else 0.0)


def rounding(logits: Tensor, eps: float) -> Tensor:
    """How far rounding may move logits: each by some units in its last place, and all by a part of the usual margin.

    The margin is that of the two largest logits, in the middle of all rows: a class that a model masks with a huge
    negative number must not make everything look close.

    Args:
        logits: Logits in double precision.
        eps: The relative precision that they were computed in.
    """
    finite = logits[logits.isfinite().all(dim=1)]
    if not len(finite) or logits.shape[1] < 2:
        return torch.zeros_like(logits)
    top = finite.topk(2, dim=1).values
    margin, size = (top[:, 0] - top[:, 1]).median(), top.abs().median()
    allowed: Tensor = 0.3 * eps**0.5 * margin + 100 * eps * (size + logits.abs().nan_to_num(0.0, 0.0, 0.0))
    return allowed


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


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without its full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__
