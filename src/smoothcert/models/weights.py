"""Match the tensors of a file with those of a network."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from smoothcert.models.registry import find_model
from smoothcert.types import CheckpointError

_NAMED = 3


def skeleton(architecture: str, num_classes: int, in_channels: int) -> nn.Module:
    """Build the bare network on the meta device: without memory and without random numbers."""
    with torch.device("meta"):
        return find_model(architecture).builder(num_classes, in_channels)


def fit(network: nn.Module, tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Check that the tensors are exactly those of the network, and copy them in its types.

    Args:
        network: The network; its values do not matter.
        tensors: The tensors by name. Batch counts may be missing, as in files older than PyTorch 0.4.1.
        source: The origin of the tensors, for errors, such as ``'x.pth' as lenet``.

    Raises:
        CheckpointError: A name is missing or unexpected, a shape or type differs, or a value is not finite.
    """
    expected = network.state_dict()
    counts = {name: torch.zeros((), dtype=torch.long) for name in expected if name.endswith(".num_batches_tracked")}
    given = {**counts, **tensors}
    unexpected = [name for name in given if name not in expected]
    missing = [name for name in expected if name not in given]
    faults = [f"{what} {_listed(names)}" for what, names in (("unexpected", unexpected), ("missing", missing)) if names]
    if faults:
        raise CheckpointError(f"{source} has other tensors than the architecture: {'; '.join(faults)}.")
    return {name: _fit_one(name, given[name], wanted, source) for name, wanted in expected.items()}


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is dense, on the CPU, and stores all its values; an expanded one can claim any size."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _fit_one(name: str, tensor: Tensor, wanted: Tensor, source: str) -> Tensor:
    if tensor.shape != wanted.shape:
        raise CheckpointError(
            f"{source}: tensor {name!r} has shape {tuple(tensor.shape)}, but {tuple(wanted.shape)} is needed."
        )
    if not is_plain(tensor) or tensor.is_floating_point() != wanted.is_floating_point():
        raise CheckpointError(f"{source}: tensor {name!r} of type {tensor.dtype} is not a plain {wanted.dtype} tensor.")
    copy = tensor.detach().to(wanted.dtype, copy=True, memory_format=torch.contiguous_format)
    if not bool(torch.isfinite(copy).all()):
        raise CheckpointError(f"{source}: tensor {name!r} holds values that are not finite.")
    return copy


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(repr(name) for name in names[:_NAMED]) + more
