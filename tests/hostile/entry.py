"""What an entry of the gallery is: a hostile but ordinary classifier, and what a right certificate of it is about.

Unless an entry says otherwise, its meaning is a half-space: one row in evaluation mode has class 1 where its first
coordinate exceeds ``EDGE``. At distance m from the edge the smoothed classifier's true radius is then exactly m, under
Gaussian noise in ℓ2 and under uniform noise in ℓ1.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

SHAPE = (2, 2, 2)
"""Two channels, so that channels-last memory differs from contiguous memory."""

EDGE = 0.5
SIGMA = 0.5

Classifier = Callable[[Tensor], Any]


GRID = 255
"""The inputs lie on the grid of 8-bit images, so that exact noise takes them as they are."""


def point(first: float) -> Tensor:
    """An input near a known distance from the edge, on the grid; the other coordinates do not matter."""
    x = torch.linspace(0.2, 0.8, 8).reshape(SHAPE).clone()
    x[0, 0, 0] = first
    return (x * GRID).round() / GRID


FAR, NEAR, LOW = point(0.9), point(0.53), point(0.1)
"""Clearly class 1; too close to the edge to be certified; clearly class 0."""


def first(x: Tensor) -> Tensor:
    """The coordinate that decides."""
    return x[:, 0, 0, 0]


def scores(side: Tensor) -> Tensor:
    """Logits of class 0 and 1, where a positive ``side`` means class 1."""
    return torch.stack([-side, side], dim=1)


class HalfSpace(nn.Module):
    """The well-behaved classifier that most entries would be if they were written with care."""

    def __init__(self, edge: float = EDGE) -> None:
        super().__init__()
        self.edge = edge

    def forward(self, x: Tensor) -> Tensor:
        return scores(first(x) - self.edge)


class Expect(Enum):
    """What the library may do with an entry.

    ``RIGHT``: certify it; a refusal would be a bug, because nothing is wrong with it in evaluation mode.
    ``REFUSE``: refuse it in one sentence; it is not a function of one row.
    ``EITHER``: refuse it, or certify what its reference computes.
    """

    RIGHT = "right"
    REFUSE = "refuse"
    EITHER = "either"


@dataclass(frozen=True)
class Entry:
    """A hostile classifier.

    Attributes:
        name: The name, for test ids.
        make: Makes a fresh one.
        story: Who writes such a thing.
        expect: What the library may do with it.
        reference: Makes the well-behaved classifier that gives the logits of one row of it.
        copyable: Whether the library can work on a copy, so that nothing in the user's object may change at all.
    """

    name: str
    make: Callable[[], Classifier]
    story: str
    expect: Expect
    reference: Callable[[], Classifier]
    copyable: bool


ENTRIES: dict[str, Entry] = {}


def entry(
    expect: Expect = Expect.EITHER,
    *,
    training: bool | None = False,
    reference: Callable[[], Classifier] = HalfSpace,
    copyable: bool = True,
) -> Callable[[Callable[[], Classifier]], Callable[[], Classifier]]:
    """Register a class without arguments, or a function that makes a classifier.

    Args:
        expect: What the library may do with it.
        training: The mode a module is left in; None leaves it as its constructor did.
        reference: Makes its well-behaved twin.
        copyable: Whether the library can work on a copy of it.
    """

    def register(maker: Callable[[], Classifier]) -> Callable[[], Classifier]:
        def make() -> Classifier:
            made = maker()
            if isinstance(made, nn.Module) and training is not None:
                made.train(training)
            return made

        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", maker.__name__).lower()
        assert name not in ENTRIES
        ENTRIES[name] = Entry(name, make, inspect.getdoc(maker) or "", expect, reference, copyable)
        return maker

    return register
