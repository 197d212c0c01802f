"""Soft labels: the vote shares of a model under noise, stored in a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from smoothcert.certify import Smoothed
from smoothcert.data import Dataset
from smoothcert.evaluate import Cluster, count_votes
from smoothcert.noise import Noise
from smoothcert.types import UsageError


def soft_labels(
    model: nn.Module,
    x: Tensor | Dataset,
    noise: Noise,
    *,
    n: int,
    num_classes: int,
    folder: str | os.PathLike[str],
    seed: int = 0,
    progress: bool = True,
    cluster: Cluster | None = None,
) -> Tensor:
    """Return vote shares of each input: ŷ_c = (1/n) Σ 1[f(x + δ_i) = c] (Jeong et al., 2023, Eq. 10).

    Copies with a NaN or infinite logit do not count. Arguments and errors that are not explained here are those of
    :func:`smoothcert.evaluate.count_votes`.

    Args:
        model: The classifier; a copy of it runs in evaluation mode.
        x: All inputs, or a dataset.
        noise: The noise.
        n: Noisy copies of each input.
        num_classes: The number of classes.
        folder: The folder of the votes.

    Returns:
        The shares, float32 of shape (inputs, classes), on the model's device; each row sums to 1.
    """
    if (Path(folder) / "labels.json").exists():
        raise UsageError(f"{folder} holds soft labels of an earlier version; delete it to count them again.")
    smoothed = Smoothed(model, noise, num_classes=num_classes, input_range=None)
    dataset = [(image, 0) for image in x.detach()] if isinstance(x, Tensor) else x
    options: dict[str, Any] = {"folder": folder, "seed": seed, "progress": progress, "cluster": cluster}
    votes = torch.from_numpy(count_votes(smoothed, dataset, n, title="soft labels", **options))
    return (votes / votes.sum(dim=1, keepdim=True)).to(smoothed.device)
