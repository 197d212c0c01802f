"""Cores: accurate classifiers without a guarantee, asked about inputs without noise."""

from __future__ import annotations

import torch

from smoothcert.certify.base import Task
from smoothcert.classifiers.sealed import Sealed
from smoothcert.sampling import Classifier
from smoothcert.sampling.runtimes import check_copies
from smoothcert.types import UsageError


def core_class(core: Classifier, task: Task) -> int:
    """The class that a core gives the input of a task.

    Raises:
        UsageError: If the task holds no input, or the core is not a fixed function from an input to a logit for each
            class.
    """
    if task.x is None:
        raise UsageError("a core can be asked only about an input that the task holds.")
    sealed = core if isinstance(core, Sealed) else Sealed(core)
    x = task.x.to(sealed.device)
    classes = (sealed.known(x) or sealed.verify(check_copies(x, task.noise))).num_classes
    if classes != task.num_classes:
        raise UsageError(
            f"the core has {classes} classes, but the smoothed classifier has {task.num_classes}; use a core with the "
            "same classes."
        )
    with torch.inference_mode():
        return int(sealed(x[None]).argmax())
