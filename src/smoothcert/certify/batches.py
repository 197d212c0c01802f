"""Tell one input from a batch of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from smoothcert.certify.inputs import checked_input
from smoothcert.classifiers.sealed import Sealed
from smoothcert.sampling.copies import input_digest
from smoothcert.tensors import as_tensor
from smoothcert.types import UsageError


def split_batch(
    sealed: Sealed, x: Any, batch: bool | None, input_range: tuple[float, float] | None
) -> list[Any] | None:
    """Return the inputs of a batch, or None for one input; see :meth:`smoothcert.Smoothed.certify`."""
    if batch is False:
        return None
    listed = isinstance(x, (list, tuple))
    if listed and (batch or (x and not any(isinstance(item, (bool, int, float, list, tuple)) for item in x))):
        return list(x)
    given = as_tensor(x)
    if batch:
        if given.ndim == 0:
            raise UsageError("x is one number and not a batch; leave out batch=True.")
        return list(given)
    tensor = checked_input(given, input_range, sealed.device)  # one input and a batch must have the same values
    if sealed.known(tensor) is not None or tensor.ndim == 0 or _is_input(sealed, tensor):
        return None
    return list(given) if len(given) and _is_input(sealed, tensor[0]) else None


def _is_input(sealed: Sealed, x: Tensor) -> bool:
    try:
        sealed.count_classes(x)
    except UsageError:
        return False
    return True


def input_indices(inputs: Sequence[Any], index: int | Sequence[int] | None, one: bool) -> Sequence[int]:
    """Return the index of each input in its noise seed: the given ones, or 63 bits of a hash of its values."""
    if index is None:
        return [int(input_digest(as_tensor(x)), 16) >> 65 for x in inputs]
    single = isinstance(index, (int, np.integer))
    given = [int(index)] if isinstance(index, (int, np.integer)) else [int(each) for each in index]
    if single != one or len(given) != len(inputs):
        wanted = "one number" if one else f"a list of {len(inputs)} numbers, one for each input of the batch"
        raise UsageError(f"index must be {wanted}, got {index!r}.")
    return given


def stacked(inputs: Sequence[Any], device: torch.device) -> Tensor:
    """Return inputs of the same shape as one tensor through which gradients flow."""
    tensors = [as_tensor(each).to(device) for each in inputs]
    if len({tensor.shape for tensor in tensors}) != 1:
        raise UsageError("the batch must hold at least one input, and all must have the same shape.")
    rows = torch.stack(tensors)
    if not rows.is_floating_point():
        raise UsageError(f"x must be of a floating-point type, not {rows.dtype}.")
    return rows
