"""The limits that the operator of a service sets."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from smoothcert.types import UsageError


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
