"""Target radii: what is asked of them, and what is said when they are out of reach."""

from __future__ import annotations

import math

from smoothcert.certify.base import Task
from smoothcert.stats import samples_needed
from smoothcert.stats.binomial import MAX_SAMPLES
from smoothcert.types import Norm, UsageError, radius_text


def require_radii(*radii: float) -> None:
    """Refuse a target radius that is not a positive number."""
    for radius in radii:
        if isinstance(radius, bool) or not (isinstance(radius, (int, float)) and 0 < radius < math.inf):
            raise UsageError(f"a target radius must be a positive number, got {radius!r}.")


def unreachable(
    radius: float, task: Task, norm: Norm, reach: float, threshold: float, level: float, alpha: float, samples: str
) -> UsageError:
    """The error for a target that the samples cannot certify even if every vote agrees.

    Args:
        radius: The target.
        task: The input's task, for its noise.
        norm: The norm of the radius.
        reach: The largest lower bound the samples can give.
        threshold: The bound the target needs.
        level: The share of alpha that the bound uses.
        alpha: The alpha of the procedure.
        samples: The samples in words.
    """
    largest = radius_text(task.radius(reach, norm), 0 if norm is Norm.L0 else 3)
    needed = samples_needed(threshold, level) if threshold < 1 else MAX_SAMPLES + 1
    more = f"{needed:,} or more" if needed <= MAX_SAMPLES else f"more than {MAX_SAMPLES:,}"
    return UsageError(
        f"{norm.value} radius {radius:g} cannot be certified with {samples} samples at alpha = {alpha:g}: the largest "
        f"is {largest}, and this one needs {more}; lower the radius, or raise the samples or the noise."
    )
