"""The small networks of Wong and Kolter (2018), for the files they published."""

from __future__ import annotations

from torch import nn


def provable(channels: int, features: int) -> nn.Module:
    """Build a network whose first linear layer has this number of inputs."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(features, 100),
        nn.ReLU(),
        nn.Linear(100, 10),
    )
