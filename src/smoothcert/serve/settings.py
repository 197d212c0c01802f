"""The limits that the operator of a service sets."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Any

from smoothcert.types import UsageError

BUSY_SHARE = 4  # a replica is added where more than this part of the queues is taken


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """The limits of a service.

    Args:
        queue: Inputs that may be under work or wait; a request beyond them is refused with 429.
        max_deadline: The most seconds that a request may ask for.
        max_alpha: The largest alpha that a request may ask for; that of the procedure by default.
        max_radii: Target radii of a request.
        max_batch: Inputs of a request.
        max_bytes: Bytes of a request.
        max_pixels: Pixels of an image before it is resized.
        body_seconds: Seconds in which a request must have arrived.
        allow_seed: Let requests name the seed of their noise. Who names it may choose answers by it.
    """

    queue: int = 256
    max_deadline: float = 10.0
    max_alpha: float | None = None
    max_radii: int = 16
    max_batch: int = 64
    max_bytes: int = 10_000_000
    max_pixels: int = 16_000_000
    body_seconds: float = 10.0
    allow_seed: bool = False

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None and not isinstance(value, bool) and not 0 < value < math.inf:
                raise UsageError(f"{each.name} must be a positive number, got {value!r}.")
        if self.max_alpha is not None and self.max_alpha >= 1:
            raise UsageError(f"max_alpha must lie strictly between 0 and 1, got {self.max_alpha}.")


@dataclass(frozen=True)
class Replicas:
    """How many replicas answer: a fixed number, or one that follows the length of their queues."""

    least: int = 1
    most: int = 1

    @classmethod
    def parse(cls, text: str) -> Replicas:
        """Read ``N`` or ``MIN:MAX``."""
        found = re.fullmatch(r"([1-9][0-9]{0,3})(?::([1-9][0-9]{0,3}))?", text)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise UsageError(f"--replicas must be a number of at least 1, or MIN:MAX, such as 1:4; got {text!r}.")
        return cls(int(found[1]), int(found[2] or found[1]))

    def options(self, queue: int) -> dict[str, Any]:
        """Return the options of a deployment whose replicas have queues of a length."""
        if self.least == self.most:
            return {"num_replicas": self.least}
        target = max(queue // BUSY_SHARE, 1)
        scaling = {"min_replicas": self.least, "max_replicas": self.most, "target_ongoing_requests": target}
        return {"autoscaling_config": scaling}
