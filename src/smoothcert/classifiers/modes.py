"""Settings of models and PyTorch for the duration of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from smoothcert.classifiers.copying import Forward


@contextmanager
def evaluating(model: Forward) -> Iterator[None]:
    """Put a module and its submodules into evaluation mode, and restore the mode of each afterwards."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    was_training = [module for module in modules if module.training]
    for module in was_training:
        module.training = False
    try:
        yield
    finally:
        for module in was_training:
            module.training = True


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Set PyTorch's number of intra-op threads, for this thread and threads that it starts, and restore it afterwards.

    A model may change the number too; that is undone as well.
    """
    before = torch.get_num_threads()
    if count != before:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)
