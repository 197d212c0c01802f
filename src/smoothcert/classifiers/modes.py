"""Evaluation mode, for as long as it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def evaluating(*models: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Evaluation mode for every submodule while the context lasts; afterwards each is as it was.

    Args:
        models: Modules; other callables have no mode and are left alone.
    """
    modules = [module for model in models if isinstance(model, nn.Module) for module in model.modules()]
    was_training = [module for module in modules if module.training]
    for module in was_training:
        module.training = False
    try:
        yield
    finally:
        for module in was_training:
            module.training = True
