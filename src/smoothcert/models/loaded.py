"""What is known about a model that was loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from smoothcert.models.checkpoints import Checkpoint
from smoothcert.models.info import CheckpointInfo
from smoothcert.models.normalize import Normalization


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model and what its source tells about it.

    Attributes:
        model: Maps a batch of inputs in [0, 1] to logits, in evaluation mode; preprocessing is part of it.
        name: A short name for files.
        source: Where it comes from, as JSON values: the specifier, its options, and the SHA-256 of each file.
        num_classes: The number of classes, if known before a forward pass.
        input_shape: The shape of one input, if known.
        class_names: The names of the classes in order, if known.
        normalize: The (mean, std) pair by which the model normalises inputs, or None without one.
        preprocessing: Where ``normalize`` comes from: ``"file"``, ``"option"``, ``"assumed"``, or ``"unknown"``.
        noise: The noise of the training, as ``Noise.config`` returns it, if known.
        training: The recipe, method, seed and a hash of the other settings of the training, if recorded.
        extra: The metadata of a checkpoint.
    """

    model: nn.Module
    name: str
    source: Mapping[str, Any]
    num_classes: int | None = None
    input_shape: tuple[int, ...] | None = None
    class_names: tuple[str, ...] | None = None
    normalize: Normalization | None = None
    preprocessing: str = "unknown"
    noise: Mapping[str, Any] | None = None
    training: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint) -> LoadedModel:
        """Return what a checkpoint of ours or of an earlier system tells."""
        source = {"checkpoint": str(checkpoint.path), "sha256": checkpoint.sha256}
        return cls(model=checkpoint.model, name=checkpoint.path.stem, source=source, **cls.metadata(checkpoint.info))

    @staticmethod
    def metadata(info: CheckpointInfo) -> dict[str, Any]:
        """Return the fields that the metadata of a checkpoint determines."""
        return {
            "num_classes": info.num_classes,
            "input_shape": info.input_shape,
            "normalize": info.normalize,
            "preprocessing": info.extra.get("normalize_from", "file"),
            "noise": info.noise or ({"name": "gaussian", "sigma": info.sigma} if info.sigma is not None else None),
            "training": _training(info.extra.get("recipe")),
            "extra": asdict(info),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return what is known as JSON values."""
        fields = {name: value for name, value in vars(self).items() if name not in ("model", "source", "extra")}
        known = {name: value for name, value in fields.items() if value is not None}
        return {**self.source, "parameters": self.parameters, **known, **self.extra}

    @property
    def parameters(self) -> int:
        """The number of trainable values."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def _training(recipe: Any) -> dict[str, Any] | None:
    """Return enough about a training to find runs that differ only in its seed."""
    if not isinstance(recipe, dict) or not {"name", "method", "seed"} <= recipe.keys():
        return None
    rest = {key: value for key, value in recipe.items() if key not in ("name", "source", "seed")}
    settings = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    return {"recipe": recipe["name"], "method": recipe["method"], "seed": recipe["seed"], "settings": settings}
