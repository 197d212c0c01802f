"""All corruptions by name, and a dataset seen through one."""

from __future__ import annotations

import hashlib
from typing import SupportsIndex

import numpy as np
import torch

from smoothcert.data.base import Dataset, checked_index
from smoothcert.data.corruptions.base import Corruption, Random
from smoothcert.data.corruptions.blurs import BLURS
from smoothcert.data.corruptions.lights import LIGHTS
from smoothcert.data.corruptions.noises import NOISES
from smoothcert.data.corruptions.shapes import SHAPES
from smoothcert.types import UsageError, unknown_name

CORRUPTIONS: dict[str, Corruption] = dict(sorted({**NOISES, **BLURS, **LIGHTS, **SHAPES}.items()))
"""Every corruption, with the names of CIFAR-10-C and MNIST-C for those they have."""


class Corrupted:
    """A dataset whose images are corrupted on access.

    A corrupted image depends only on the seed, the type, the severity, the index and the clean image, so that it is
    the same in every process and order.

    Args:
        dataset: The clean dataset.
        type: A name in ``CORRUPTIONS``.
        severity: 1, the weakest, to 5.
        seed: The seed of the corruption.

    Raises:
        UsageError: If the type or the severity is unknown, or the type is not for such images.

    Example:
        >>> from smoothcert import data
        >>> foggy = Corrupted(data.load("digits"), "fog", 3)
        >>> foggy.name, len(foggy), foggy[0][0].shape
        ('digits-fog-3', 500, torch.Size([1, 8, 8]))
    """

    def __init__(self, dataset: Dataset, type: str, severity: int, seed: int = 0) -> None:
        if type not in CORRUPTIONS:
            raise unknown_name("corruption", type, CORRUPTIONS)
        CORRUPTIONS[type].check(dataset.shape[0], severity)
        if seed < 0:
            raise UsageError(f"the seed of a corruption must not be negative, got {seed}.")
        self.dataset, self.type, self.severity, self.seed = dataset, type, severity, seed
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
        type_number = int.from_bytes(hashlib.sha256(self.type.encode()).digest()[:8], "big")
        sequence = np.random.SeedSequence([self.seed, type_number, self.severity, i])
        changed = CORRUPTIONS[self.type](image.numpy(), self.severity, Random(np.random.MT19937(sequence)))
        return torch.from_numpy(changed.astype(np.float32)), label
