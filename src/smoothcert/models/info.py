"""The metadata of checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError
from torch import nn

from smoothcert.files import parse_json
from smoothcert.models.normalize import Normalization, NormalizeSpec, normalization, without_normalization
from smoothcert.models.registry import find_model, registered_name
from smoothcert.types import CheckpointError, UsageError

FORMAT_VERSION = 1
MOST_CLASSES = 1_000_000  # sanity limits for values read from files, which would otherwise allocate memory
LONGEST_SIDE = 100_000


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """The metadata of a checkpoint: how to rebuild the model, and the noise of its training."""

    architecture: str  # a key of MODELS, or package.module:name of other code; names of earlier systems are replaced
    num_classes: int
    input_shape: tuple[int, ...]  # channels, height, width; any for other code
    sigma: float | None = None  # the Gaussian noise of the training; None if it is unknown or another noise
    noise: Mapping[str, str | int | float] | None = None  # as Noise.config returns it; None in files without it
    input_range: tuple[float, float] = (0.0, 1.0)  # before normalisation
    normalize: Normalization | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # other JSON values, such as the recipe or the accuracy
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if not self.external:
            object.__setattr__(self, "architecture", find_model(self.architecture).name)
        if not 2 <= self.num_classes <= MOST_CLASSES:
            raise UsageError(f"num_classes must be at least 2 and at most {MOST_CLASSES}, not {self.num_classes}.")
        image = len(self.input_shape) == 3 or (self.external and self.normalize is None)
        sides = (0, *self.input_shape)
        if not image or not 1 <= min(sides[1:], default=0) <= max(sides) <= LONGEST_SIDE:
            raise UsageError(f"input_shape must be (channels, height, width), not {self.input_shape}.")
        if self.sigma is not None and not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise UsageError(f"sigma must be a finite number that is not negative, not {self.sigma}.")
        if self.noise is not None and not isinstance(self.noise.get("name"), str):
            raise UsageError(f"noise must have a name, such as {{'name': 'uniform', 'lam': 1.0}}, not {self.noise}.")
        if self.noise is not None and self.sigma != self.noise.get("sigma"):
            raise UsageError(f"sigma is {self.sigma}, but the noise is {dict(self.noise)}; pass one of them.")
        if not self.input_range[0] < self.input_range[1]:
            raise UsageError(f"input_range must be (smallest, largest), not {self.input_range}.")
        object.__setattr__(self, "normalize", normalization(self.normalize, self.input_shape[0]))

    @property
    def external(self) -> bool:
        """Whether the network is code outside ``MODELS``, which a checkpoint names but does not import."""
        return ":" in self.architecture

    @classmethod
    def of_module(
        cls,
        model: nn.Module,
        *,
        num_classes: int,
        input_shape: tuple[int, ...],
        noise: Mapping[str, str | int | float] | None = None,
        architecture: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> CheckpointInfo:
        """Return the metadata of any module; by default its architecture is one of ours, or the name of its class."""
        network, normalize = without_normalization(model)
        name = architecture or registered_name(network, num_classes, input_shape[0])
        named = None if noise is None else noise.get("sigma")
        return cls(
            architecture=name or f"{type(network).__module__}:{type(network).__qualname__}",
            num_classes=num_classes,
            input_shape=input_shape,
            sigma=float(named) if isinstance(named, (int, float)) else None,
            noise=None if noise is None else dict(noise),
            normalize=normalize,
            extra=dict(extra or {}),
        )

    @classmethod
    def of(
        cls,
        architecture: str,
        *,
        num_classes: int | None = None,
        in_channels: int | None = None,
        normalize: NormalizeSpec = None,
        sigma: float | None = None,
        noise: Mapping[str, str | int | float] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> CheckpointInfo:
        """Return the metadata of a model that ``build`` returns; ``sigma`` is not needed together with ``noise``."""
        model = find_model(architecture)
        named = None if noise is None else noise.get("sigma")
        if sigma is None and isinstance(named, (int, float)):
            sigma = float(named)
        channels, height, width = model.input_shape
        channels = channels if in_channels is None else in_channels
        return cls(
            architecture=model.name,
            num_classes=model.num_classes if num_classes is None else num_classes,
            input_shape=(channels, height, width),
            sigma=sigma,
            noise=None if noise is None else dict(noise),
            normalize=normalization(normalize, channels),
            extra=dict(extra or {}),
        )

    def to_json(self) -> str:
        """Write the metadata as JSON."""
        try:
            return json.dumps(asdict(self), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"the extra metadata cannot be written as JSON: {error}.") from error

    @classmethod
    def from_json(cls, text: str, source: str) -> CheckpointInfo:
        """Read the output of ``to_json``; ``source`` is its origin, for errors."""
        try:
            raw = parse_json(text)
            version = raw.get("format_version") if isinstance(raw, dict) else None
            if isinstance(version, int) and version > FORMAT_VERSION:
                raise CheckpointError(
                    f"{source} was written by a newer smoothcert (format {version}; this one reads up to "
                    f"{FORMAT_VERSION}); upgrade to read it."
                )
            return TypeAdapter(cls).validate_python(raw)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "as a whole"
            reason = first.get("ctx", {}).get("error", first["msg"])
            raise CheckpointError(f"{source} has invalid metadata ({where}): {reason}") from error
        except ValueError as error:
            raise CheckpointError(f"{source} has damaged metadata: {error}.") from error
