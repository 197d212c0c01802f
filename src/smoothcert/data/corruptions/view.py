"""A dataset seen through a corruption."""

from __future__ import annotations

import hashlib
from typing import SupportsIndex

import numpy as np
import torch

from smoothcert.data.base import Dataset, checked_index
from smoothcert.data.corruptions.base import Random, check_severity
from smoothcert.data.corruptions.registry import CORRUPTIONS
from smoothcert.types import UsageError, unknown_name


class Corrupted:
    """A dataset whose images are corrupted when asked for.

    A corrupted image depends on the seed, the type, the severity, the index and the clean image only, so that it is
    the same in every process and order.

    Args:
        dataset: The clean dataset.
        type: A name in ``CORRUPTIONS``.
        severity: 1, the weakest, to 5.
        seed: The seed of the corruption.

    Raises:
        UsageError: If the type or the severity is unknown, or the type does not fit the images.

    Example:
        >>> from smoothcert import data
        >>> foggy = Corrupted(data.load("digits"), "fog", 3)
        >>> foggy.name, len(foggy), foggy[0][0].shape
        ('digits-fog-3', 500, torch.Size([1, 8, 8]))
    """

    def __init__(self, dataset: Dataset, type: str, severity: int, seed: int = 0) -> None:
        if type not in CORRUPTIONS:
            raise unknown_name("corruption", type, CORRUPTIONS)
        check_severity(severity)
        if seed < 0:
            raise UsageError(f"the seed of a corruption must not be negative, got {seed}.")
        self._corruption = CORRUPTIONS[type]
        if not self._corruption.fits(dataset.shape[0]):
            fitting = " or ".join(map(str, self._corruption.channels))
            raise UsageError(
                f"{type} is for images of {fitting} channels, and those of {dataset.name} have {dataset.shape[0]}; "
                "choose another corruption."
            )
        self.dataset = dataset
        self.type = type
        self.severity = severity
        self.seed = seed
        self.name = f"{dataset.name}-{type}-{severity}"
        self.split = dataset.split
        self.num_classes = dataset.num_classes
        self.shape = dataset.shape
        self.class_names = dataset.class_names
        self.levels = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: SupportsIndex) -> tuple[torch.Tensor, int]:
        i = checked_index(index, len(self))
        image, label = self.dataset[i]
        changed = self._corruption(image.numpy(), self.severity, self._random(i))
        return torch.from_numpy(changed.astype(np.float32)), label

    def arrays(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All images (float32, NCHW, in [0, 1]) and all labels (int64)."""
        images, labels = zip(*(self[i] for i in range(len(self))), strict=True)
        return torch.stack(images), torch.tensor(labels)

    def _random(self, index: int) -> Random:
        type_number = int.from_bytes(hashlib.sha256(self.type.encode()).digest()[:8], "big")
        sequence = np.random.SeedSequence([self.seed, type_number, self.severity, index])
        return Random(np.random.MT19937(sequence))
