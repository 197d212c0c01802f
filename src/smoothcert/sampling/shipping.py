"""Objects that hold models, taken apart into weights and structure to be sent to other processes."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Packed:
    """Something with models in it, ready to be sent.

    Attributes:
        structure: Everything but the tensors. Classes and functions that can be imported, as those of this package and
            of PyTorch, are in it by name alone; only what cannot, as a class from a script, travels as code.
        weights: The bytes of each tensor, once where it is used several times. Ray keeps arrays in memory that the
            processes of a node share.
        kinds: Type and shape of each tensor, and for a parameter whether it has a gradient.
    """

    structure: bytes
    weights: list[NDArray[np.uint8]]
    kinds: list[tuple[torch.dtype, torch.Size, bool | None]]


def pack(value: Any, pickler: type[pickle.Pickler] = pickle.Pickler) -> Packed:
    """Take something apart.

    Args:
        value: What is to be sent.
        pickler: What writes the structure; ``ray.cloudpickle.Pickler`` also takes what cannot be imported elsewhere.

    Returns:
        Its parts; a copy, which later changes do not reach.

    Example:
        >>> packed = pack(nn.Linear(4, 2))
        >>> [weights.nbytes for weights in packed.weights]
        [32, 8]
        >>> unpack(packed)
        Linear(in_features=4, out_features=2, bias=True)
    """
    places: dict[int, int] = {}
    tensors: list[Tensor] = []  # also keeps them alive, so that no two have one id

    class Writer(pickler):  # type: ignore[valid-type, misc]
        def persistent_id(self, part: Any) -> int | None:
            if not isinstance(part, Tensor):
                return None
            if id(part) not in places:
                places[id(part)] = len(tensors)
                tensors.append(part)
            return places[id(part)]

    structure = io.BytesIO()
    Writer(structure, protocol=5).dump(value)
    return Packed(
        structure.getvalue(),
        [_bytes(tensor) for tensor in tensors],
        [(t.dtype, t.shape, t.requires_grad if isinstance(t, nn.Parameter) else None) for t in tensors],
    )


def unpack(packed: Packed, device: str = "cpu") -> Any:
    """Put something together again, with all its tensors on one device."""
    tensors = [_tensor(content, *kind, device) for content, kind in zip(packed.weights, packed.kinds, strict=True)]

    class Reader(pickle.Unpickler):
        def persistent_load(self, place: int) -> Tensor:
            return tensors[place]

    return Reader(io.BytesIO(packed.structure)).load()


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return np.array(flat.view(torch.uint8).numpy())


def _tensor(
    content: NDArray[np.uint8], dtype: torch.dtype, shape: torch.Size, gradient: bool | None, device: str
) -> Tensor:
    tensor = torch.from_numpy(content.copy()).view(dtype).reshape(shape).to(device)
    return tensor if gradient is None else nn.Parameter(tensor, requires_grad=gradient)
